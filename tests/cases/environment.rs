//! The environment of one column of the table of cases: an engine to open stores on, a clock, and
//! helpers.

use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use percolite::engine::Engine;
use percolite::engine::sim::SimStorage;
use percolite::env::{Env, Parker, SystemEnv};
use percolite::oracle::MemoryOracle;
use percolite::row::RowKey;
use percolite::{
    Builder, Commit, CommitProtocol, ErrorKind, Keyspace, Result, SharedConfig, SleepingRowLockWaiter, Store, Txn,
};

use crate::driver::{Driver, Memory, Rows};
use crate::hooked_engine::{Act, Control, HookedEngine};
use crate::report::{Columns, ROCKS_ONE, ROCKS_TWO, SHARED, SIM_ONE, SIM_TWO, STEPS};

/// Time to live of a lock on a shared engine, in milliseconds of the test's own clock.
pub const TTL_MS: u64 = 60_000;
pub const HOUR_MS: i64 = 3_600_000;

/// The system environment with a clock that a test can set.
#[derive(Default)]
pub struct Clock {
    system: SystemEnv,
    offset_ms: AtomicI64,
    frozen_ms: AtomicU64,
    on_wake_by_panic: Arc<Hook>,
}

/// A function to call when a panicking thread wakes another one.
type Hook = Mutex<Option<Box<dyn Fn() + Send>>>;

struct HookedParker {
    parker: Arc<dyn Parker>,
    on_wake_by_panic: Arc<Hook>,
}

impl Parker for HookedParker {
    fn park(&self, at_most: Option<Duration>) {
        self.parker.park(at_most);
    }
    fn unpark(&self) {
        if std::thread::panicking()
            && let Some(hook) = &*self.on_wake_by_panic.lock().unwrap()
        {
            hook();
        }
        self.parker.unpark();
    }
}

impl Clock {
    pub fn on_wake_by_panic(&self, hook: impl Fn() + Send + 'static) {
        *self.on_wake_by_panic.lock().unwrap() = Some(Box::new(hook));
    }

    /// Sets the time of day forward or back. While it is ahead of the system's, the monotonic clock
    /// is ahead by the same time. A frozen clock is set forward, even if `millis` is negative.
    pub fn step(&self, millis: i64) {
        self.offset_ms.fetch_add(millis, Ordering::SeqCst);
        if self.frozen_ms.load(Ordering::SeqCst) > 0 {
            self.frozen_ms.fetch_add(millis.unsigned_abs(), Ordering::SeqCst);
        }
    }

    /// Stops the clock and makes every random number the same.
    pub fn freeze(&self) {
        self.frozen_ms.store(self.unix_millis(), Ordering::SeqCst);
    }
}

impl Env for Clock {
    fn unix_millis(&self) -> u64 {
        match self.frozen_ms.load(Ordering::SeqCst) {
            0 => self.system.unix_millis().saturating_add_signed(self.offset_ms.load(Ordering::SeqCst)),
            frozen => frozen,
        }
    }
    fn elapsed(&self) -> Duration {
        let forward = u64::try_from(self.offset_ms.load(Ordering::SeqCst)).unwrap_or(0);
        self.system.elapsed() + Duration::from_millis(forward)
    }
    fn random(&self) -> u64 {
        if self.frozen_ms.load(Ordering::SeqCst) > 0 { 42 } else { self.system.random() }
    }
    /// Pauses between attempts are shortened: they would take most of a test's time.
    fn sleep(&self, duration: Duration) {
        if duration <= Duration::from_millis(5) { std::thread::yield_now() } else { self.system.sleep(duration / 20) }
    }
    fn parker(&self) -> Arc<dyn Parker> {
        Arc::new(HookedParker { parker: self.system.parker(), on_wake_by_panic: Arc::clone(&self.on_wake_by_panic) })
    }
    fn spawn(
        &self,
        name: &str,
        work: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<Box<dyn percolite::env::JoinHandle>> {
        self.system.spawn(name, work)
    }
}

enum Place {
    Memory(Arc<Memory>),
    #[cfg(feature = "rocks")]
    Rocks(tempfile::TempDir),
    Sim(SimStorage),
    Shared(SimStorage, Arc<MemoryOracle>),
}

/// Engine, clock and seed of one column.
pub struct Environment {
    columns: Columns,
    pub seed: u64,
    pub clock: Arc<Clock>,
    place: Place,
    batch_rows_max: usize,
}

impl Environment {
    pub fn new(columns: Columns, seed: u64) -> Self {
        let clock = Arc::new(Clock::default());
        let place = match columns {
            STEPS => Place::Memory(Arc::default()),
            #[cfg(feature = "rocks")]
            ROCKS_ONE | ROCKS_TWO => Place::Rocks(tempfile::tempdir().unwrap()),
            SIM_ONE | SIM_TWO => Place::Sim(SimStorage::new()),
            _ => {
                let runtime: Arc<dyn Env> = Arc::<Clock>::clone(&clock);
                Place::Shared(SimStorage::new(), Arc::new(MemoryOracle::new(runtime)))
            }
        };
        Self { columns, seed, clock, place, batch_rows_max: usize::MAX }
    }

    /// A fresh, empty environment of the same column.
    pub fn another(&self) -> Self {
        Self { batch_rows_max: self.batch_rows_max, ..Self::new(self.columns, self.seed) }
    }

    /// The same environment, but in the two-phase columns of exclusive engines each batch has one
    /// row of the transaction. The limit is two, because the last batch also deletes the record at
    /// the primary. A shared engine is always written one row at a time.
    pub fn row_by_row(self) -> Self {
        let batch_rows_max = if self.columns == SIM_TWO || self.columns == ROCKS_TWO { 2 } else { usize::MAX };
        Self { batch_rows_max, ..self }
    }

    pub fn protocol(&self) -> CommitProtocol {
        if self.columns == ROCKS_ONE || self.columns == SIM_ONE {
            CommitProtocol::Auto
        } else {
            CommitProtocol::TwoPhase
        }
    }

    pub fn is_two_phase(&self) -> bool {
        self.protocol() == CommitProtocol::TwoPhase
    }

    pub fn is_shared(&self) -> bool {
        self.columns == SHARED
    }

    pub fn is_rocks(&self) -> bool {
        self.columns == ROCKS_ONE || self.columns == ROCKS_TWO
    }

    #[cfg(feature = "rocks")]
    pub fn directory(&self) -> &std::path::Path {
        let Place::Rocks(directory) = &self.place else { panic!("this column has no directory") };
        directory.path()
    }

    pub fn sim(&self) -> Option<&SimStorage> {
        match &self.place {
            Place::Sim(memory) | Place::Shared(memory, _) => Some(memory),
            _ => None,
        }
    }

    pub fn dice(&self) -> Dice {
        Dice(self.seed)
    }

    pub fn builder(&self) -> Builder {
        let runtime: Arc<dyn Env> = Arc::<Clock>::clone(&self.clock);
        let small = Store::builder().block_cache_bytes(4 << 20).write_buffer_bytes(16 << 20);
        small.commit_protocol(self.protocol()).env(runtime)
    }

    /// The engine, without a store. An exclusive engine must be dropped before a store is opened on
    /// it.
    pub fn engine(&self) -> Arc<dyn Engine> {
        match &self.place {
            Place::Memory(_) => panic!("the protocol column has no engine"),
            #[cfg(feature = "rocks")]
            Place::Rocks(directory) => self.builder().durable_engine(directory.path()).unwrap(),
            Place::Sim(memory) => Arc::new(memory.exclusive_engine()),
            Place::Shared(memory, _) => Arc::new(memory.shared_engine()),
        }
    }

    /// Sends single protocol requests to rows, without a store.
    pub fn driver(&self) -> Driver {
        let rows: Arc<dyn Rows> = match &self.place {
            Place::Memory(rows) => Arc::<Memory>::clone(rows),
            _ => Arc::new(self.engine()),
        };
        Driver(rows)
    }

    /// Opens the store, or one more client of the shared engine.
    pub fn open(&self) -> Opened {
        self.open_with(self.builder())
    }

    pub fn open_with(&self, builder: Builder) -> Opened {
        self.try_open(builder, Arc::default()).unwrap()
    }

    /// Opens the store without the background sweep: orphan locks stay until a transaction meets
    /// them.
    pub fn open_unswept(&self) -> Opened {
        self.open_with(self.builder().background_resolve(false))
    }

    pub fn try_open(&self, builder: Builder, hooks: Arc<Control>) -> Result<Opened> {
        self.try_open_by(builder, hooks, TTL_MS, Arc::<Clock>::clone(&self.clock))
    }

    /// Opens the store as a client with its own hooks, clock and TTL.
    pub fn try_open_by(&self, builder: Builder, hooks: Arc<Control>, ttl_ms: u64, clock: Arc<Clock>) -> Result<Opened> {
        let engine: Arc<dyn Engine> = Arc::new(HookedEngine {
            engine: self.engine(),
            control: Arc::clone(&hooks),
            batch_rows_max: self.batch_rows_max,
        });
        let store = match &self.place {
            Place::Shared(_, oracle) => {
                let oracle = Arc::<MemoryOracle>::clone(oracle);
                let waiter = Arc::new(SleepingRowLockWaiter(Arc::<Clock>::clone(&clock)));
                let config = SharedConfig { engine: Arc::clone(&engine), oracle, waiter, ttl_ms };
                builder.env(clock).open_shared(config)?
            }
            _ => builder.env(clock).open_engine(Arc::clone(&engine))?,
        };
        let rows = store.keyspace("rows")?;
        Ok(Opened { store, rows, hooks, engine })
    }

    /// A power cut that keeps all, none or a prefix of the unsynced frames. On RocksDB it is only a
    /// kill of the process, which loses nothing that was written.
    pub fn crash(&self, dice: &mut Dice) {
        if let Place::Sim(memory) = &self.place {
            memory.crash(match dice.below(3) {
                0 => 0,
                1 => memory.unsynced(),
                _ => dice.below(1000),
            });
        }
    }

    /// Moves the clock past the TTL of every lock on a shared engine. Locks on other engines have
    /// no TTL.
    pub fn let_locks_expire(&self) {
        if self.is_shared() {
            self.clock.step(TTL_MS as i64 * 10);
        }
    }

    /// Leaves a transaction half done: the first write for which `act_at` returns an act gets this
    /// act, and every later call of the owner to the engine fails. Returns the error of the owner's
    /// commit.
    pub fn leave_behind(
        &self,
        write: impl Fn(&Opened, &mut Txn),
        act_at: impl Fn(&[percolite::engine::RowBatch], &Keyspace) -> Option<Act> + Send + Sync + 'static,
    ) -> percolite::Error {
        let owner = self.open_unswept();
        let mut txn = owner.begin().unwrap();
        write(&owner, &mut txn);
        let (control, rows) = (Arc::downgrade(&owner.hooks), owner.rows.clone());
        owner.hooks.on_write(move |groups| {
            let Some(act) = act_at(groups, &rows) else { return Act::Pass };
            control.upgrade().unwrap().cut_at(0, act);
            act
        });
        let died = txn.commit().unwrap_err();
        assert!(owner.hooks.is_dead(), "the owner did not lose its engine: {died}");
        drop(owner);
        self.let_locks_expire();
        died
    }
}

/// An open store with one keyspace.
pub struct Opened {
    pub store: Store,
    pub rows: Keyspace,
    pub hooks: Arc<Control>,
    /// The engine of the store, for inspection.
    pub engine: Arc<dyn Engine>,
}

impl Deref for Opened {
    type Target = Store;
    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Opened {
    pub fn row(&self, key: &str) -> RowKey {
        self.rows.row_key(key)
    }

    /// Writes one row in a transaction of its own.
    pub fn put(&self, key: &str, value: impl AsRef<[u8]>) -> Commit {
        self.put_all(&[key], value)
    }

    pub fn put_all(&self, keys: &[&str], value: impl AsRef<[u8]>) -> Commit {
        let mut txn = self.begin().unwrap();
        for key in keys {
            txn.put(&self.rows, key, value.as_ref()).unwrap();
        }
        txn.commit().unwrap()
    }

    pub fn delete(&self, key: &str) -> Commit {
        let mut txn = self.begin().unwrap();
        txn.delete(&self.rows, key).unwrap();
        txn.commit().unwrap()
    }

    /// Reads one row in a transaction of its own.
    pub fn get(&self, key: &str) -> Option<String> {
        text(self.begin().unwrap().get(&self.rows, key).unwrap())
    }

    /// The number of row locks, counted without resolving them.
    pub fn locks_left(&self) -> usize {
        self.store.row_locks().unwrap().map(Result::unwrap).count()
    }
}

pub fn text(value: Option<impl AsRef<[u8]>>) -> Option<String> {
    value.map(|bytes| String::from_utf8(bytes.as_ref().to_vec()).unwrap())
}

pub fn some(value: &str) -> Option<String> {
    Some(value.to_owned())
}

/// A value that is too long for a lock and is stored in the data column.
pub fn long(letter: &str) -> String {
    letter.repeat(1000)
}

#[track_caller]
pub fn assert_conflict<T>(result: Result<T>) {
    let Err(error) = result else { panic!("it succeeded instead of a conflict") };
    assert!(matches!(error.kind(), ErrorKind::Conflict(_)), "not a conflict: {error}");
}

#[track_caller]
pub fn assert_undetermined<T>(result: Result<T>) {
    let Err(error) = result else { panic!("it succeeded instead of being undetermined") };
    assert!(matches!(error.kind(), ErrorKind::Undetermined(_)), "not undetermined: {error}");
}

/// Waits up to 20 s for an effect of background work.
#[track_caller]
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a thread that may be stopped at a gate. A test that fails does not wait for it.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Thread<T> {
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    Thread(std::thread::Builder::new().name(name).spawn(work).unwrap())
}

pub struct Thread<T>(JoinHandle<T>);

impl<T> Thread<T> {
    pub fn join(self) -> T {
        self.0.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    }

    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// Random numbers by splitmix64.
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
