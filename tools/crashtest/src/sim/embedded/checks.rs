//! What is asked of a store between its lives, and when its clients are through.

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
/// What is committed is durable within this time, whether anybody waits for it or not.
const DURABLE_WITHIN: Duration = Duration::from_secs(2);
/// Longer than anybody waits for a permit.
const PERMIT_HOLD_TIME: Duration = Duration::from_millis(1500);
/// Large transactions are over after so many tenths of a second.
const CLEANUP_POLLS_MAX: usize = 600;

impl Embedded<'_> {
    /// A store that has met an error of its disk does not go on.
    pub(super) fn check_failed(&self, store: &Store, engine: &Process, dead: &ProcessDead) {
        if self.machine.has_failed() || engine.reservation_failed() {
            // Whoever met it may be about to say so.
            self.scheduler.sleep(Duration::from_millis(100));
            // Where everything is durable a sync has nothing to do, and only the next write is refused. An empty one is not written.
            let storage = engine.engine().storage();
            let goes_on = || store.sync().is_ok() && storage.write(storage.new_batch(0)).is_ok();
            if goes_on() && !is_dead(dead) {
                self.report("fail-stop", "a write or sync has failed, and the store goes on");
            }
        }
    }

    /// What somebody sees who opens the store and changes nothing.
    pub(super) fn open_read_only(&mut self) -> Option<u64> {
        let builder = Store::builder().read_only(true).runtime(SimRuntime::new(self.scheduler, 0));
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
        digest.inspect_err(|why| self.report("read-only open", why.to_string())).ok()
    }

    /// That is what is there.
    pub(super) fn check_read_only_digest(&self, digest_before: Option<u64>, store: &Store, dead: &ProcessDead) {
        let Some(digest_before) = digest_before else { return };
        if let Ok(found) = store.snapshot().and_then(|snapshot| digest_of(&snapshot))
            && found != digest_before
            && !is_dead(dead)
        {
            self.report("read-only open", "read-only it shows something else than when it is opened to be written to");
        }
    }

    /// A life that has lost nothing can be written to, and makes everything durable in time.
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
        if let Err(why) = put {
            self.report("progress", format!("nobody is left, and a keyspace cannot be written to: {why}"));
        }
        if durable_ts < visible_ts {
            let what =
                format!("{visible_ts} has been visible for {DURABLE_WITHIN:?}, and only {durable_ts} is durable");
            self.report("buffered commits become durable", what);
        }
    }

    /// As many as may run at a time, each of which has just had a conflict, get in at once when nobody else is there.
    fn check_admission(&self, store: &Store, dead: &ProcessDead) {
        let Ok(rows) = store.keyspace(SECOND) else { return };
        let before = store.stats().admission_timeouts;
        let mut threads = Vec::new();
        for number in 0..self.plan.admission_limit {
            let (store, rows, scheduler) = (store.clone(), rows.clone(), Arc::clone(self.scheduler));
            let (key, mut is_first) = (encode_key(&format!("admitted/{number}")), true);
            let work = move || {
                // It may have grown too old meanwhile.
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
                Err(why) => self.report("harness", why.to_string()),
            }
        }
        for thread in threads {
            self.scheduler.join(thread);
        }
        if store.stats().admission_timeouts > before && !is_dead(dead) {
            self.report("progress", "somebody waits for a permit in vain, and nobody has one too many");
        }
    }

    pub(super) fn check_restored(&self, store: &Store, dead: &ProcessDead) {
        let restores = self.restores.lock().clone();
        if let Ok(violation) = restores.check(store, FEW_ROWS) {
            self.violations.lock().extend(violation.filter(|_| !is_dead(dead)));
        }
    }

    /// None was handed out that the next life could hand out again.
    pub(super) fn check_timestamps(&self) {
        let high_water =
            self.machine.open_read_only().and_then(|tree| LocalEngine::new(tree, true).get_meta(HIGH_WATER));
        let high_water = match high_water {
            Ok(Some(high_water)) => high_water.try_into().map_or(0, u64::from_be_bytes),
            Ok(None) => return,
            Err(why) => return self.report("read-only open", why.to_string()),
        };
        let client_log = self.recorder.log();
        let handed_out =
            client_log.entries().flat_map(|entry| [entry.txn.start_ts, entry.txn.commit_ts]).flatten().max();
        drop(client_log);
        let late = Some(self.handed_out.load(Ordering::SeqCst));
        if let Some(highest) = handed_out.max(late).filter(|highest| *highest > high_water) {
            self.report(
                "timestamps are unique",
                format!("{highest} was handed out, and {high_water} is all that is on the disk"),
            );
        }
    }

    /// Once every client of a life is through.
    pub(super) fn check_after_clients(&self, store: &Store, first_ts: Timestamp, dead: &ProcessDead) {
        self.check_nothing_left(store, first_ts, dead);
        self.check_progress(store, dead);
        self.check_admission(store, dead);
    }

    /// Nothing is left of their transactions.
    fn check_nothing_left(&self, store: &Store, first_ts: Timestamp, dead: &ProcessDead) {
        for _ in 0..CLEANUP_POLLS_MAX {
            if store.stats().cleanup_pending == 0 || is_dead(dead) {
                break;
            }
            self.scheduler.sleep(Duration::from_millis(100));
        }
        let left: Result<Vec<_>, _> = store.row_locks().and_then(Iterator::collect);
        let Ok(left) = left else { return };
        // The housekeeper goes on changing the catalog.
        let mut left = left.iter().filter(|lock| lock.start_ts > first_ts && lock.row.keyspace_id() != CATALOG);
        if let Some(lock) = left.next().filter(|_| !is_dead(dead)) {
            let what =
                format!("row {:?} is locked by the transaction {}, and no client is left", lock.row, lock.start_ts);
            self.report("no locks after the end", what);
        }
    }

    /// Of keyspaces that are gone nothing stays.
    pub(super) fn check_erased(&self, store: &Store, engine: &Process) {
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
