//! What the children that are killed were about to do, and what must be there afterwards.
//!
//! Two sorts of transactions, each over several rows: one account pays several others, and records move to another place in
//! the index, which takes a record, its old entry and its new one. Each sort is killed once on either side of the commit
//! point, so there are four jobs, over rows that have nothing in common: a child that met another one's locks would
//! resolve them.
//!
//! Before that, the parent plays every job through in a transaction that it drops. So it knows of every row what it holds
//! before and after, and can tell later whether a job was done wholly or not at all.

use anyhow::{Context as _, Result, anyhow, bail};
use percolite::{Keyspace, Snapshot, Store, Txn};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use serde_json::{Value, json};

use super::dataset::FieldChoice;
use super::killed_writer::KillPoint;
use super::load::{decode, encode};
use super::store::Keyspaces;
use super::transfers::{balance, transfer};

const PAYMENTS: [u64; 3] = [7, 11, 13];
const RECORDS_MOVED: usize = 2;
const MOVED_TO: &str = "moved";

/// A transaction for a child.
#[derive(Clone, Debug)]
pub enum PlannedTxn {
    /// An account pays others.
    Pay {
        /// Who pays.
        from: String,
        /// Who gets how much.
        to: Vec<(String, u64)>,
    },
    /// Records get another value in the field that the index goes by.
    Move {
        /// The records' keys.
        keys: Vec<String>,
        /// The field.
        field: String,
    },
}

/// A row, and what a job makes of it.
pub struct RowChange {
    /// The name of its keyspace; handles end with the store.
    pub keyspace: String,
    /// Its key.
    pub key: Vec<u8>,
    /// What it held before the job.
    pub before: Option<Vec<u8>>,
    /// What it holds when the job is done.
    pub after: Option<Vec<u8>>,
}

/// A job, when its child is killed, and what it is about.
pub struct KillPlan {
    /// When.
    pub kill_at: KillPoint,
    /// What.
    pub txn: PlannedTxn,
    /// The rows.
    pub rows: Vec<RowChange>,
}

impl PlannedTxn {
    /// In words.
    pub fn name(&self) -> String {
        match self {
            Self::Pay { to, .. } => format!("a payment to {} accounts", to.len()),
            Self::Move { keys, .. } if keys.len() == 1 => "a move of a record".into(),
            Self::Move { keys, .. } => format!("a move of {} records", keys.len()),
        }
    }

    /// Does it; the answer names the rows.
    pub fn run(&self, txn: &mut Txn, keyspaces: &Keyspaces) -> Result<Vec<(Keyspace, Vec<u8>)>> {
        let mut rows = Vec::new();
        match self {
            Self::Pay { from, to } => {
                if !transfer(txn, &keyspaces.accounts, from, to)? {
                    bail!("account {from} has not enough");
                }
                let accounts = [from].into_iter().chain(to.iter().map(|(to, _)| to));
                rows.extend(accounts.map(|account| (keyspaces.accounts.clone(), account.clone().into_bytes())));
            }
            Self::Move { keys, field } => {
                let fields = FieldChoice { key: None, index: field.clone() };
                for key in keys.iter().map(String::as_bytes) {
                    let stored = txn.get(&keyspaces.records, key)?.ok_or_else(|| anyhow!("a record is missing"))?;
                    let mut record = decode(&stored)?;
                    let old = fields.index_key(&record, key);
                    record.insert(field.clone(), MOVED_TO.into());
                    let new = fields.index_key(&record, key);
                    txn.delete(&keyspaces.index, &old)?;
                    txn.put(&keyspaces.index, &new, key)?;
                    txn.put(&keyspaces.records, key, encode(&record)?)?;
                    rows.push((keyspaces.records.clone(), key.to_vec()));
                    rows.extend([old, new].map(|entry| (keyspaces.index.clone(), entry)));
                }
            }
        }
        Ok(rows)
    }

    /// For the child's order.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Pay { from, to } => json!({ "from": from, "to": to }),
            Self::Move { keys, field } => json!({ "keys": keys, "field": field }),
        }
    }

    /// The inverse of [`Job::to_json`].
    pub fn from_json(order: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if let Some(from) = order.get("from") {
            let paid = |pair: &Value| Some((text(pair.get(0)?)?, pair.get(1)?.as_u64()?));
            let to = order.get("to")?.as_array()?.iter().map(paid).collect::<Option<_>>()?;
            return Some(Self::Pay { from: text(from)?, to });
        }
        let keys = order.get("keys")?.as_array()?.iter().map(text).collect::<Option<_>>()?;
        Some(Self::Move { keys, field: text(order.get("field")?)? })
    }
}

/// Chooses four jobs and foresees what becomes of their rows.
pub fn plan(store: &Store, keyspaces: &Keyspaces, fields: &FieldChoice, random: &mut StdRng) -> Result<Vec<KillPlan>> {
    let snapshot = store.snapshot()?;
    let mut accounts = payers_first(&snapshot, keyspaces, random)?.into_iter();
    let mut records = keys(&snapshot, &keyspaces.records)?;
    let each = RECORDS_MOVED.min(records.len() / 2);
    if each == 0 {
        bail!("the demo needs at least two records with different keys");
    }
    records = records.sample(random, 2 * each).cloned().collect();
    let mut plans = Vec::new();
    for kill_at in [KillPoint::BeforeCommitPoint, KillPoint::AfterCommitPoint] {
        let from = accounts.next().ok_or_else(|| anyhow!("there are too few accounts"))?;
        // Those who cannot pay stand last.
        let to = accounts.by_ref().rev().zip(PAYMENTS).collect();
        let keys = records.drain(..each).collect();
        for job in [PlannedTxn::Pay { from, to }, PlannedTxn::Move { keys, field: fields.index.clone() }] {
            plans.push(dry_run(store, keyspaces, kill_at, job)?);
        }
    }
    Ok(plans)
}

fn dry_run(store: &Store, keyspaces: &Keyspaces, kill_at: KillPoint, job: PlannedTxn) -> Result<KillPlan> {
    let before = store.begin()?;
    let mut after = store.begin()?;
    let mut touched = job.run(&mut after, keyspaces)?;
    touched.sort_by(|(a, left), (b, right)| (a.id(), left).cmp(&(b.id(), right)));
    touched.dedup_by(|(a, left), (b, right)| (a.id(), left) == (b.id(), right));
    let mut rows: Vec<RowChange> = Vec::new();
    for (keyspace, key) in touched {
        let (before, after) = (before.get(&keyspace, &key)?, after.get(&keyspace, &key)?);
        rows.push(RowChange { keyspace: keyspace.name().to_owned(), key, before, after });
    }
    Ok(KillPlan { kill_at, txn: job, rows })
}

/// All accounts in random order, but first those that can pay.
fn payers_first(snapshot: &Snapshot, keyspaces: &Keyspaces, random: &mut StdRng) -> Result<Vec<String>> {
    let mut accounts = keys(snapshot, &keyspaces.accounts)?;
    accounts.shuffle(random);
    let needed: u64 = PAYMENTS.iter().sum();
    let mut by_means = Vec::with_capacity(accounts.len());
    for account in accounts {
        let can_pay = balance(snapshot.get(&keyspaces.accounts, &account)?)? >= needed;
        by_means.push((!can_pay, account));
    }
    by_means.sort_by_key(|(poor, _)| *poor);
    Ok(by_means.into_iter().map(|(_, account)| account).collect())
}

fn keys(snapshot: &Snapshot, keyspace: &Keyspace) -> Result<Vec<String>> {
    let rows = snapshot.prefix(keyspace, "");
    rows.map(|row| String::from_utf8(row?.0).context("a key of the demo is not UTF-8")).collect()
}
