//! Checks between the incarnations of a store, and after its clients have ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use percolite::engine::Engine as _;
use percolite::engine::local::LocalEngine;
use percolite::engine::storage::Storage as _;
use percolite::{KeyspaceId, Store, Timestamp};

use super::super::engine::{HIGH_WATER, ProcessDead, is_dead};
use super::super::runtime::SimRuntime;
use super::{Embedded, Process};
use crate::client::{RENAMED, SECOND, digest_of};
use crate::key_encoding::encode_key;
use crate::restores::{FEW_ROWS, keyspaces_without_name};

const CATALOG: KeyspaceId = KeyspaceId(0);
/// A commit is durable within this time, even if no client waits for that.
const DURABLE_WITHIN: Duration = Duration::from_secs(2);
/// How long a transaction of the admission check holds its permit: longer than another transaction
/// would wait for a permit.
const PERMIT_HOLD_TIME: Duration = Duration::from_millis(1500);
/// A check waits for the end of background work for at most this many polls, ten a second. With
/// pages of two rows and a worker that is often paused, a large rollback takes more than a minute
/// of the simulated clock.
const CLEANUP_POLLS_MAX: usize = 3000;

impl Embedded<'_> {
    /// Checks that a store has stopped after an error of its disk.
    pub(super) fn check_failed(&self, store: &Store, engine: &Process, dead: &ProcessDead) {
        if self.machine.has_failed() || engine.reservation_failed() {
            // The call that got the error may not have returned yet. Then the store does not know
            // of the error.
            self.scheduler.sleep(Duration::from_millis(100));
            let storage = engine.engine().storage();
            // If everything is durable, a sync has nothing to do and succeeds, and only the next
            // write is refused. The batch is empty, so a store that wrongly accepts it is not
            // changed.
            let continues = || store.sync().is_ok() && storage.write(storage.new_batch(0)).is_ok();
            if continues() && !is_dead(dead) {
                self.report("fail-stop", "a write or sync has failed, and the store continues");
            }
        }
    }

    /// A digest of the state that a read-only opening shows.
    pub(super) fn open_read_only(&mut self) -> Option<u64> {
        let builder = Store::builder().read_only(true).env(SimRuntime::new(self.scheduler, 0));
        if !self.machine.is_created() {
            return None;
        }
        let store = self.machine.open_read_only().map_err(percolite::Error::from);
        let store = store.and_then(|tree| builder.open_engine(Arc::new(LocalEngine::new(tree, true))));
        let digest = store.and_then(|store| {
            let digest = digest_of(&store.snapshot()?);
            store.close()?;
            digest
        });
        digest.inspect_err(|error| self.report("read-only open", error.to_string())).ok()
    }

    /// Checks that the opened store shows the same state as the read-only opening.
    pub(super) fn check_read_only_digest(&self, digest_before: Option<u64>, store: &Store, dead: &ProcessDead) {
        let Some(digest_before) = digest_before else { return };
        if let Ok(found) = store.snapshot().and_then(|snapshot| digest_of(&snapshot))
            && found != digest_before
            && !is_dead(dead)
        {
            self.report("read-only open", "a read-only opening shows another state than a normal one");
        }
    }

    /// Checks that a store without a crash or a disk fault accepts writes to its second and its
    /// renamed keyspace, and makes them durable in time.
    fn check_progress(&self, store: &Store, dead: &ProcessDead) {
        let put = [SECOND, RENAMED].iter().try_for_each(|name| {
            let keyspace = store.keyspace(name)?;
            store.transact(|txn| txn.put(&keyspace, encode_key("last"), ""))
        });
        let visible_ts = store.stats().visible_ts;
        self.scheduler.sleep(DURABLE_WITHIN);
        let durable_ts = store.stats().durable_ts;
        if is_dead(dead) {
            return;
        }
        if let Err(error) = put {
            self.report("progress", format!("no client is left, and a keyspace cannot be written to: {error}"));
        }
        if durable_ts < visible_ts {
            let what =
                format!("{visible_ts} has been visible for {DURABLE_WITHIN:?}, and only {durable_ts} is durable");
            self.report("buffered commits become durable", what);
        }
    }

    /// Runs as many transactions as the admission limit allows, each with a conflict, while no
    /// others run. Checks that none of them waits for its permit until the timeout.
    fn check_admission(&self, store: &Store, dead: &ProcessDead) {
        let Ok(rows) = store.keyspace(SECOND) else { return };
        let before = store.stats().admission_timeouts;
        let mut threads = Vec::new();
        for number in 0..self.plan.admission_limit {
            let (store, rows, scheduler) = (store.clone(), rows.clone(), Arc::clone(self.scheduler));
            let (key, mut is_first) = (encode_key(&format!("admitted/{number}")), true);
            let work = move || {
                // An error is ignored, because the snapshot may have expired.
                let _ = store.transact(|txn| {
                    if std::mem::take(&mut is_first) {
                        let mut other = store.begin()?;
                        other.put(&rows, &key, "in the way")?;
                        other.commit()?;
                    } else {
                        scheduler.sleep(PERMIT_HOLD_TIME);
                    }
                    txn.put(&rows, &key, "")
                });
            };
            match self.scheduler.spawn("admitted", Box::new(work)) {
                Ok(thread) => threads.push(thread),
                Err(error) => self.report("harness", error.to_string()),
            }
        }
        for thread in threads {
            self.scheduler.join(thread);
        }
        if store.stats().admission_timeouts > before && !is_dead(dead) {
            self.report("progress", "a transaction timed out waiting for admission although the limit was not reached");
        }
    }

    pub(super) fn check_restored(&self, store: &Store, dead: &ProcessDead) {
        let restores = self.restores.lock().clone();
        if let Ok(violation) = restores.check(store, FEW_ROWS) {
            self.violations.lock().extend(violation.filter(|_| !is_dead(dead)));
        }
    }

    /// Checks that no timestamp was handed out above the durable reservation: the next incarnation
    /// could hand it out again.
    pub(super) fn check_timestamps(&self) {
        let high_water =
            self.machine.open_read_only().and_then(|tree| LocalEngine::new(tree, true).get_meta(HIGH_WATER));
        let high_water = match high_water {
            Ok(Some(high_water)) => high_water.try_into().map_or(0, u64::from_be_bytes),
            Ok(None) => return,
            Err(error) => return self.report("read-only open", error.to_string()),
        };
        let client_log = self.recorder.log();
        let handed_out =
            client_log.entries().flat_map(|entry| [entry.txn.start_ts, entry.txn.commit_ts]).flatten().max();
        drop(client_log);
        let late = Some(self.handed_out.load(Ordering::SeqCst));
        if let Some(highest) = handed_out.max(late).filter(|highest| *highest > high_water) {
            self.report(
                "timestamps are unique",
                format!("{highest} was handed out above the durable reservation {high_water}"),
            );
        }
    }

    /// Checks after all clients of an incarnation have ended.
    pub(super) fn check_after_clients(&self, store: &Store, first_ts: Timestamp, dead: &ProcessDead) {
        self.check_nothing_left(store, first_ts, dead);
        self.check_progress(store, dead);
        self.check_admission(store, dead);
    }

    /// Checks that the clients' transactions have left no locks.
    fn check_nothing_left(&self, store: &Store, first_ts: Timestamp, dead: &ProcessDead) {
        for _ in 0..CLEANUP_POLLS_MAX {
            if store.stats().cleanup_pending == 0 || is_dead(dead) {
                break;
            }
            self.scheduler.sleep(Duration::from_millis(100));
        }
        let left: Result<Vec<_>, _> = store.row_locks().and_then(Iterator::collect);
        let Ok(left) = left else { return };
        // Locks in the catalog are allowed: they may belong to the background work.
        let mut left = left.iter().filter(|lock| lock.start_ts > first_ts && lock.row.keyspace_id() != CATALOG);
        if let Some(lock) = left.next().filter(|_| !is_dead(dead)) {
            let what =
                format!("row {:?} is locked by the transaction {}, and no client is left", lock.row, lock.start_ts);
            self.report("no locks after the end", what);
        }
    }

    /// Flushes, and checks that the log then has one segment and the sync record: whatever earlier
    /// incarnations have left is gone.
    pub(super) fn check_log_files(&self, engine: &Process) -> Result<(), String> {
        engine.engine().storage().flush_all().map_err(|error| error.to_string())?;
        let mut files = self.machine.log_files().map_err(|error| error.to_string())?;
        files.sort_unstable();
        if !matches!(&files[..], [segment, record] if segment.ends_with(".segment") && record == "synced") {
            self.report("nothing is left over", format!("after a flush the log has {files:?}"));
        }
        Ok(())
    }

    /// Checks that the rows of dropped keyspaces are deleted.
    pub(super) fn check_deleted(&self, store: &Store, engine: &Process) {
        for _ in 0..CLEANUP_POLLS_MAX {
            match keyspaces_without_name(store, engine.engine().storage()) {
                Ok(left) if !left.is_empty() => self.scheduler.sleep(Duration::from_millis(100)),
                _ => return,
            }
        }
        let left = keyspaces_without_name(store, engine.engine().storage()).unwrap_or_default();
        self.report("dropped keyspaces are deleted", format!("rows are left in keyspaces without a name: {left:?}"));
    }
}
