//! Leases of named locks: grants that outlast their process, and their rows in the store.
//!
//! A row `lock/<name>` in the catalog's keyspace has the lease holders of the name: mode, token,
//! wall clock at the grant or the last renewal, and time to live. Ordinary durable transactions
//! change it, each entry by its token and never by the name alone. So a late release cannot end a
//! later grant. After opening, memory decides, and the rows follow.
//!
//! **Time.** The process that granted the lease measures it by the monotonic clock.
//! Opening computes once, by the wall clock, how much is left, between zero and the whole time, and
//! counts that by the monotonic clock. Timestamps of the oracle are not used: they lag, jump, and
//! may not advance.
//!
//! While a row is being written its lease does not expire. The result of the write decides whether
//! it is valid.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{FenceCondition, Grant, LockHolder, LockMode};
use crate::store::catalog::entries::LOCK_PREFIX;
use crate::store::handle::Store;
use crate::store::named_locks::state::NamedLocks;
use crate::store::options::{Durability, TxnOptions};
use crate::store::txn::Txn;
use crate::timestamp::Timestamp;

/// Lease rows that one transaction changes at most.
pub(in crate::store) const LEASE_ROWS_PER_TXN: usize = 256;

/// One holder in the row of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct LeaseRow {
    pub shared: bool,
    pub token: Timestamp,
    /// The wall clock at the grant or the last renewal, in milliseconds since 1970.
    pub since_ms: u64,
    pub ttl_ms: u64,
    pub pid: u32,
    pub label: Option<String>,
    pub thread: String,
    pub reason: Option<String>,
}

impl LeaseRow {
    pub(in crate::store) fn new(locks: &NamedLocks, grant: &Grant, time: Duration) -> Self {
        let clock = locks.clock();
        let holder = clock.holder(grant);
        Self {
            shared: grant.mode == LockMode::Shared,
            token: grant.token(),
            since_ms: if mutated!(LeaseOnTimestamps) { grant.token().millis() } else { locks.env.unix_millis() },
            ttl_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            pid: holder.pid,
            label: holder.application_name,
            thread: holder.thread,
            reason: grant.requester.reason.as_deref().map(Into::into),
        }
    }

    pub(in crate::store) fn mode(&self) -> LockMode {
        if self.shared { LockMode::Shared } else { LockMode::Exclusive }
    }

    pub(in crate::store) fn holder(&self) -> LockHolder {
        LockHolder { pid: self.pid, application_name: self.label.clone(), thread: self.thread.clone() }
    }

    /// The time left by the wall clock.
    pub(in crate::store) fn remaining(&self, unix_millis: u64) -> Duration {
        let ends = self.since_ms.saturating_add(self.ttl_ms);
        Duration::from_millis(ends.saturating_sub(unix_millis).min(self.ttl_ms))
    }
}

/// The name and the holders of a row.
pub(in crate::store) fn decode_leases(key: &[u8], value: &[u8]) -> Result<(String, Vec<LeaseRow>)> {
    let name = key.strip_prefix(LOCK_PREFIX.as_bytes()).unwrap_or(key);
    let read = codec::decode_value(value).map_err(|why| {
        Error::from(ErrorKind::Corruption(format!("lease row of lock \"{}\": {why}", name.escape_ascii())))
    });
    let name = str::from_utf8(name).map_err(|_| {
        Error::from(ErrorKind::Corruption(format!("lease row with an invalid lock name: {}", name.escape_ascii())))
    });
    read.and_then(|leases| Ok((name?.to_owned(), leases)))
}

fn encode_leases(leases: &[LeaseRow]) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode_value(&leases, &mut bytes);
    bytes
}

pub(in crate::store) fn lock_key(name: &str) -> String {
    format!("{LOCK_PREFIX}{name}")
}

impl Store {
    /// Changes the row of a name, durably: removes the entries with the tokens `removed` and adds
    /// `put`. If `keeps_time`, the entry that `put` replaces keeps its duration. Returns the commit
    /// timestamp.
    pub(in crate::store) fn update_leases(
        &self,
        name: &str,
        removed: &[Timestamp],
        (put, keeps_time): (Option<&LeaseRow>, bool),
        fence: Option<&Arc<Grant>>,
    ) -> Result<Timestamp> {
        let (catalog, key) = (self.inner.catalog.keyspace(), lock_key(name));
        let durability = if mutated!(LeaseRowLater) { Durability::Buffered } else { Durability::Sync };
        retry_conflicts(|| {
            let mut txn = self.begin_with(lease_txn_options().durability(durability))?;
            if let Some(grant) = fence {
                txn.buffer.add_fence(FenceCondition {
                    grant: Arc::clone(grant),
                    sync_before_next_grant: true,
                    release_on_commit: None,
                });
            }
            let before = self.load_leases_of(&mut txn, name)?;
            let mut leases = before.clone().unwrap_or_default();
            let old = leases.iter().find(|lease| put.is_some_and(|put| put.token == lease.token));
            let time_ms = old.filter(|_| keeps_time).map(|old| old.ttl_ms);
            leases.retain(|lease| !removed.contains(&lease.token) && put.is_none_or(|put| put.token != lease.token));
            leases.extend(put.map(|put| LeaseRow { ttl_ms: time_ms.unwrap_or(put.ttl_ms), ..put.clone() }));
            if !leases.is_empty() {
                txn.put(&catalog, &key, encode_leases(&leases))?;
            } else if before.is_some() {
                txn.delete(&catalog, &key)?;
            } else {
                // Another transaction has removed the row; its commit may not be durable yet.
                let seen = txn.read_ts();
                return txn.rollback().map(|()| seen);
            }
            txn.commit().map(|commit| commit.commit_ts)
        })
    }

    /// The holders in the row of a name, if it exists. A corrupt row makes requests of the name
    /// fail.
    fn load_leases_of(&self, txn: &mut Txn, name: &str) -> Result<Option<Vec<LeaseRow>>> {
        let key = lock_key(name);
        let row = txn.get_for_update(&self.inner.catalog.keyspace(), &key);
        let leases = row.and_then(|row| row.map(|row| Ok(decode_leases(key.as_bytes(), &row)?.1)).transpose());
        if let (Err(why), Some(locks)) = (&leases, &self.inner.locks)
            && matches!(why.kind(), ErrorKind::Corruption(_))
        {
            locks.manager.set_corrupt(name, &why.to_string());
        }
        leases
    }

    /// Removes the rows of ended leases, durably. A corrupt row does not prevent the removal of the
    /// others; it stays until [`Store::force_unlock`].
    pub(in crate::store) fn remove_leases(&self, over: &[Arc<Grant>]) -> Result<()> {
        if over.iter().any(|grant| grant.in_flight_commits() > 0) {
            // The commits that were decided before the end may include the ones that write these
            // rows.
            self.lock_authority()?.drain()?;
        }
        let mut damaged = Ok(());
        for some in over.chunks(LEASE_ROWS_PER_TXN) {
            damaged = retry_conflicts(|| self.remove_batch(some))?.and(damaged);
            crash_point!(LockReleased);
            some.iter().for_each(|grant| grant.set_lease_row(false));
        }
        damaged
    }

    /// Returns the corruption among the rows, after the others are removed.
    fn remove_batch(&self, over: &[Arc<Grant>]) -> Result<Result<()>> {
        let (catalog, mut damaged) = (self.inner.catalog.keyspace(), Ok(()));
        let mut txn = self.begin_with(lease_txn_options())?;
        for grant in over {
            let key = lock_key(&grant.name);
            let mut leases = match self.load_leases_of(&mut txn, &grant.name) {
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
                txn.put(&catalog, &key, encode_leases(&leases))?;
            }
        }
        txn.commit().map(|_| damaged)
    }

    /// Removes the corrupt row of a name, durably.
    pub(in crate::store) fn remove_damaged(&self, name: &str) -> Result<()> {
        let mut txn = self.begin_with(lease_txn_options())?;
        txn.delete(&self.inner.catalog.keyspace(), lock_key(name))?;
        txn.commit().map(drop)
    }

    /// Renews a lease, durably, to expire `time` from the present. `None` keeps its duration, even
    /// if another renewal changes that concurrently.
    pub(crate) fn renew_lease(&self, locks: &NamedLocks, grant: &Arc<Grant>, time: Option<Duration>) -> Result<()> {
        if !grant.is_ready() {
            let what = format!("lock {} has no token yet: its conversion is incomplete, call it again", grant.target());
            return Err(Error::invalid(what));
        }
        let now = locks.env.elapsed();
        // From here on it does not expire, but it may have ended already.
        let begun = grant.with_lease(|lease| {
            let stands = lease.row_writes_in_flight > 0 || lease.expires_at > now;
            lease.row_writes_in_flight += u32::from(stands);
            stands
        });
        let lost = |reason| ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into();
        match begun {
            None => return Err(Error::invalid(format!("lock {} was acquired without a lease", grant.target()))),
            Some(false) => return Err(lost(grant.end_reason_at(now).unwrap_or(crate::LockLostReason::Expired))),
            Some(true) => {}
        }
        let as_it_is = grant.lease().map(|lease| lease.duration).unwrap_or_default();
        let row = LeaseRow::new(locks, grant, time.unwrap_or(as_it_is));
        let renewed = match grant.end_reason_at(now) {
            Some(reason) => Err(lost(reason)),
            None => self.update_leases(&grant.name, &[], (Some(&row), time.is_none()), Some(grant)),
        };
        let must_look = grant.with_lease(|lease| {
            let (before, written) = (lease.expires_at, locks.env.elapsed());
            lease.row_writes_in_flight -= 1;
            // Of two concurrent renewals with a duration, the one that committed last counts.
            let is_last = renewed.as_ref().is_ok_and(|commit_ts| *commit_ts > lease.last_explicit_renewal_ts);
            match time.filter(|_| renewed.is_ok()) {
                Some(_) if !is_last => {}
                Some(time) => {
                    (lease.duration, lease.expires_at, lease.renewed_at_ms) =
                        (time, now.saturating_add(time), row.since_ms);
                }
                None if renewed.is_ok() => {
                    lease.expires_at = lease.expires_at.max(now.saturating_add(lease.duration));
                    lease.renewed_at_ms = lease.renewed_at_ms.max(row.since_ms);
                }
                None => {}
            }
            if let (Some(_), Ok(commit_ts)) = (time, &renewed) {
                lease.last_explicit_renewal_ts = lease.last_explicit_renewal_ts.max(*commit_ts);
            }
            before <= written || lease.expires_at < before
        });
        crash_point!(LockRenewed if renewed.is_ok());
        if must_look == Some(true) {
            locks.manager.on_lease_renewed(grant);
        }
        locks.renewer.reschedule(grant);
        renewed.map(drop)
    }
}

/// Repeats a change after a conflict: at its commit or, in a large transaction, before.
fn retry_conflicts<T>(mut change: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match change() {
            Err(why) if why.is_retryable() => {}
            done => return done,
        }
    }
}

pub(in crate::store) fn lease_txn_options() -> TxnOptions {
    TxnOptions::with_label("percolite lease").durability(Durability::Sync)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> LeaseRow {
        LeaseRow {
            shared: true,
            token: Timestamp::from_u64(0x0665_0000_0000_0001),
            since_ms: 1_763_726_400_123,
            ttl_ms: 60_000,
            pid: 4242,
            label: Some("worker".into()),
            thread: "main".into(),
            reason: None,
        }
    }

    /// Never edit a line: a new format gets lines of its own.
    #[test]
    fn golden_bytes_of_leases() {
        let bytes = encode_leases(&[row()]);
        let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        assert_eq!(hex, "010101fd0100000000006506fd7b1a49a69a010000fb60eafb92100106776f726b6572046d61696e00");
        assert_eq!(decode_leases(b"lock/nightly", &bytes).unwrap(), ("nightly".into(), vec![row()]));
    }

    #[test]
    fn the_time_left_is_clamped_to_the_duration() {
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
            assert_eq!(row.remaining(now), Duration::from_millis(left), "{now}");
        }
    }

    /// The transaction that writes a lease removes those that it excludes, so only this test can
    /// have two.
    #[test]
    fn of_conflicting_leases_the_greatest_token_wins() {
        let memory = crate::engine::sim::SimStorage::new();
        let store = Store::builder().open_in_memory(&memory).unwrap();
        let tokens = [7, 9, 8].map(Timestamp::from_u64);
        let since_ms = crate::env::Env::unix_millis(&*store.inner.env);
        for token in tokens {
            let lease = LeaseRow { shared: false, token, since_ms, ..row() };
            store.update_leases("name", &[], (Some(&lease), false), None).unwrap();
        }
        store.close().unwrap();
        let store = Store::builder().open_in_memory(&memory).unwrap();
        let held: Vec<_> = store.lock_holders("name").unwrap().iter().map(|entry| entry.token).collect();
        assert_eq!(held, [Some(tokens[1])]);
        assert!(store.force_unlock("name", tokens[1]).unwrap());
        // The next holder removes the rows of the others.
        drop(store.lock("name").unwrap());
        store.close().unwrap();
        assert!(Store::builder().open_in_memory(&memory).unwrap().lock_table().unwrap().entries.is_empty());
    }

    #[test]
    fn malformed_lease_rows_are_errors() {
        let whole = encode_leases(&[row(), row()]);
        for cut in 0..whole.len() {
            assert!(decode_leases(b"lock/nightly", &whole[..cut]).is_err(), "{cut}");
        }
        assert!(decode_leases(b"lock/\xff", &whole).is_err());
    }
}
