//! Leases: grants that outlive their process, and their rows.
//!
//! A row `lock/<name>` in the catalog's keyspace has the holders of the name by lease: the mode, the token, the wall clock at the grant or
//! the last renewal, the time. Rows are changed by ordinary durable transactions, each entry by its token and never by the name alone, so a
//! late release cannot end a later grant. From opening on memory decides, and rows follow.
//!
//! Time is measured in the process that granted the lease by the runtime's clock that does not go back. Opening computes once, by the wall
//! clock, how much is left, between nothing and all of it, and counts that by the other clock from there on. Timestamps of the oracle take
//! no part: they stand still, jump, and lag.
//!
//! While a row is being written its lease does not expire: whether it stands is what the write answers.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::NamedLocks;
use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::locking::{FencedBy, Grant, LockHolder, LockMode};
use crate::store::catalog::LOCK;
use crate::store::{Durability, Store, Txn, TxnOptions};
use crate::timestamp::Timestamp;

/// So many rows are changed by one transaction.
pub(super) const ROWS_AT_ONCE: usize = 256;

/// What the row of a name has for each holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct LeaseRow {
    pub shared: bool,
    pub token: Timestamp,
    /// The wall clock at the grant or the last renewal, in milliseconds since 1970.
    pub since_ms: u64,
    pub time_ms: u64,
    pub pid: u32,
    pub label: Option<String>,
    pub thread: String,
    pub why: Option<String>,
}

impl LeaseRow {
    pub(super) fn new(locks: &NamedLocks, grant: &Grant, time: Duration) -> Self {
        let clock = locks.clock();
        let holder = clock.holder(grant);
        Self {
            shared: grant.mode == LockMode::Shared,
            token: grant.token(),
            since_ms: if mutated!(LeaseOnTimestamps) { grant.token().millis() } else { locks.runtime.unix_millis() },
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            pid: holder.pid,
            label: holder.label,
            thread: holder.thread,
            why: grant.owner.why.as_deref().map(Into::into),
        }
    }

    pub(super) fn mode(&self) -> LockMode {
        if self.shared { LockMode::Shared } else { LockMode::Exclusive }
    }

    pub(super) fn holder(&self) -> LockHolder {
        LockHolder { pid: self.pid, label: self.label.clone(), thread: self.thread.clone() }
    }

    /// How much of it is left as the wall clock says.
    pub(super) fn left(&self, unix_millis: u64) -> Duration {
        let ends = self.since_ms.saturating_add(self.time_ms);
        Duration::from_millis(ends.saturating_sub(unix_millis).min(self.time_ms))
    }
}

/// What a row says.
pub(in crate::store) fn read_leases(key: &[u8], value: &[u8]) -> Result<(String, Vec<LeaseRow>)> {
    let name = key.strip_prefix(LOCK.as_bytes()).unwrap_or(key);
    let read = codec::read(value).map_err(|why| {
        Error::from(ErrorKind::Corruption(format!("the row of the leases of lock \"{}\": {why}", name.escape_ascii())))
    });
    let name = str::from_utf8(name).map_err(|_| {
        Error::from(ErrorKind::Corruption(format!(
            "the leases of a lock have a name that is none: {}",
            name.escape_ascii()
        )))
    });
    read.and_then(|leases| Ok((name?.to_owned(), leases)))
}

fn written(leases: &[LeaseRow]) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::write(&leases, &mut bytes);
    bytes
}

pub(in crate::store) fn lock_key(name: &str) -> String {
    format!("{LOCK}{name}")
}

impl Store {
    /// Changes the row of a name, durably: takes out what has one of the tokens `gone`, and puts `put` in, with the time that it had
    /// before if it `keeps_time`. The answer is when.
    pub(super) fn change_leases(
        &self,
        name: &str,
        gone: &[Timestamp],
        (put, keeps_time): (Option<&LeaseRow>, bool),
        fence: Option<&Arc<Grant>>,
    ) -> Result<Timestamp> {
        let (catalog, key) = (self.catalog(), lock_key(name));
        let durability = if mutated!(LeaseRowLater) { Durability::Buffered } else { Durability::Sync };
        repeated(|| {
            let mut txn = self.begin_with(TxnOptions { durability: Some(durability), ..of_leases() })?;
            if let Some(grant) = fence {
                txn.own.fence(FencedBy { grant: Arc::clone(grant), durable: true, releases: None });
            }
            let before = self.leases_of(&mut txn, name)?;
            let mut leases = before.clone().unwrap_or_default();
            let old = leases.iter().find(|lease| put.is_some_and(|put| put.token == lease.token));
            let time_ms = old.filter(|_| keeps_time).map(|old| old.time_ms);
            leases.retain(|lease| !gone.contains(&lease.token) && put.is_none_or(|put| put.token != lease.token));
            leases.extend(put.map(|put| LeaseRow { time_ms: time_ms.unwrap_or(put.time_ms), ..put.clone() }));
            if !leases.is_empty() {
                txn.put(&catalog, &key, written(&leases))?;
            } else if before.is_some() {
                txn.delete(&catalog, &key)?;
            } else {
                // Another transaction has removed it; that may not be durable yet.
                let seen = txn.read_ts();
                return txn.roll_back().map(|()| seen);
            }
            txn.commit().map(|commit| commit.ts)
        })
    }

    /// What the row of a name has, if there is one. A damaged row closes its name.
    fn leases_of(&self, txn: &mut Txn, name: &str) -> Result<Option<Vec<LeaseRow>>> {
        let key = lock_key(name);
        let row = txn.get_for_update(&self.catalog(), &key);
        let leases = row.and_then(|row| row.map(|row| Ok(read_leases(key.as_bytes(), &row)?.1)).transpose());
        if let (Err(why), Some(locks)) = (&leases, &self.inner.locks)
            && matches!(why.kind(), ErrorKind::Corruption(_))
        {
            locks.heads.damaged(name, &why.to_string());
        }
        leases
    }

    /// Removes the rows of leases that are over, durably. A damaged one does not keep the others from being removed; it stays until
    /// [`Store::force_unlock`].
    pub(super) fn remove_leases(&self, over: &[Arc<Grant>]) -> Result<()> {
        if let Some(embedded) = self.inner.embedded.as_ref().filter(|_| over.iter().any(|grant| grant.under_way() > 0))
        {
            // Their own rows may be among what was decided before they ended.
            embedded.pipeline().pass()?;
        }
        let mut damaged = Ok(());
        for some in over.chunks(ROWS_AT_ONCE) {
            damaged = repeated(|| self.remove_together(some))?.and(damaged);
            crash_point!(LockReleased);
            some.iter().for_each(|grant| grant.set_row(false));
        }
        damaged
    }

    /// Returns what is damaged among them, once the others are gone.
    fn remove_together(&self, over: &[Arc<Grant>]) -> Result<Result<()>> {
        let (catalog, mut damaged) = (self.catalog(), Ok(()));
        let mut txn = self.begin_with(of_leases())?;
        for grant in over {
            let key = lock_key(&grant.name);
            let mut leases = match self.leases_of(&mut txn, &grant.name) {
                Ok(Some(leases)) => leases,
                Ok(None) => continue,
                Err(why) if matches!(why.kind(), ErrorKind::Corruption(_)) => {
                    damaged = Err(why);
                    continue;
                }
                Err(why) => return Err(why),
            };
            leases.retain(|lease| lease.token != grant.token());
            if leases.is_empty() {
                txn.delete(&catalog, &key)?;
            } else {
                txn.put(&catalog, &key, written(&leases))?;
            }
        }
        txn.commit().map(|_| damaged)
    }

    /// Removes the damaged row of a name, durably.
    pub(super) fn remove_damaged(&self, name: &str) -> Result<()> {
        let mut txn = self.begin_with(of_leases())?;
        txn.delete(&self.catalog(), lock_key(name))?;
        txn.commit().map(drop)
    }

    /// Gives a lease `time` from now on, durably; without one as long as it had, even if another renewal changes that at this moment.
    pub(crate) fn renew_lease(&self, locks: &NamedLocks, grant: &Arc<Grant>, time: Option<Duration>) -> Result<()> {
        if !grant.is_settled() {
            let what =
                format!("lock {} has no token yet, because a conversion was given up: call it again", grant.target());
            return Err(Error::invalid(what));
        }
        let now = locks.runtime.elapsed();
        // From here on it does not expire, but it may have ended before.
        let begun = grant.with_lease(|lease| {
            let stands = lease.writing > 0 || lease.ends > now;
            lease.writing += u32::from(stands);
            stands
        });
        let lost = |reason| ErrorKind::LockLost(Box::new(grant.loss(reason))).into();
        match begun {
            None => return Err(Error::invalid(format!("lock {} was taken without a lease", grant.target()))),
            Some(false) => return Err(lost(grant.lost(now).unwrap_or(crate::LostReason::Expired))),
            Some(true) => {}
        }
        let as_it_is = grant.lease().map(|lease| lease.time).unwrap_or_default();
        let row = LeaseRow::new(locks, grant, time.unwrap_or(as_it_is));
        let renewed = match grant.lost(now) {
            Some(reason) => Err(lost(reason)),
            None => self.change_leases(&grant.name, &[], (Some(&row), time.is_none()), Some(grant)),
        };
        let must_look = grant.with_lease(|lease| {
            let (before, written) = (lease.ends, locks.runtime.elapsed());
            lease.writing -= 1;
            // Of two that were asked for at once the one that was written last counts.
            let is_last = renewed.as_ref().is_ok_and(|commit_ts| *commit_ts > lease.asked);
            match time.filter(|_| renewed.is_ok()) {
                Some(_) if !is_last => {}
                Some(time) => (lease.time, lease.ends, lease.since_ms) = (time, now.saturating_add(time), row.since_ms),
                None if renewed.is_ok() => {
                    lease.ends = lease.ends.max(now.saturating_add(lease.time));
                    lease.since_ms = lease.since_ms.max(row.since_ms);
                }
                None => {}
            }
            if let (Some(_), Ok(commit_ts)) = (time, &renewed) {
                lease.asked = lease.asked.max(*commit_ts);
            }
            before <= written || lease.ends < before
        });
        crash_point!(LockRenewed if renewed.is_ok());
        if must_look == Some(true) {
            locks.heads.lease_written(grant);
        }
        locks.keeper.look_again(grant);
        renewed.map(drop)
    }
}

/// Makes a change again that another one of the same rows has got in the way of: at its commit or, where rows are written early, before.
fn repeated<T>(mut change: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match change() {
            Err(why) if why.is_retryable() => {}
            done => return done,
        }
    }
}

pub(super) fn of_leases() -> TxnOptions {
    TxnOptions { durability: Some(Durability::Sync), ..TxnOptions::labelled("percolite lease") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> LeaseRow {
        LeaseRow {
            shared: true,
            token: Timestamp::from_u64(0x0665_0000_0000_0001),
            since_ms: 1_763_726_400_123,
            time_ms: 60_000,
            pid: 4242,
            label: Some("worker".into()),
            thread: "main".into(),
            why: None,
        }
    }

    /// Never edit a line: a new format gets lines of its own.
    #[test]
    fn golden_bytes_of_leases() {
        let bytes = written(&[row()]);
        let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        assert_eq!(hex, "010101fd0100000000006506fd7b1a49a69a010000fb60eafb92100106776f726b6572046d61696e00");
        assert_eq!(read_leases(b"lock/nightly", &bytes).unwrap(), ("nightly".into(), vec![row()]));
    }

    #[test]
    fn what_is_left_is_between_nothing_and_all_of_it_whatever_the_clock_says() {
        let row = row();
        for (now, left) in [
            (row.since_ms, 60_000),
            (row.since_ms + 15_000, 45_000),
            (row.since_ms + 60_000, 0),
            (row.since_ms - 86_400_000, 60_000),
            (row.since_ms + 86_400_000, 0),
            (0, 60_000),
            (u64::MAX, 0),
        ] {
            assert_eq!(row.left(now), Duration::from_millis(left), "{now}");
        }
    }

    /// The transaction that writes a lease removes what excludes it, so only this test can have two.
    #[test]
    fn of_two_leases_that_exclude_each_other_the_one_with_the_greatest_token_holds_the_name() {
        let memory = crate::engine::sim::SimStorage::new();
        let store = Store::builder().open_sim(&memory).unwrap();
        let tokens = [7, 9, 8].map(Timestamp::from_u64);
        let since_ms = crate::runtime::Runtime::unix_millis(&*store.inner.runtime);
        for token in tokens {
            let lease = LeaseRow { shared: false, token, since_ms, ..row() };
            store.change_leases("name", &[], (Some(&lease), false), None).unwrap();
        }
        store.close().unwrap();
        let store = Store::builder().open_sim(&memory).unwrap();
        let held: Vec<_> = store.lock_holders("name").unwrap().iter().map(|entry| entry.token).collect();
        assert_eq!(held, [Some(tokens[1])]);
        assert!(store.force_unlock("name", tokens[1]).unwrap());
        // What is left of the others goes before the next holder.
        drop(store.lock("name").unwrap());
        store.close().unwrap();
        assert!(Store::builder().open_sim(&memory).unwrap().lock_table().unwrap().entries.is_empty());
    }

    #[test]
    fn damaged_rows_are_errors() {
        let whole = written(&[row(), row()]);
        for cut in 0..whole.len() {
            assert!(read_leases(b"lock/nightly", &whole[..cut]).is_err(), "{cut}");
        }
        assert!(read_leases(b"lock/\xff", &whole).is_err());
    }
}
