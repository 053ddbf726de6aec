//! Helpers for several files of this test: requests on other threads, and views of the lock table.

pub mod blocked_syncs;
pub mod clocks;
pub mod fair_order;
pub mod paused;
pub mod rows;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use percolite::{Error, ErrorKind, LockEntry, LockGuard, LockOptions, LockState, LockWaitPolicy, Result, Store};

/// A wait that lasts longer has failed.
pub const LIMIT: Duration = Duration::from_secs(30);

/// What [`held`] returns if there is no holder, and [`queue`] if there is no waiting request.
pub const NO_REQUESTS: [u64; 0] = [];

/// The prefix of the names of requesting threads. Each thread has a name of its own.
const ASKS: &str = "asks";
static ASKED: AtomicU64 = AtomicU64::new(0);

/// A request that another thread has made and waits for.
pub struct Asking {
    answers: Receiver<Result<LockGuard>>,
    /// The request's number in the lock table, if it had to wait.
    pub waits_as: Option<u64>,
}

/// Makes a request without a timeout on another thread; returns when the request waits or has its
/// result. Meanwhile no other thread may make a request for the name, because it would be mistaken
/// for this one.
pub fn asks(store: &Store, name: &str, options: LockOptions) -> Asking {
    asks_with(store, name, options.wait(LockWaitPolicy::Forever))
}

/// [`asks`] with the wait policy of `options`.
pub fn asks_with(store: &Store, name: &str, options: LockOptions) -> Asking {
    let before: HashSet<u64> = queue(store, name).into_iter().collect();
    let (answer, answers) = channel();
    let (asking, name_there) = (store.clone(), name.to_owned());
    let thread = std::thread::Builder::new().name(format!("{ASKS} {}", ASKED.fetch_add(1, Ordering::Relaxed)));
    thread.spawn(move || answer.send(asking.lock_with(&name_there, options))).unwrap();
    let (sends, received) = channel();
    let mut asking = Asking { answers: received, waits_as: None };
    let began = Instant::now();
    loop {
        // The request may have returned already. Then `asking` gets the result.
        if let Ok(answer) = answers.recv_timeout(Duration::from_micros(200)) {
            sends.send(answer).unwrap();
            return asking;
        }
        if let Some(id) = queue(store, name).into_iter().find(|id| !before.contains(id)) {
            asking.answers = answers;
            asking.waits_as = Some(id);
            return asking;
        }
        assert!(began.elapsed() < LIMIT, "the request neither waits nor returns");
    }
}

impl Asking {
    pub fn id(&self) -> u64 {
        self.waits_as.expect("the request had to wait")
    }

    /// The result, if the request has returned.
    pub fn answer(&self) -> Option<Result<LockGuard>> {
        self.answers.try_recv().ok()
    }

    pub fn waits_for_answer(&self) -> Result<LockGuard> {
        self.answers.recv_timeout(LIMIT).unwrap_or_else(|error| {
            assert_ne!(error, RecvTimeoutError::Timeout, "the wait does not end");
            unreachable!("the thread has ended without a result")
        })
    }

    pub fn granted(&self) -> LockGuard {
        self.waits_for_answer().unwrap()
    }

    pub fn refused(&self) -> Error {
        self.waits_for_answer().unwrap_err()
    }
}

pub fn entries(store: &Store, name: &str) -> Vec<LockEntry> {
    let entries = store.lock_table().unwrap().entries;
    entries.into_iter().filter(|entry| entry.target == name.into()).collect()
}

fn ids(store: &Store, name: &str, is: fn(LockState) -> bool) -> Vec<u64> {
    entries(store, name).iter().filter(|entry| is(entry.state)).map(|entry| entry.id).collect()
}

/// The numbers of the holders, in request order.
pub fn held(store: &Store, name: &str) -> Vec<u64> {
    ids(store, name, |state| state != LockState::Waiting)
}

/// The numbers of the waiting requests, in request order.
pub fn queue(store: &Store, name: &str) -> Vec<u64> {
    ids(store, name, |state| state == LockState::Waiting)
}

/// Waits until `holds` returns true.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `work` on another thread with a timeout.
pub fn within_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    let working = std::thread::spawn(move || done.send(work()));
    match result.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => unreachable!("the work does not end"),
        Err(RecvTimeoutError::Disconnected) => std::panic::resume_unwind(working.join().unwrap_err()),
    }
}

pub fn is_invalid(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidArgument(_))
}

/// Random numbers. The seed is printed; `PERCOLITE_SEED` sets it.
pub struct Random(u64);

impl Random {
    pub fn new(test: &str) -> Self {
        let seed = std::env::var("PERCOLITE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            now.subsec_nanos().into()
        });
        println!("{test}: PERCOLITE_SEED={seed}");
        Self(seed)
    }

    /// A number less than `below`.
    pub fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from(mixed >> 33).unwrap() % below
    }
}
