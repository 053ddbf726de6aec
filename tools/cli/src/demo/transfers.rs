//! Transfers between accounts, by many threads.
//!
//! A transfer reads and writes two accounts. Concurrent transfers with a common account conflict:
//! the first to commit wins, and `transact` retries the other. No transfer creates or destroys
//! money, so the total of all accounts is the same in every snapshot; an auditor checks that
//! continuously. Every commit is durable when it returns, and one sync of the WAL is shared by all
//! commits that wait for it (group commit).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use percolite::{Keyspace, Snapshot, Store, TxnOptions};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const OPENING_BALANCE: u64 = 1000;
const ACCOUNTS_PER_TXN: u32 = 500;
const AUDIT_INTERVAL: Duration = Duration::from_millis(20);

/// A round of transfers.
pub struct Round<'a> {
    /// The keyspace of the accounts.
    pub keyspace: &'a Keyspace,
    /// The number of accounts.
    pub accounts: u32,
    /// The number of threads.
    pub threads: u32,
    /// How long the round lasts.
    pub duration: Duration,
    /// The seed of the random choices.
    pub seed: u64,
    /// Setting this ends the round early; a thread sets it when it fails.
    pub stop: &'a AtomicBool,
}

/// The result of a round.
pub struct Outcome {
    /// Committed transfers.
    pub commits: u64,
    /// How long the round took.
    pub elapsed: Duration,
    /// Attempts that had a conflict.
    pub conflicts: u64,
    /// Attempts of `transact` after the first.
    pub retries: u64,
    /// Syncs of the WAL.
    pub syncs: u64,
    /// Audited snapshots, the one at the end included.
    pub audits: u64,
    /// Audits with a wrong total.
    pub failed_audits: u64,
}

/// The key of an account.
pub fn account(number: u32) -> String {
    format!("{number:04}")
}

/// The total of all balances.
pub fn total(accounts: u32) -> u64 {
    u64::from(accounts) * OPENING_BALANCE
}

/// The balance of an account, from its stored value.
pub fn balance(stored: Option<&[u8]>) -> Result<u64> {
    let stored = stored.ok_or_else(|| anyhow!("an account is missing"))?;
    let text = String::from_utf8_lossy(stored);
    text.parse().with_context(|| format!("a balance is not a number: {text:?}"))
}

/// The sum of all balances, and the number of accounts.
pub fn sum(snapshot: &Snapshot, keyspace: &Keyspace) -> Result<(u64, u32)> {
    let (mut sum, mut accounts) = (0, 0);
    for row in snapshot.prefix(keyspace, "") {
        sum += balance(Some(row?.value()))?;
        accounts += 1;
    }
    Ok((sum, accounts))
}

/// Creates the accounts.
pub fn open_accounts(store: &Store, keyspace: &Keyspace, accounts: u32) -> Result<()> {
    let numbers: Vec<u32> = (0..accounts).collect();
    for chunk in numbers.chunks(ACCOUNTS_PER_TXN as usize) {
        store.transact(|txn| {
            chunk.iter().try_for_each(|number| txn.insert(keyspace, account(*number), OPENING_BALANCE.to_string()))
        })?;
    }
    Ok(())
}

/// Runs a round. The first error of a thread ends the round.
pub fn run(store: &Store, round: &Round<'_>) -> Result<Outcome> {
    let before = store.stats();
    let started = Instant::now();
    let stop = round.stop;
    let commits = AtomicU64::new(0);
    let (mut audits, mut failed_audits) = (0, 0);
    let mut audit = || {
        let snapshot = store.snapshot()?.with_label("audit");
        let is_correct = sum(&snapshot, round.keyspace)? == (total(round.accounts), round.accounts);
        audits += 1;
        failed_audits += u64::from(!is_correct);
        Ok::<_, anyhow::Error>(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..round.threads)
            .map(|thread| {
                let commits = &commits;
                scope.spawn(move || {
                    let result = transfer_until_stopped(store, round, u64::from(thread), commits);
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        let mut audited = Ok(());
        while started.elapsed() < round.duration && !stop.load(Ordering::Relaxed) && audited.is_ok() {
            audited = audit();
            std::thread::sleep(AUDIT_INTERVAL.min(round.duration.saturating_sub(started.elapsed())));
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a transfer thread has panicked"))??;
        }
        audited
    })?;
    let elapsed = started.elapsed();
    audit()?;
    let after = store.stats();
    Ok(Outcome {
        commits: commits.into_inner(),
        elapsed,
        conflicts: after.conflicts - before.conflicts,
        retries: after.retries - before.retries,
        syncs: after.wal_syncs - before.wal_syncs,
        audits,
        failed_audits,
    })
}

fn transfer_until_stopped(store: &Store, round: &Round<'_>, thread: u64, commits: &AtomicU64) -> Result<()> {
    if round.accounts < 2 {
        bail!("a transfer needs two accounts");
    }
    let mut random = StdRng::seed_from_u64(round.seed.wrapping_add(thread));
    while !round.stop.load(Ordering::Relaxed) {
        let from = random.random_range(0..round.accounts);
        let to = (from + random.random_range(1..round.accounts)) % round.accounts;
        let amount = random.random_range(1..=10);
        let work = |txn: &mut percolite::Txn| transfer(txn, round.keyspace, &account(from), &[(account(to), amount)]);
        let transferred = store.transact_with(TxnOptions::with_label("transfer"), work)?;
        commits.fetch_add(u64::from(transferred), Ordering::Relaxed);
    }
    Ok(())
}

/// Transfers money from one account to others. Writes nothing and returns false if the balance is
/// too low.
pub fn transfer(txn: &mut percolite::Txn, keyspace: &Keyspace, from: &str, to: &[(String, u64)]) -> Result<bool> {
    let needed: u64 = to.iter().map(|(_, amount)| amount).sum();
    let Some(left) = balance(txn.get(keyspace, from)?.as_deref())?.checked_sub(needed) else { return Ok(false) };
    txn.put(keyspace, from, left.to_string())?;
    for (to, amount) in to {
        let new_balance = balance(txn.get(keyspace, to)?.as_deref())? + amount;
        txn.put(keyspace, to, new_balance.to_string())?;
    }
    Ok(true)
}
