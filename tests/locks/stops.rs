//! A store in memory that a test stops at its engine, and whose machine it crashes.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, atomic};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::{
    Builder, Commit, CommitProtocol, Durability, Error, ErrorKind, Keyspace, LockLostReason, Result, Store, Timestamp,
    TxnOptions,
};

use crate::tap::{Act, Control, Gate, Tap, commits, locks};

/// Waits that last longer have failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// An open store, its one keyspace, and what is below.
#[derive(Clone)]
pub struct World {
    pub store: Store,
    pub rows: Keyspace,
    pub tap: Arc<Control>,
    pub memory: SimStorage,
}

impl World {
    pub fn open() -> Self {
        Self::open_at(&SimStorage::new(), Store::builder())
    }

    pub fn open_at(memory: &SimStorage, builder: Builder) -> Self {
        let tap = Arc::<Control>::default();
        let engine =
            Tap { engine: Arc::new(memory.exclusive_engine()), control: Arc::clone(&tap), group_rows_max: usize::MAX };
        let store = builder.open_engine(Arc::new(engine)).unwrap();
        let rows = store.keyspace("rows").unwrap();
        Self { store, rows, tap, memory: memory.clone() }
    }

    pub fn get(&self, key: &str) -> Option<String> {
        text(self.store.begin().unwrap().get(&self.rows, key).unwrap())
    }

    pub fn put(&self, key: &str, value: impl AsRef<[u8]>) -> Result<Commit> {
        let mut txn = self.store.begin()?;
        txn.put(&self.rows, key, value.as_ref())?;
        txn.commit()
    }

    /// How many rows are locked, resolving none.
    pub fn row_locks(&self) -> usize {
        self.store.row_locks().unwrap().map(Result::unwrap).count()
    }

    /// The token of the one who holds the lock.
    pub fn token_of(&self, name: &str) -> Timestamp {
        let holders = self.store.lock_holders(name).unwrap();
        assert_eq!(holders.len(), 1, "{holders:?}");
        holders[0].token.expect("it has not got its token")
    }

    /// Stops commits of the row when they are decided and not yet visible.
    pub fn stop_commit(&self, key: &str) -> Gate {
        let (gate, barrier) = Gate::closed();
        let row = self.rows.row_key(key);
        self.tap.on_write(move |groups| {
            if commits(groups, &row) {
                barrier.pass();
            }
            Act::Pass
        });
        gate
    }

    /// Says whether a commit of the row is decided and not visible at this moment. That takes a little longer.
    pub fn watch_commits(&self, key: &str) -> Arc<atomic::AtomicBool> {
        let under_way = Arc::<atomic::AtomicBool>::default();
        let (row, flag) = (self.rows.row_key(key), Arc::clone(&under_way));
        self.tap.on_write(move |groups| {
            if commits(groups, &row) {
                flag.store(true, atomic::Ordering::SeqCst);
                std::thread::yield_now();
                flag.store(false, atomic::Ordering::SeqCst);
            }
            Act::Pass
        });
        under_way
    }

    /// Stops transactions of two phases when they lock the row.
    pub fn stop_prewrite(&self, key: &str) -> Gate {
        let (gate, barrier) = Gate::closed();
        let row = self.rows.row_key(key);
        self.tap.on_write(move |groups| {
            if locks(groups, &row) {
                barrier.pass();
            }
            Act::Pass
        });
        gate
    }

    /// Stops every sync from here on, and has each do this then.
    pub fn stop_syncs(&self, act: Act) -> Gate {
        let (gate, barrier) = Gate::closed();
        self.tap.on_sync(move || {
            barrier.pass();
            act
        });
        gate
    }
}

/// Holders one after the other, each with a fenced commit of one row that is under way when its grant ends.
#[derive(Default)]
pub struct Rounds {
    last: Option<String>,
    /// How many of the commits were made.
    pub stood: u64,
}

impl Rounds {
    /// `tokens` are those of this holder and the next, who has `seen` this.
    #[track_caller]
    pub fn judge(&mut self, round: u64, answer: Result<Commit>, tokens: [Timestamp; 2], seen: Option<String>) {
        match answer {
            Ok(Commit { commit_ts: ts, .. }) => {
                let [before, after] = tokens;
                assert!(before < ts && ts < after, "round {round}: {before} {ts} {after}");
                self.last = Some(round.to_string());
                self.stood += 1;
            }
            Err(why) => assert!(is_lost(&why), "{why}"),
        }
        assert_eq!(seen, self.last, "round {round}");
    }
}

pub fn text(value: Option<Vec<u8>>) -> Option<String> {
    value.map(|bytes| String::from_utf8(bytes).unwrap())
}

pub fn some(value: &str) -> Option<String> {
    Some(value.to_owned())
}

pub fn buffered(protocol: CommitProtocol) -> TxnOptions {
    TxnOptions { durability: Some(Durability::Buffered), commit_protocol: Some(protocol), ..TxnOptions::default() }
}

#[track_caller]
pub fn assert_lost<T>(answer: Result<T>, token: Timestamp, reason: LockLostReason) {
    let why = answer.err().expect("it was committed");
    let ErrorKind::LockLost(lost) = why.kind() else { panic!("not a lost lock: {why}") };
    assert_eq!((lost.target.clone(), lost.token, lost.reason), ("n".into(), token, reason));
}

pub fn is_lost(why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::LockLost(_))
}

/// Waits for what other threads bring about.
#[track_caller]
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "it never happens: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A thread that is not waited for without end.
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
        assert_eq!(self.ended.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected), "it never ends");
        self.thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    }

    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Splitmix64.
pub struct Dice(u64);

impl Dice {
    /// Says from which seed.
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
