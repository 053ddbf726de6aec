//! A store in memory with hooks: a test can stop its commits and syncs, and cut its power.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, atomic};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::{
    Builder, Commit, CommitProtocol, Durability, Error, ErrorKind, Keyspace, LockLostReason, Result, Store, Timestamp,
    TxnOptions,
};

use crate::hooked_engine::{Act, Control, Gate, HookedEngine, commits, locks};

/// A wait that lasts longer has failed.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// An open store, its keyspace, the hooks of its engine, and its memory.
#[derive(Clone)]
pub struct World {
    pub store: Store,
    pub rows: Keyspace,
    pub hooks: Arc<Control>,
    pub memory: SimStorage,
}

impl World {
    pub fn open() -> Self {
        Self::open_at(&SimStorage::new(), Store::builder())
    }

    pub fn open_at(memory: &SimStorage, builder: Builder) -> Self {
        let hooks = Arc::<Control>::default();
        let engine = HookedEngine {
            engine: Arc::new(memory.exclusive_engine()),
            control: Arc::clone(&hooks),
            batch_rows_max: usize::MAX,
        };
        let store = builder.open_engine(Arc::new(engine)).unwrap();
        let rows = store.keyspace("rows").unwrap();
        Self { store, rows, hooks, memory: memory.clone() }
    }

    pub fn get(&self, key: &str) -> Option<String> {
        text(self.store.begin().unwrap().get(&self.rows, key).unwrap())
    }

    pub fn put(&self, key: &str, value: impl AsRef<[u8]>) -> Result<Commit> {
        let mut txn = self.store.begin()?;
        txn.put(&self.rows, key, value.as_ref())?;
        txn.commit()
    }

    /// The number of row locks, counted without resolving them.
    pub fn row_locks(&self) -> usize {
        self.store.row_locks().unwrap().map(Result::unwrap).count()
    }

    /// The token of the only holder of the lock.
    pub fn token_of(&self, name: &str) -> Timestamp {
        let holders = self.store.lock_holders(name).unwrap();
        assert_eq!(holders.len(), 1, "{holders:?}");
        holders[0].token.expect("the grant has no token")
    }

    /// Stops each commit of the row after it is decided and before it is visible.
    pub fn stop_commit(&self, key: &str) -> Gate {
        let (gate, barrier) = Gate::closed();
        let row = self.rows.row_key(key);
        self.hooks.on_write(move |groups| {
            if commits(groups, &row) {
                barrier.pass();
            }
            Act::Pass
        });
        gate
    }

    /// A flag that is set while a commit of the row is decided and not visible. A yield makes that
    /// time a little longer.
    pub fn watch_commits(&self, key: &str) -> Arc<atomic::AtomicBool> {
        let under_way = Arc::<atomic::AtomicBool>::default();
        let (row, flag) = (self.rows.row_key(key), Arc::clone(&under_way));
        self.hooks.on_write(move |groups| {
            if commits(groups, &row) {
                flag.store(true, atomic::Ordering::SeqCst);
                std::thread::yield_now();
                flag.store(false, atomic::Ordering::SeqCst);
            }
            Act::Pass
        });
        under_way
    }

    /// Stops two-phase commits before they lock the row.
    pub fn stop_prewrite(&self, key: &str) -> Gate {
        let (gate, barrier) = Gate::closed();
        let row = self.rows.row_key(key);
        self.hooks.on_write(move |groups| {
            if locks(groups, &row) {
                barrier.pass();
            }
            Act::Pass
        });
        gate
    }

    /// Stops every later sync until the gate opens. From then on, each sync does what `act` says.
    pub fn stop_syncs(&self, act: Act) -> Gate {
        let (gate, barrier) = Gate::closed();
        self.hooks.on_sync(move || {
            barrier.pass();
            act
        });
        gate
    }
}

/// Checks the results of rounds. In each round the grant of one holder ends during a fenced commit
/// of that holder, and then the next holder is granted.
#[derive(Default)]
pub struct Rounds {
    last: Option<String>,
    /// The number of commits that succeeded.
    pub committed: u64,
}

impl Rounds {
    /// `answer` is the result of the holder's commit. `tokens` are those of this holder and of the
    /// next one, which has read `seen`.
    #[track_caller]
    pub fn check(&mut self, round: u64, answer: Result<Commit>, tokens: [Timestamp; 2], seen: Option<String>) {
        match answer {
            Ok(Commit { commit_ts: ts, .. }) => {
                let [before, after] = tokens;
                assert!(before < ts && ts < after, "round {round}: {before} {ts} {after}");
                self.last = Some(round.to_string());
                self.committed += 1;
            }
            Err(error) => assert!(is_lost(&error), "{error}"),
        }
        assert_eq!(seen, self.last, "round {round}");
    }
}

pub fn text(value: Option<impl AsRef<[u8]>>) -> Option<String> {
    value.map(|bytes| String::from_utf8(bytes.as_ref().to_vec()).unwrap())
}

pub fn some(value: &str) -> Option<String> {
    Some(value.to_owned())
}

pub fn buffered(protocol: CommitProtocol) -> TxnOptions {
    TxnOptions::default().durability(Durability::Buffered).commit_protocol(protocol)
}

#[track_caller]
pub fn assert_lost<T>(answer: Result<T>, token: Timestamp, reason: LockLostReason) {
    let error = answer.err().expect("the call succeeded");
    let ErrorKind::LockLost(lost) = error.kind() else { panic!("not a lost lock: {error}") };
    assert_eq!((lost.target.clone(), lost.token, lost.reason), ("n".into(), token, reason));
}

pub fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::LockLost(_))
}

/// Waits for an effect of other threads.
#[track_caller]
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A thread that is joined with a timeout.
pub struct Worker<T> {
    thread: JoinHandle<T>,
    ended: Receiver<()>,
}

pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Worker<T> {
    let (ends, ended) = channel();
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    let work = move || {
        let _ends = ends;
        work()
    };
    Worker { thread: std::thread::Builder::new().name(name).spawn(work).unwrap(), ended }
}

impl<T> Worker<T> {
    #[track_caller]
    pub fn join(self) -> T {
        assert_eq!(self.ended.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Disconnected), "the thread does not end");
        self.thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    }

    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Random numbers by splitmix64.
pub struct Dice(u64);

impl Dice {
    /// Prints the seed; `PERCOLITE_SEED` sets it.
    pub fn new() -> Self {
        let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = std::env::var("PERCOLITE_SEED").map_or(seed, |seed| seed.parse().unwrap());
        println!("PERCOLITE_SEED={seed}");
        Self(seed)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    pub fn fork(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }
}
