//! After the crash: the row locks that are left, and reading them away.
//!
//! A lock whose owner is gone is an orphan. Nobody has to clean up: whoever reads a locked row asks the row that the lock
//! names as its primary. Is that committed, the reader carries the commit out (*rolls it forward*); is it not, the
//! reader first makes sure that it never will be, and takes the lock away (*rolls it back*). So reading everything
//! is enough, and the values read are right from the first row on.

use anyhow::{Context as _, Result};
use indicatif::HumanCount;
use percolite::{RowLock, Store, TransactionStatus, TxnStatus};

use super::Seen;
use super::crash::Moment;
use super::dataset::Fields;
use super::jobs::{Plan, Touched};
use super::load::compare;
use super::place::Spaces;
use super::transfers::{sum, total};
use crate::output::{count, say};
use crate::table;

/// Shows the orphan row locks; nothing is resolved by that.
pub fn show(store: &Store, spaces: &Spaces, plans: &[Plan], seen: &mut Seen) -> Result<Vec<RowLock>> {
    let locks = store.row_locks()?.collect::<percolite::Result<Vec<_>>>().context("cannot list the row locks")?;
    say(table::locks(&locks, &table::Names::of(spaces.all())))?;
    say("Pending: the primary is not committed, so these row locks will be taken away.\n\
         Committed: it is, so these rows will be committed too, at the same timestamp.")?;
    // Whoever is past the commit point has nothing locked at the primary any more.
    let locked = |moment| {
        let rows = plans.iter().filter(|plan| plan.moment == moment).map(|plan| plan.rows.len());
        rows.map(|rows| if moment == Moment::BeforeCommitPoint { rows } else { rows - 1 }).sum::<usize>()
    };
    let orphans = locks.iter().filter(|lock| lock.is_orphan).count();
    let pending = locks.iter().filter(|lock| lock.txn_status == TransactionStatus::Pending).count();
    let committed = locks.iter().filter(|lock| matches!(lock.txn_status, TransactionStatus::Committed(_))).count();
    seen.note(
        orphans == locks.len()
            && pending == locked(Moment::BeforeCommitPoint)
            && committed == locked(Moment::AfterCommitPoint),
        format!(
            "{}: {pending} of uncommitted, {committed} of committed transactions",
            count(orphans as u64, "orphan row lock")
        ),
    );
    Ok(locks)
}

/// Reads every row that the children touched, and then all the others, and compares with what must be there.
pub fn read_away(
    store: &Store,
    spaces: &Spaces,
    fields: &Fields,
    plans: &[Plan],
    accounts: [u32; 2],
    seen: &mut Seen,
) -> Result<()> {
    let before = store.stats();
    let snapshot = store.snapshot()?;
    let mut right = true;
    let mut table = Vec::new();
    for plan in plans {
        let (mut done, mut undone) = (true, true);
        for Touched { keyspace, key, before, after } in &plan.rows {
            let [records, index, accounts, _] = spaces.all();
            // The index is scanned, the other rows are read one by one: both must be right.
            let found = if keyspace == index.name() {
                snapshot.range(index, key..=key).next().transpose()?.map(|(_, value)| value)
            } else {
                snapshot.get(if keyspace == records.name() { records } else { accounts }, key)?
            };
            done &= found == *after;
            undone &= found == *before;
        }
        let wanted = match plan.moment {
            Moment::BeforeCommitPoint => undone && !done,
            Moment::AfterCommitPoint => done && !undone,
        };
        let found = match (done, undone) {
            (true, false) => "everything",
            (false, true) => "nothing",
            _ => "a part",
        };
        right &= wanted;
        let rows = plan.rows.len().to_string();
        table.push([plan.job.name(), plan.moment.name().to_owned(), rows, found.to_owned()]);
    }
    say(table::drawn(["transaction", "writer killed", "rows", "of it is there"], table))?;
    seen.note(right, "of commits killed before the commit point nothing is there, of others all");

    let whole = compare(&snapshot, spaces, fields)?;
    let (many, few) = (sum(&snapshot, &spaces.accounts)?, sum(&snapshot, &spaces.hot)?);
    let after = store.stats();
    let forward = after.locks_rolled_forward - before.locks_rolled_forward;
    let back = after.locks_rolled_back - before.locks_rolled_back;
    let left = store.row_locks()?.count();
    say(format_args!("By reading alone: {forward} row locks rolled forward, {back} rolled back, {left} left."))?;
    seen.note(forward > 0, format!("{} rolled forward by reading", count(forward, "row lock")));
    seen.note(back > 0, format!("{} rolled back by reading", count(back, "row lock")));
    seen.note(
        left == 0 && after.orphan_locks_resolved == 0,
        "no row lock left, and no background sweep had a hand in it",
    );
    seen.note(
        whole.is_whole(),
        format!("{} and {} of the index match exactly", count(whole.records, "record"), entries(whole.entries)),
    );
    let sums = [many, few] == accounts.map(|accounts| (total(accounts), accounts));
    seen.note(sums, format!("the sums over all accounts are whole: {} and {}", HumanCount(many.0), HumanCount(few.0)));
    Ok(())
}

/// Asks the store once more what became of the transactions that held locks.
pub fn ask_again(store: &Store, locks: &[RowLock], seen: &mut Seen) -> Result<()> {
    let mut kept = true;
    for lock in locks {
        let expected = match lock.txn_status {
            TransactionStatus::Pending | TransactionStatus::RolledBack => TxnStatus::RolledBack,
            TransactionStatus::Committed(commit_ts) => TxnStatus::Committed(commit_ts),
        };
        kept &= store.txn_status(&lock.primary, lock.start_ts, lock.owner_id)? == expected;
    }
    seen.note(kept, "asked again, every transaction has the fate that the table foretold");
    Ok(())
}

/// A number of entries in words.
pub fn entries(number: u64) -> String {
    format!("{} {}", HumanCount(number), if number == 1 { "entry" } else { "entries" })
}
