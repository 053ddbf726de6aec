//! What is asked of a store between its lives, and when its clients are through.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use percolite::engine::Engine as _;
use percolite::engine::local::LocalEngine;
use percolite::engine::storage::Storage as _;
use percolite::{KeyspaceId, Store, Timestamp};

use super::super::engine::{Dead, HIGH_WATER, is_dead};
use super::super::runtime::SimRuntime;
use super::{Embedded, Process};
use crate::client::{ASIDE, BESIDE, digest_of};
use crate::keys::stored;
use crate::restores::{FEW, nameless};

const CATALOG: KeyspaceId = KeyspaceId(0);
/// What is committed is durable within this time, whether anybody waits for it or not.
const DURABLE_WITHIN: Duration = Duration::from_secs(2);
/// Longer than anybody waits for a permit.
const KEEPS_A_PERMIT: Duration = Duration::from_millis(1500);
/// Large transactions are over after so many tenths of a second.
const ENDS_WITHIN: usize = 600;

impl Embedded<'_> {
    /// A store that has met an error of its disk does not go on.
    pub(super) fn check_failed(&self, store: &Store, engine: &Process, dead: &Dead) {
        if self.machine.has_failed() || engine.lease_failed() {
            // Whoever met it may be about to say so.
            self.scheduler.sleep(Duration::from_millis(100));
            // Where everything is durable a sync has nothing to do, and only the next write is refused. An empty one is not written.
            let storage = engine.engine().storage();
            let goes_on = || store.sync().is_ok() && storage.write(storage.new_batch(0)).is_ok();
            if goes_on() && !is_dead(dead) {
                self.breaks("fails stop", "a write or sync has failed, and the store goes on");
            }
        }
    }

    /// What somebody sees who opens the store and changes nothing.
    pub(super) fn look_only(&mut self) -> Option<u64> {
        let builder = Store::builder().read_only(true).runtime(SimRuntime::new(self.scheduler, 0));
        if !self.machine.is_created() {
            return None;
        }
        let store = self.machine.open_read_only().map_err(percolite::Error::from);
        let store = store.and_then(|layers| builder.open_engine(Arc::new(LocalEngine::new(layers, true))));
        let looked = store.and_then(|store| {
            let digest = digest_of(&store.snapshot()?);
            store.close()?;
            digest
        });
        looked.inspect_err(|why| self.breaks("opens to be looked at", why.to_string())).ok()
    }

    /// That is what is there.
    pub(super) fn check_shown(&self, shown: Option<u64>, store: &Store, dead: &Dead) {
        let Some(shown) = shown else { return };
        if let Ok(found) = store.snapshot().and_then(|snapshot| digest_of(&snapshot))
            && found != shown
            && !is_dead(dead)
        {
            self.breaks(
                "opens to be looked at",
                "read-only it shows something else than when it is opened to be written to",
            );
        }
    }

    /// A life that has lost nothing can be written to, and makes everything durable in time.
    fn check_goes_on(&self, store: &Store, dead: &Dead) {
        let put = [BESIDE, ASIDE].iter().try_for_each(|name| {
            let keyspace = store.keyspace(name)?;
            store.transact(|txn| txn.put(&keyspace, stored("last"), ""))
        });
        let visible_ts = store.stats().visible_ts;
        self.scheduler.sleep(DURABLE_WITHIN);
        let durable_ts = store.stats().durable_ts;
        if is_dead(dead) {
            return;
        }
        if let Err(why) = put {
            self.breaks("I12 progress", format!("nobody is left, and a keyspace cannot be written to: {why}"));
        }
        if durable_ts < visible_ts {
            let what =
                format!("{visible_ts} has been visible for {DURABLE_WITHIN:?}, and only {durable_ts} is durable");
            self.breaks("buffered commits are durable soon", what);
        }
    }

    /// As many as may run at a time, each of which has just had a conflict, get in at once when nobody else is there.
    fn check_admits(&self, store: &Store, dead: &Dead) {
        let Ok(rows) = store.keyspace(BESIDE) else { return };
        let before = store.stats().admission_timeouts;
        let mut threads = Vec::new();
        for number in 0..self.plan.admission {
            let (store, rows, scheduler) = (store.clone(), rows.clone(), Arc::clone(self.scheduler));
            let (key, mut is_first) = (stored(&format!("admitted/{number}")), true);
            let work = move || {
                // It may have grown too old meanwhile.
                let _ = store.transact(|txn| {
                    if std::mem::take(&mut is_first) {
                        let mut other = store.begin()?;
                        other.put(&rows, &key, "in the way")?;
                        other.commit()?;
                    } else {
                        scheduler.sleep(KEEPS_A_PERMIT);
                    }
                    txn.put(&rows, &key, "")
                });
            };
            match self.scheduler.spawn("admitted", Box::new(work)) {
                Ok(thread) => threads.push(thread),
                Err(why) => self.breaks("harness", why.to_string()),
            }
        }
        for thread in threads {
            self.scheduler.join(thread);
        }
        if store.stats().admission_timeouts > before && !is_dead(dead) {
            self.breaks("I12 progress", "somebody waits for a permit in vain, and nobody has one too many");
        }
    }

    pub(super) fn check_restored(&self, store: &Store, dead: &Dead) {
        let restores = self.restores.lock().clone();
        if let Ok(broken) = restores.judge(store, FEW) {
            self.broken.lock().extend(broken.filter(|_| !is_dead(dead)));
        }
    }

    /// None was handed out that the next life could hand out again.
    pub(super) fn check_timestamps(&self) {
        let mark = self.machine.open_read_only().and_then(|layers| LocalEngine::new(layers, true).get_meta(HIGH_WATER));
        let mark = match mark {
            Ok(Some(mark)) => mark.try_into().map_or(0, u64::from_be_bytes),
            Ok(None) => return,
            Err(why) => return self.breaks("opens to be looked at", why.to_string()),
        };
        let ledger = self.book.ledger();
        let handed_out = ledger.entries().flat_map(|entry| [entry.txn.start_ts, entry.txn.commit_ts]).flatten().max();
        drop(ledger);
        let late = Some(self.handed_out.load(Ordering::SeqCst));
        if let Some(highest) = handed_out.max(late).filter(|highest| *highest > mark) {
            self.breaks(
                "no timestamp is handed out twice",
                format!("{highest} was handed out, and {mark} is all that is on the disk"),
            );
        }
    }

    /// Once every client of a life is through.
    pub(super) fn check_through(&self, store: &Store, begun: Timestamp, dead: &Dead) {
        self.check_nothing_left(store, begun, dead);
        self.check_goes_on(store, dead);
        self.check_admits(store, dead);
    }

    /// Nothing is left of their transactions.
    fn check_nothing_left(&self, store: &Store, begun: Timestamp, dead: &Dead) {
        for _ in 0..ENDS_WITHIN {
            if store.stats().cleanup_pending == 0 || is_dead(dead) {
                break;
            }
            self.scheduler.sleep(Duration::from_millis(100));
        }
        let left: Result<Vec<_>, _> = store.row_locks().and_then(Iterator::collect);
        let Ok(left) = left else { return };
        // The housekeeper goes on changing the catalog.
        let mut left = left.iter().filter(|lock| lock.start_ts > begun && lock.row.keyspace_id() != CATALOG);
        if let Some(lock) = left.next().filter(|_| !is_dead(dead)) {
            let what =
                format!("row {:?} is locked by the transaction {}, and no client is left", lock.row, lock.start_ts);
            self.breaks("a transaction that is over has no locks", what);
        }
    }

    /// Of keyspaces that are gone nothing stays.
    pub(super) fn check_erased(&self, store: &Store, engine: &Process) {
        for _ in 0..ENDS_WITHIN {
            match nameless(store, engine.engine().storage()) {
                Ok(left) if !left.is_empty() => self.scheduler.sleep(Duration::from_millis(100)),
                _ => return,
            }
        }
        let left = nameless(store, engine.engine().storage()).unwrap_or_default();
        self.breaks("what was dropped is erased", format!("rows are left in keyspaces without a name: {left:?}"));
    }
}
