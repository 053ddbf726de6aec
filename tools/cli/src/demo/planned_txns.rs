//! The transactions of the writers that are killed, and the rows that must exist afterwards.
//!
//! There are two kinds of transactions, each with several rows. In a payment, one account pays
//! several others. In a move, records get another indexed value, which changes each record, its old
//! index entry and its new one. For each kind, one writer is killed before the commit point and one
//! after it. The four transactions have no row in common: otherwise a later writer would resolve
//! orphan locks of an earlier one.
//!
//! Before it starts the writers, the parent runs each transaction without committing it. So the
//! parent knows the value of each row before and after the transaction, and can check later that
//! the transaction took effect completely or not at all.

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

/// A transaction of a writer.
#[derive(Clone, Debug)]
pub enum PlannedTxn {
    /// An account pays others.
    Pay {
        /// The paying account.
        from: String,
        /// The receiving accounts, with the amounts.
        to: Vec<(String, u64)>,
    },
    /// Records get another value in the indexed field.
    Move {
        /// The keys of the records.
        keys: Vec<String>,
        /// The indexed field.
        field: String,
    },
}

/// A row that a transaction changes.
pub struct RowChange {
    /// The name of the row's keyspace. A handle would be unusable after the store is closed.
    pub keyspace: String,
    /// Its key.
    pub key: Vec<u8>,
    /// The value before the transaction.
    pub before: Option<percolite::Value>,
    /// The value after the transaction.
    pub after: Option<percolite::Value>,
}

/// A transaction, and when its writer is killed.
pub struct KillPlan {
    /// When the writer is killed.
    pub kill_at: KillPoint,
    /// The transaction.
    pub txn: PlannedTxn,
    /// The rows that it changes.
    pub rows: Vec<RowChange>,
}

impl PlannedTxn {
    /// A description.
    pub fn name(&self) -> String {
        match self {
            Self::Pay { to, .. } => format!("a payment to {} accounts", to.len()),
            Self::Move { keys, .. } if keys.len() == 1 => "a move of a record".into(),
            Self::Move { keys, .. } => format!("a move of {} records", keys.len()),
        }
    }

    /// Writes the rows in `txn`, and returns their keys.
    pub fn run(&self, txn: &mut Txn, keyspaces: &Keyspaces) -> Result<Vec<(Keyspace, Vec<u8>)>> {
        let mut rows = Vec::new();
        match self {
            Self::Pay { from, to } => {
                if !transfer(txn, &keyspaces.accounts, from, to)? {
                    bail!("the balance of account {from} is too low");
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

    /// The JSON for the writer process.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Pay { from, to } => json!({ "from": from, "to": to }),
            Self::Move { keys, field } => json!({ "keys": keys, "field": field }),
        }
    }

    /// The inverse of [`PlannedTxn::to_json`].
    pub fn from_json(json: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if let Some(from) = json.get("from") {
            let payment = |pair: &Value| Some((text(pair.get(0)?)?, pair.get(1)?.as_u64()?));
            let to = json.get("to")?.as_array()?.iter().map(payment).collect::<Option<_>>()?;
            return Some(Self::Pay { from: text(from)?, to });
        }
        let keys = json.get("keys")?.as_array()?.iter().map(text).collect::<Option<_>>()?;
        Some(Self::Move { keys, field: text(json.get("field")?)? })
    }
}

/// Chooses four transactions, and computes the changes of their rows.
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
        // The receivers are taken from the end, because accounts with low balances, which cannot
        // pay, are there.
        let to = accounts.by_ref().rev().zip(PAYMENTS).collect();
        let keys = records.drain(..each).collect();
        for txn in [PlannedTxn::Pay { from, to }, PlannedTxn::Move { keys, field: fields.index.clone() }] {
            plans.push(dry_run(store, keyspaces, kill_at, txn)?);
        }
    }
    Ok(plans)
}

/// Runs the transaction without committing it, to read the rows before and after.
fn dry_run(store: &Store, keyspaces: &Keyspaces, kill_at: KillPoint, txn: PlannedTxn) -> Result<KillPlan> {
    let before = store.begin()?;
    let mut after = store.begin()?;
    let mut changed = txn.run(&mut after, keyspaces)?;
    changed.sort_by(|(a, left), (b, right)| (a.id(), left).cmp(&(b.id(), right)));
    changed.dedup_by(|(a, left), (b, right)| (a.id(), left) == (b.id(), right));
    let mut rows: Vec<RowChange> = Vec::new();
    for (keyspace, key) in changed {
        let (before, after) = (before.get(&keyspace, &key)?, after.get(&keyspace, &key)?);
        rows.push(RowChange { keyspace: keyspace.name().to_owned(), key, before, after });
    }
    Ok(KillPlan { kill_at, txn, rows })
}

/// All accounts: first those that can pay, then the others, each group in random order.
fn payers_first(snapshot: &Snapshot, keyspaces: &Keyspaces, random: &mut StdRng) -> Result<Vec<String>> {
    let mut accounts = keys(snapshot, &keyspaces.accounts)?;
    accounts.shuffle(random);
    let needed: u64 = PAYMENTS.iter().sum();
    let mut ranked = Vec::with_capacity(accounts.len());
    for account in accounts {
        let can_pay = balance(snapshot.get(&keyspaces.accounts, &account)?.as_deref())? >= needed;
        ranked.push((!can_pay, account));
    }
    ranked.sort_by_key(|(cannot_pay, _)| *cannot_pay);
    Ok(ranked.into_iter().map(|(_, account)| account).collect())
}

fn keys(snapshot: &Snapshot, keyspace: &Keyspace) -> Result<Vec<String>> {
    let rows = snapshot.prefix(keyspace, "");
    rows.map(|row| String::from_utf8(row?.into_parts().0).context("a key of the demo is not UTF-8")).collect()
}
