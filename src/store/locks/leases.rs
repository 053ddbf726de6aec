//! Leases: grants that outlive their process, and their rows.
//!
//! A row `lock/<name>` in the catalog's keyspace says who holds the name by a lease: the mode, the token, the wall clock at the grant or
//! the last renewal, the time. Rows are changed by ordinary durable transactions, each entry by its token and never by the name alone, so a
//! late release cannot end a later grant. From opening on memory decides, and rows follow.
//!
//! Time is measured in the process that granted the lease by the runtime's clock that does not go back. Opening computes once, by the wall
//! clock, how much is left, between nothing and all of it, and counts that by the other clock from there on. Timestamps of the oracle take
//! no part: they stand still, jump, and fall behind.
//!
//! While a row is being written its lease does not expire: whether it stands is what the write answers.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::NamedLocks;
use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::locking::{FencedBy, Grant, Lease, LockHolder, LockMode};
use crate::store::catalog::LOCK;
use crate::store::{Durability, Store, TxnOptions};
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
            since_ms: if mutated!(LeaseOnTimestamps) { grant.token().millis() } else { clock.unix_millis },
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
    /// Changes the row of a name, durably: takes out what has one of the tokens `gone`, and puts in what `put` makes at each attempt.
    pub(super) fn change_leases(
        &self,
        name: &str,
        gone: &[Timestamp],
        put: Option<&dyn Fn() -> LeaseRow>,
        fence: Option<&Arc<Grant>>,
    ) -> Result<Option<Written>> {
        let (catalog, key) = (self.catalog(), lock_key(name));
        let durability = if mutated!(LeaseRowLater) { Durability::Buffered } else { Durability::Sync };
        loop {
            let mut txn = self.begin_with(TxnOptions { durability: Some(durability), ..of_leases() })?;
            if let Some(grant) = fence {
                txn.own.fence(FencedBy { grant: Arc::clone(grant), durable: false, releases: None });
            }
            let before = txn.get_for_update(&catalog, &key)?;
            let at = self.inner.runtime.elapsed();
            let put = put.map(|put| put());
            let mut leases = match &before {
                Some(value) => read_leases(key.as_bytes(), value)?.1,
                None => Vec::new(),
            };
            leases.retain(|lease| {
                !gone.contains(&lease.token) && put.as_ref().is_none_or(|put| put.token != lease.token)
            });
            leases.extend(put.clone());
            if !leases.is_empty() {
                txn.put(&catalog, &key, written(&leases))?;
            } else if before.is_some() {
                txn.delete(&catalog, &key)?;
            } else {
                // Somebody else has removed it; that may not be durable yet.
                return txn.roll_back().map(|()| None);
            }
            match txn.commit() {
                Err(why) if why.is_retryable() => {}
                Err(why) => return Err(why),
                Ok(commit) => return Ok(put.map(|row| Written { row, at, commit_ts: commit.ts })),
            }
        }
    }

    /// Removes the rows of leases that are over, durably. A damaged one keeps none of the others.
    pub(super) fn remove_leases(&self, over: &[Arc<Grant>]) -> Result<()> {
        let mut damaged = Ok(());
        for some in over.chunks(ROWS_AT_ONCE) {
            match self.remove_together(some) {
                Err(why) if matches!(why.kind(), ErrorKind::Corruption(_)) && some.len() > 1 => {
                    for one in some.chunks(1) {
                        damaged = self.remove_together(one).and(damaged);
                    }
                }
                removed => removed?,
            }
        }
        damaged
    }

    fn remove_together(&self, over: &[Arc<Grant>]) -> Result<()> {
        let catalog = self.catalog();
        loop {
            let mut txn = self.begin_with(of_leases())?;
            for grant in over {
                let key = lock_key(&grant.name);
                let Some(value) = txn.get_for_update(&catalog, &key)? else { continue };
                let mut leases = read_leases(key.as_bytes(), &value)?.1;
                leases.retain(|lease| lease.token != grant.token());
                if leases.is_empty() {
                    txn.delete(&catalog, &key)?;
                } else {
                    txn.put(&catalog, &key, written(&leases))?;
                }
            }
            match txn.commit() {
                Err(why) if why.is_retryable() => {}
                committed => break committed.map(drop)?,
            }
        }
        crash_point!(LockReleased);
        for grant in over {
            grant.set_row(false);
        }
        Ok(())
    }

    /// Removes the damaged row of a name, durably.
    pub(super) fn remove_damaged(&self, name: &str) -> Result<()> {
        let mut txn = self.begin_with(of_leases())?;
        txn.delete(&self.catalog(), lock_key(name))?;
        txn.commit().map(drop)
    }

    /// Gives a lease `time` from now on, durably; the background goes by that from here on.
    pub(crate) fn renew_lease(&self, locks: &NamedLocks, grant: &Arc<Grant>, time: Duration) -> Result<()> {
        let renewed = self.prolong(locks, grant, Some(time));
        locks.keeper.look_again(grant);
        // Whoever waits for its loss goes by the end that it had.
        grant.tell_watchers();
        renewed
    }

    /// Has a lease last for `time` from now on, or for as long as it was last asked for. Of two at once the one that is written last
    /// counts, and asks for what was asked for last.
    pub(super) fn prolong(&self, locks: &NamedLocks, grant: &Arc<Grant>, time: Option<Duration>) -> Result<()> {
        let now = locks.runtime.elapsed();
        // From here on it does not expire, but it may have ended before.
        let begun = grant.with_lease(|lease| {
            let stands = lease.writing > 0 || lease.ends > now;
            lease.writing += u32::from(stands);
            let before = lease.time;
            lease.time = time.filter(|_| stands).unwrap_or(before);
            (stands, before)
        });
        let lost = |reason| ErrorKind::LockLost(Box::new(grant.loss(reason))).into();
        let before = match begun {
            None => return Err(Error::invalid(format!("lock {} was taken without a lease", grant.target()))),
            Some((false, _)) => return Err(lost(grant.lost(now).unwrap_or(crate::LostReason::Expired))),
            Some((true, before)) => before,
        };
        let row = || LeaseRow::new(locks, grant, grant.lease().map_or(before, |lease| lease.time));
        let renewed = match grant.lost(now) {
            Some(reason) => Err(lost(reason)),
            None => self.change_leases(&grant.name, &[], Some(&row), Some(grant)),
        };
        grant.with_lease(|lease| {
            lease.writing -= 1;
            match &renewed {
                Ok(written) => written.iter().for_each(|written| written.note(lease)),
                Err(_) if time == Some(lease.time) => lease.time = before,
                Err(_) => {}
            }
        });
        crash_point!(LockRenewed if renewed.is_ok());
        locks.heads.lease_written(grant);
        renewed.map(drop)
    }
}

/// What was written of a lease, and is durable.
pub(super) struct Written {
    row: LeaseRow,
    /// When its time began, by the clock that does not go back.
    at: Duration,
    commit_ts: Timestamp,
}

impl Written {
    /// Notes it, unless something newer is known to be written.
    pub(super) fn note(&self, lease: &mut Lease) {
        if self.commit_ts > lease.written {
            lease.ends = self.at.saturating_add(Duration::from_millis(self.row.time_ms));
            (lease.since_ms, lease.written) = (self.row.since_ms, self.commit_ts);
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

    #[test]
    fn damaged_rows_are_errors() {
        let whole = written(&[row(), row()]);
        for cut in 0..whole.len() {
            assert!(read_leases(b"lock/nightly", &whole[..cut]).is_err(), "{cut}");
        }
        assert!(read_leases(b"lock/\xff", &whole).is_err());
    }
}
