//! After the crash: the row locks that are left, and reading them away.
//!
//! A lock whose owner is gone is an orphan. Nobody has to clean up: whoever reads a locked row asks the row that the lock
//! names as its primary. Is that committed, the reader carries the commit out (*rolls it forward*); is it not, the
//! reader first makes sure that it never will be, and takes the lock away (*rolls it back*). So reading everything
//! is enough, and the values read are right from the first row on.

use anyhow::{Context as _, Result};
use indicatif::HumanCount;
use percolite::{RowLock, Store, TransactionStatus, TxnStatus};

use super::Checks;
use super::dataset::FieldChoice;
use super::killed_writer::KillPoint;
use super::load::compare;
use super::planned_txns::{KillPlan, RowChange};
use super::store::Keyspaces;
use super::transfers::{sum, total};
use crate::output::{count, print_line};
use crate::table;

/// Shows the orphan row locks; nothing is resolved by that.
pub fn print_locks(
    store: &Store,
    keyspaces: &Keyspaces,
    plans: &[KillPlan],
    checks: &mut Checks,
) -> Result<Vec<RowLock>> {
    let locks = store.row_locks()?.collect::<percolite::Result<Vec<_>>>().context("cannot list the row locks")?;
    print_line(table::row_lock_table(&locks, &table::KeyspaceNames::of(keyspaces.all())))?;
    print_line(
        "Pending: the primary is not committed, so these row locks will be taken away.\n\
         Committed: it is, so these rows will be committed too, at the same timestamp.",
    )?;
    // Whoever is past the commit point has nothing locked at the primary any more.
    let locked = |kill_at| {
        let rows = plans.iter().filter(|plan| plan.kill_at == kill_at).map(|plan| plan.rows.len());
        rows.map(|rows| if kill_at == KillPoint::BeforeCommitPoint { rows } else { rows - 1 }).sum::<usize>()
    };
    let orphans = locks.iter().filter(|lock| lock.is_orphan).count();
    let pending = locks.iter().filter(|lock| lock.txn_status == TransactionStatus::Pending).count();
    let committed = locks.iter().filter(|lock| matches!(lock.txn_status, TransactionStatus::Committed(_))).count();
    checks.check(
        orphans == locks.len()
            && pending == locked(KillPoint::BeforeCommitPoint)
            && committed == locked(KillPoint::AfterCommitPoint),
        format!(
            "{}: {pending} of uncommitted, {committed} of committed transactions",
            count(orphans as u64, "orphan row lock")
        ),
    );
    Ok(locks)
}

/// Reads every row that the children touched, and then all the others, and compares with what must be there.
pub fn resolve_by_reading(
    store: &Store,
    keyspaces: &Keyspaces,
    fields: &FieldChoice,
    plans: &[KillPlan],
    accounts: [u32; 2],
    checks: &mut Checks,
) -> Result<()> {
    let before = store.stats();
    let snapshot = store.snapshot()?;
    let mut right = true;
    let mut table = Vec::new();
    for plan in plans {
        let (mut done, mut undone) = (true, true);
        for RowChange { keyspace, key, before, after } in &plan.rows {
            let [records, index, accounts, _] = keyspaces.all();
            // The index is scanned, the other rows are read one by one: both must be right.
            let found = if keyspace == index.name() {
                snapshot.range(index, key..=key).next().transpose()?.map(|(_, value)| value)
            } else {
                snapshot.get(if keyspace == records.name() { records } else { accounts }, key)?
            };
            done &= found == *after;
            undone &= found == *before;
        }
        let wanted = match plan.kill_at {
            KillPoint::BeforeCommitPoint => undone && !done,
            KillPoint::AfterCommitPoint => done && !undone,
        };
        let found = match (done, undone) {
            (true, false) => "everything",
            (false, true) => "nothing",
            _ => "a part",
        };
        right &= wanted;
        let rows = plan.rows.len().to_string();
        table.push([plan.txn.name(), plan.kill_at.name().to_owned(), rows, found.to_owned()]);
    }
    print_line(table::drawn_text_table(["transaction", "writer killed", "rows", "of it is there"], table))?;
    checks.check(right, "of commits killed before the commit point nothing is there, of others all");

    let whole = compare(&snapshot, keyspaces, fields)?;
    let (many, few) = (sum(&snapshot, &keyspaces.accounts)?, sum(&snapshot, &keyspaces.hot)?);
    let after = store.stats();
    let forward = after.locks_rolled_forward - before.locks_rolled_forward;
    let back = after.locks_rolled_back - before.locks_rolled_back;
    let left = store.row_locks()?.count();
    print_line(format_args!("By reading alone: {forward} row locks rolled forward, {back} rolled back, {left} left."))?;
    checks.check(forward > 0, format!("{} rolled forward by reading", count(forward, "row lock")));
    checks.check(back > 0, format!("{} rolled back by reading", count(back, "row lock")));
    checks.check(
        left == 0 && after.orphan_locks_resolved == 0,
        "no row lock left, and no background sweep had a hand in it",
    );
    checks.check(
        whole.matches(),
        format!("{} and {} of the index match exactly", count(whole.records, "record"), entries(whole.entries)),
    );
    let sums = [many, few] == accounts.map(|accounts| (total(accounts), accounts));
    checks
        .check(sums, format!("the sums over all accounts are whole: {} and {}", HumanCount(many.0), HumanCount(few.0)));
    Ok(())
}

/// Asks the store once more what became of the transactions that held locks.
pub fn recheck_status(store: &Store, locks: &[RowLock], checks: &mut Checks) -> Result<()> {
    let mut kept = true;
    for lock in locks {
        let expected = match lock.txn_status {
            TransactionStatus::Pending | TransactionStatus::RolledBack => TxnStatus::RolledBack,
            TransactionStatus::Committed(commit_ts) => TxnStatus::Committed(commit_ts),
        };
        kept &= store.txn_status(&lock.primary, lock.start_ts, lock.owner_id)? == expected;
    }
    checks.check(kept, "asked again, every transaction has the fate that the table foretold");
    Ok(())
}

/// A number of entries in words.
pub fn entries(number: u64) -> String {
    format!("{} {}", HumanCount(number), if number == 1 { "entry" } else { "entries" })
}
