//! Transfers between accounts, by many threads at once.
//!
//! A transfer reads two accounts and writes both. Transfers that touch the same account at the same time conflict; the store
//! lets one pass, and `transact` runs the other again. No transfer makes or destroys money, so the sum over all accounts
//! is the same in every snapshot, whenever it is taken; an auditor takes them all the while. Every commit is durable
//! before it is answered; one sync of the log serves all commits that wait for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use percolite::{Keyspace, Snapshot, Store, TxnOptions};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Opened with this.
const OPENING_BALANCE: u64 = 1000;
const ACCOUNTS_IN_A_TXN: u32 = 500;
const AUDIT_EVERY: Duration = Duration::from_millis(20);

/// Many threads, some accounts, some time.
pub struct Round<'a> {
    /// Where the accounts are.
    pub keyspace: &'a Keyspace,
    /// How many.
    pub accounts: u32,
    /// Threads that transfer.
    pub threads: u32,
    /// How long.
    pub duration: Duration,
    /// Where the choices come from.
    pub seed: u64,
    /// Set by whoever wants it to end earlier, and by a thread that fails.
    pub stop: &'a AtomicBool,
}

/// What came of it.
pub struct Outcome {
    /// Transfers made.
    pub commits: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Commits refused, because another came first.
    pub conflicts: u64,
    /// Transfers run again.
    pub retries: u64,
    /// Syncs of the log.
    pub syncs: u64,
    /// Snapshots taken while it ran, the one at the end included.
    pub audits: u64,
    /// Those of them whose sum was wrong.
    pub failed_audits: u64,
}

/// An account's key.
pub fn account(number: u32) -> String {
    format!("{number:04}")
}

/// What all accounts have together.
pub fn total(accounts: u32) -> u64 {
    u64::from(accounts) * OPENING_BALANCE
}

/// An account's balance, from what is stored.
pub fn balance(stored: Option<Vec<u8>>) -> Result<u64> {
    let stored = stored.ok_or_else(|| anyhow!("an account is missing"))?;
    let text = String::from_utf8_lossy(&stored);
    text.parse().with_context(|| format!("a balance is no number: {text:?}"))
}

/// The sum over all accounts, and how many there are.
pub fn sum(snapshot: &Snapshot, keyspace: &Keyspace) -> Result<(u64, u32)> {
    let (mut sum, mut accounts) = (0, 0);
    for row in snapshot.prefix(keyspace, "") {
        let (_, stored) = row?;
        sum += balance(Some(stored))?;
        accounts += 1;
    }
    Ok((sum, accounts))
}

/// Creates the accounts.
pub fn open_accounts(store: &Store, keyspace: &Keyspace, accounts: u32) -> Result<()> {
    let numbers: Vec<u32> = (0..accounts).collect();
    for some in numbers.chunks(ACCOUNTS_IN_A_TXN as usize) {
        store.transact(|txn| {
            some.iter().try_for_each(|number| txn.insert(keyspace, account(*number), OPENING_BALANCE.to_string()))
        })?;
    }
    Ok(())
}

/// Runs a round. The first error of any thread ends it.
pub fn run(store: &Store, round: &Round<'_>) -> Result<Outcome> {
    let before = store.stats();
    let began = Instant::now();
    let stop = round.stop;
    let commits = AtomicU64::new(0);
    let (mut audits, mut wrong) = (0, 0);
    let mut audit = || {
        let whole =
            sum(&store.snapshot()?.with_label("audit"), round.keyspace)? == (total(round.accounts), round.accounts);
        audits += 1;
        wrong += u64::from(!whole);
        Ok::<_, anyhow::Error>(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..round.threads)
            .map(|thread| {
                let commits = &commits;
                scope.spawn(move || {
                    let done = transfer_until(store, round, u64::from(thread), commits);
                    if done.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        let mut audited = Ok(());
        while began.elapsed() < round.duration && !stop.load(Ordering::Relaxed) && audited.is_ok() {
            audited = audit();
            std::thread::sleep(AUDIT_EVERY.min(round.duration.saturating_sub(began.elapsed())));
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread that transfers has panicked"))??;
        }
        audited
    })?;
    let took = began.elapsed();
    audit()?;
    let after = store.stats();
    Ok(Outcome {
        commits: commits.into_inner(),
        elapsed: took,
        conflicts: after.conflicts - before.conflicts,
        retries: after.retries - before.retries,
        syncs: after.wal_syncs - before.wal_syncs,
        audits,
        failed_audits: wrong,
    })
}

fn transfer_until(store: &Store, round: &Round<'_>, thread: u64, commits: &AtomicU64) -> Result<()> {
    if round.accounts < 2 {
        bail!("a transfer needs two accounts");
    }
    let mut random = StdRng::seed_from_u64(round.seed.wrapping_add(thread));
    while !round.stop.load(Ordering::Relaxed) {
        let from = random.random_range(0..round.accounts);
        let to = (from + random.random_range(1..round.accounts)) % round.accounts;
        let amount = random.random_range(1..=10);
        let work = |txn: &mut percolite::Txn| transfer(txn, round.keyspace, &account(from), &[(account(to), amount)]);
        let moved = store.transact_with(TxnOptions::with_label("transfer"), work)?;
        commits.fetch_add(u64::from(moved), Ordering::Relaxed);
    }
    Ok(())
}

/// Moves money from one account to others, all or nothing; the answer is whether there was enough.
pub fn transfer(txn: &mut percolite::Txn, keyspace: &Keyspace, from: &str, to: &[(String, u64)]) -> Result<bool> {
    let needed: u64 = to.iter().map(|(_, amount)| amount).sum();
    let Some(left) = balance(txn.get(keyspace, from)?)?.checked_sub(needed) else { return Ok(false) };
    txn.put(keyspace, from, left.to_string())?;
    for (to, amount) in to {
        let grown = balance(txn.get(keyspace, to)?)? + amount;
        txn.put(keyspace, to, grown.to_string())?;
    }
    Ok(true)
}
