//! After the crash: shows the orphan locks, and resolves them by reading.
//!
//! A lock whose owner's process has ended is an orphan. No separate recovery is needed. A reader of
//! the locked row reads the row that the lock names as its primary. If the transaction is committed
//! there, the reader commits the locked row, too: it *rolls the lock forward*. If not, the reader
//! first makes sure that the transaction can never commit, then removes the lock: it *rolls the
//! lock back*. So reading all rows resolves all locks, and every value read is correct from the
//! first row on.

use anyhow::{Context as _, Result};
use indicatif::HumanCount;
use percolite::{RowLock, Store, TxnStatus};

use super::Checks;
use super::dataset::FieldChoice;
use super::killed_writer::KillPoint;
use super::load::compare;
use super::planned_txns::{KillPlan, RowChange};
use super::store::Keyspaces;
use super::transfers::{sum, total};
use crate::output::{count, print_line};
use crate::table;

/// Prints the orphan row locks, without resolving them.
pub fn print_locks(
    store: &Store,
    keyspaces: &Keyspaces,
    plans: &[KillPlan],
    checks: &mut Checks,
) -> Result<Vec<RowLock>> {
    let locks = store.row_locks()?.collect::<percolite::Result<Vec<_>>>().context("cannot list the row locks")?;
    print_line(table::row_lock_table(&locks, &table::KeyspaceNames::of(keyspaces.all())))?;
    print_line(
        "Pending: the primary is not committed, so the row locks will be rolled back.\n\
         Committed: it is, so they will be rolled forward, with the same timestamp.",
    )?;
    // The number of locks that the writers left: one on each row, but none on the primary if the
    // writer was killed after the commit point.
    let locked = |kill_at| {
        let rows = plans.iter().filter(|plan| plan.kill_at == kill_at).map(|plan| plan.rows.len());
        rows.map(|rows| if kill_at == KillPoint::BeforeCommitPoint { rows } else { rows - 1 }).sum::<usize>()
    };
    let orphans = locks.iter().filter(|lock| lock.is_orphan).count();
    let pending = locks.iter().filter(|lock| lock.txn_status == TxnStatus::Pending).count();
    let committed = locks.iter().filter(|lock| matches!(lock.txn_status, TxnStatus::Committed(_))).count();
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

/// Reads every row that the writers changed, then all other rows, and checks their values.
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
    let mut all_as_expected = true;
    let mut table = Vec::new();
    for plan in plans {
        let (mut all_new, mut all_old) = (true, true);
        for RowChange { keyspace, key, before, after } in &plan.rows {
            let [records, index, accounts, _] = keyspaces.all();
            // Index rows are read by a scan, all others by a point read, because both kinds of
            // reads must resolve locks.
            let found = if keyspace == index.name() {
                snapshot.range(index, key..=key).next().transpose()?.map(|row| row.into_parts().1)
            } else {
                snapshot.get(if keyspace == records.name() { records } else { accounts }, key)?
            };
            all_new &= found == *after;
            all_old &= found == *before;
        }
        all_as_expected &= match plan.kill_at {
            KillPoint::BeforeCommitPoint => all_old && !all_new,
            KillPoint::AfterCommitPoint => all_new && !all_old,
        };
        let written = match (all_new, all_old) {
            (true, false) => "all",
            (false, true) => "none",
            _ => "some",
        };
        let rows = plan.rows.len().to_string();
        table.push([plan.txn.name(), plan.kill_at.name().to_owned(), rows, written.to_owned()]);
    }
    print_line(table::drawn_text_table(["transaction", "writer killed", "rows", "rows written"], table))?;
    checks.check(
        all_as_expected,
        "transactions killed before the commit point have written nothing, the others everything",
    );

    let compared = compare(&snapshot, keyspaces, fields)?;
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
        "no row lock remains, and the background has resolved none",
    );
    let (records, entries) = (count(compared.records, "record"), entries(compared.entries));
    checks.check(compared.matches(), format!("{records} and {entries} of the index match exactly"));
    let totals_are_correct = [many, few] == accounts.map(|accounts| (total(accounts), accounts));
    checks.check(
        totals_are_correct,
        format!("the totals of both groups of accounts are correct: {} and {}", HumanCount(many.0), HumanCount(few.0)),
    );
    Ok(())
}

/// Checks the transactions of these locks after the locks were resolved: one that was pending must
/// be rolled back, and any other must have the status that its locks showed.
pub fn recheck_status(store: &Store, locks: &[RowLock], checks: &mut Checks) -> Result<()> {
    let mut as_expected = true;
    for lock in locks {
        let expected = match lock.txn_status {
            TxnStatus::Pending | TxnStatus::RolledBack => TxnStatus::RolledBack,
            TxnStatus::Committed(commit_ts) => TxnStatus::Committed(commit_ts),
        };
        as_expected &= store.txn_status(&lock.primary, lock.start_ts, lock.owner_id)? == Some(expected);
    }
    checks.check(as_expected, "every transaction has the status that its locks had shown");
    Ok(())
}

/// `1 entry`, `2 entries`.
pub fn entries(number: u64) -> String {
    format!("{} {}", HumanCount(number), if number == 1 { "entry" } else { "entries" })
}
