//! Makes the store whose log is damaged afterwards, and notes how long the log was at every answer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percolite::engine::Engine;
use percolite::{CommitProtocol, Durability, Store};

use super::frozen::{Frozen, OpenInTheEnd};
use crate::client::{BESIDE, Client, Habits, ROWS, Sink, Who};
use crate::dice::Dice;
use crate::examine::{MEMORY, engine};
use crate::history::Outcome;
use crate::ledger::{Answer, Entry, Ledger};
use crate::order::scratch;
use crate::powercut::logs::{logs, written};
use crate::workload;

/// Of so many seeds one streams.
const STREAMS: u64 = 3;
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
    /// The log, without room behind its records.
    pub log: Vec<u8>,
    /// How long the log was when the store had been opened.
    pub opened_at: usize,
    /// How many commits were streamed.
    pub streamed: u64,
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

    /// Whether an answer was given for what was written behind the record at this byte.
    pub fn goes_on_behind(&self, offset: usize) -> bool {
        // Between two answers, records are whole.
        let later = || self.answered.iter().map(|(at, _, _)| *at).filter(|at| *at > offset);
        later().min() < later().max()
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

/// Makes the store of a seed; even seeds commit in two phases, and of every third one the transactions stream.
pub fn make(seed: u64) -> anyhow::Result<Made> {
    let mut dice = Dice::new(seed);
    let workload = *dice.pick(workload::ALL).unwrap_or(&workload::ALL[0]);
    let protocol = if seed.is_multiple_of(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
    let place = scratch()?;
    let engine = engine(place.path(), MEMORY)?;
    let frozen = Frozen::default();
    let door = frozen.door();
    let stream_at_bytes = if seed.is_multiple_of(STREAMS) { 100 } else { 16 << 20 };
    let store = Store::builder()
        .durability(Durability::Sync)
        .sweep(false)
        .conflict_slots(64)
        .stream_at_bytes(stream_at_bytes)
        .runtime(Arc::new(frozen))
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let _open = OpenInTheEnd(Arc::clone(&door));
    let (beside, rows) = (store.keyspace(BESIDE)?, store.keyspace(ROWS)?);
    // What the store does by itself after opening would come at another place of the log each time.
    door.close_behind_housekeeper();
    // Where every transaction streams, those that made the keyspaces are to be ended, too.
    door.end_large_transactions(&store);
    let log = logs(place.path())?.pop().ok_or_else(|| anyhow::anyhow!("no log"))?;
    let notes = Notes::new(&place.path().join(log));
    let mut opened_at = 0;
    while opened_at != notes.length() {
        opened_at = notes.length();
        std::thread::sleep(SETTLES);
    }
    let habits = Habits { protocol, durability: Durability::Sync, long_values: 6 };
    let who = Who { session: 0, life: 0, habits };
    let mut client = Client::new((&store, &*engine), (rows, Some(beside)), &notes, who, dice.split());
    client.attempt(|txn| workload.load(txn))?;
    door.end_large_transactions(&store);
    for _ in 0..60 + dice.below(40) {
        client.run(workload)?;
        door.end_large_transactions(&store);
    }
    let streamed = store.stats().commits_streamed;
    anyhow::ensure!((streamed > 0) == seed.is_multiple_of(STREAMS), "{streamed} commits were streamed");
    // The folder as it is while the store is open: closing would write more.
    let kept = read_files(place.path())?;
    anyhow::ensure!(kept.iter().filter(|(name, _)| is_log(name)).count() == 1, "more than one log");
    Ok(Made { opened_at, streamed, ..notes.into_made(workload.name(), protocol, kept)? })
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
        fs::read(&self.log).map_or(usize::MAX, |log| written(&log))
    }

    fn into_made(
        self,
        workload: &'static str,
        protocol: CommitProtocol,
        mut files: Vec<(PathBuf, Vec<u8>)>,
    ) -> anyhow::Result<Made> {
        let at = files.iter().position(|(name, _)| is_log(name)).ok_or_else(|| anyhow::anyhow!("no log"))?;
        let (log_name, mut log) = files.swap_remove(at);
        log.truncate(written(&log));
        let asked = self.asked.into_inner();
        let answered = self.answered.into_inner();
        Ok(Made { workload, protocol, files, log_name, log, opened_at: 0, streamed: 0, asked, answered })
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
