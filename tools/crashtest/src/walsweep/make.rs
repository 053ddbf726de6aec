//! Makes the store whose log is damaged afterwards, and notes how long the log was at every answer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percolite::engine::Engine;
use percolite::runtime::{Joined, Parker, Runtime, System};
use percolite::{CommitProtocol, Durability, Store};

use crate::client::{BESIDE, Client, Habits, ROWS, Sink, Who};
use crate::dice::Dice;
use crate::examine::{MEMORY, engine};
use crate::history::Outcome;
use crate::ledger::{Answer, Entry, Ledger};
use crate::order::scratch;
use crate::powercut::logs::logs;
use crate::workload;

/// Any moment will do.
const NOW_MS: u64 = 1_800_000_000_000;
const SETTLES: Duration = Duration::from_millis(100);

/// A store, taken apart.
pub struct Made {
    /// What its client did.
    pub workload: &'static str,
    /// How.
    pub protocol: CommitProtocol,
    /// All files but the log.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Where the log was.
    pub log_name: PathBuf,
    /// The log.
    pub log: Vec<u8>,
    /// How long the log was when the store had been opened.
    pub opened_at: usize,
    asked: Vec<(u64, Entry)>,
    /// With how long the log was.
    answered: Vec<(usize, u64, Answer)>,
}

/// What was acknowledged.
#[derive(Debug, Default)]
pub struct Acknowledged {
    /// How many commits.
    pub count: u64,
    /// The newest of them.
    pub newest: u64,
}

impl Made {
    /// What the client had been told when the log was this long; the rest was asked for and not answered.
    pub fn ledger_at(&self, length: usize) -> (Ledger, Acknowledged) {
        let mut ledger = Ledger::default();
        let mut acknowledged = Acknowledged::default();
        for (number, entry) in &self.asked {
            ledger.asked(*number, entry.clone());
        }
        for (at, number, answer) in &self.answered {
            if *at <= length || answer.outcome == Outcome::Aborted {
                ledger.answered(*number, *answer);
            }
            if *at <= length && answer.outcome == Outcome::Committed {
                acknowledged.count += 1;
                acknowledged.newest = acknowledged.newest.max(answer.commit_ts.unwrap_or_default());
            }
        }
        (ledger, acknowledged)
    }

    /// Everything that the client was told in the end.
    pub fn told(&self) -> BTreeMap<u64, u64> {
        self.ledger_at(usize::MAX).0.told()
    }

    /// How many transactions it ran.
    pub fn transactions(&self) -> u64 {
        self.asked.len() as u64
    }
}

/// Makes the store of a seed; even seeds commit in two phases.
pub fn make(seed: u64) -> anyhow::Result<Made> {
    let mut dice = Dice::new(seed);
    let workload = *dice.pick(workload::ALL).unwrap_or(&workload::ALL[0]);
    let protocol = if seed.is_multiple_of(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
    let place = scratch()?;
    let engine = engine(place.path(), MEMORY)?;
    let store = Store::builder()
        .durability(Durability::Sync)
        .sweep(false)
        .conflict_slots(64)
        .runtime(Arc::new(Frozen(System::default())))
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let (beside, rows) = (store.keyspace(BESIDE)?, store.keyspace(ROWS)?);
    // What the store does by itself after opening would come at another place of the log each time.
    std::thread::sleep(SETTLES);
    let log = logs(place.path())?.pop().ok_or_else(|| anyhow::anyhow!("no log"))?;
    let notes = Notes::new(&place.path().join(log));
    let opened_at = notes.length();
    let habits = Habits { protocol, durability: Durability::Sync, long_values: 6 };
    let who = Who { session: 0, life: 0, habits };
    let mut client = Client::new((&store, &*engine), (rows, Some(beside)), &notes, who, dice.split());
    client.attempt(|txn| workload.load(txn))?;
    for _ in 0..60 + dice.below(40) {
        client.run(workload)?;
    }
    // The folder as it is while the store is open: closing would write more.
    let kept = read_files(place.path())?;
    anyhow::ensure!(kept.iter().filter(|(name, _)| is_log(name)).count() == 1, "more than one log");
    Ok(Made { opened_at, ..notes.into_made(workload.name(), protocol, kept)? })
}

fn is_log(name: &Path) -> bool {
    name.extension().is_some_and(|ext| ext == "log")
}

fn read_files(folder: &Path) -> anyhow::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // RocksDB's diary is long and read by nobody.
        if entry.file_type()?.is_file() && entry.file_name() != "LOG" {
            files.push((PathBuf::from(entry.file_name()), fs::read(entry.path())?));
        }
    }
    Ok(files)
}

/// A ledger with the log's length at each answer.
struct Notes {
    log: PathBuf,
    ticks: AtomicU64,
    asked: Mutex<Vec<(u64, Entry)>>,
    answered: Mutex<Vec<(usize, u64, Answer)>>,
}

impl Notes {
    fn new(log: &Path) -> Self {
        Self { log: log.into(), ticks: AtomicU64::new(0), asked: Mutex::default(), answered: Mutex::default() }
    }

    fn length(&self) -> usize {
        fs::metadata(&self.log).map_or(usize::MAX, |about| usize::try_from(about.len()).unwrap_or(usize::MAX))
    }

    fn into_made(
        self,
        workload: &'static str,
        protocol: CommitProtocol,
        mut files: Vec<(PathBuf, Vec<u8>)>,
    ) -> anyhow::Result<Made> {
        let at = files.iter().position(|(name, _)| is_log(name)).ok_or_else(|| anyhow::anyhow!("no log"))?;
        let (log_name, log) = files.swap_remove(at);
        let asked = self.asked.into_inner();
        let answered = self.answered.into_inner();
        Ok(Made { workload, protocol, files, log_name, log, opened_at: 0, asked, answered })
    }
}

impl Sink for Notes {
    fn now(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn number(&self) -> u64 {
        self.now()
    }

    fn asked(&self, number: u64, entry: Entry) {
        self.asked.lock().push((number, entry));
    }

    fn answered(&self, number: u64, answer: Answer) {
        let length = self.length();
        self.answered.lock().push((length, number, answer));
    }
}

/// The system with a clock that stands still and dice that always fall the same. Nothing happens in the background because
/// some time has passed.
struct Frozen(System);

impl Runtime for Frozen {
    fn unix_millis(&self) -> u64 {
        NOW_MS
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn random(&self) -> u64 {
        42
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration);
    }

    fn parker(&self) -> Arc<dyn Parker> {
        Arc::new(Patient(self.0.parker()))
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn Joined>> {
        self.0.spawn(name, work)
    }
}

struct Patient(Arc<dyn Parker>);

impl Parker for Patient {
    fn park(&self, _: Option<Duration>) {
        self.0.park(None);
    }

    fn unpark(&self) {
        self.0.unpark();
    }
}
