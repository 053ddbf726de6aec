//! Makes the store whose log is damaged afterwards, and notes how long the log was at every answer.
//!
//! The store writes marks, frames without content, when its log is idle: when that is, no seed decides. So a place in the log is
//! counted without them: first the two headers, then the frames with content, in their order, and only then the marks and
//! what the headers leave of their blocks. The part of it that comes before the marks is the same in every run of a seed.
//!
//! The log is taken when its last mark is there, so that everything in it has a witness. Of even seeds this mark is left out, as if
//! the power had gone before, and the last commits have none.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use percolite::engine::Engine;
use percolite::engine::folder::FolderOptions;
use percolite::engine::storage::Storage as _;
use percolite::{CommitProtocol, Durability, Store};

use super::frozen::{Frozen, OpenInTheEnd};
use crate::client::{BESIDE, Client, Habits, ROWS, Sink, Who};
use crate::dice::Dice;
use crate::examine::{MEMORY, engine};
use crate::history::Outcome;
use crate::ledger::{Answer, Entry, Ledger};
use crate::order::scratch;
use crate::segments::{FRAMES_AT, Frame, HEADER_BYTES, HEADERS_AT, frames, header, segments, written};
use crate::workload;

/// Of so many seeds one streams.
const STREAMS: u64 = 3;
const SETTLES: Duration = Duration::from_millis(100);
/// An idle store has written its mark well within this time.
const MARKS_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);

/// A store, taken apart.
pub struct Made {
    /// What its client did.
    pub workload: &'static str,
    /// How.
    pub protocol: CommitProtocol,
    /// All files but the log, by their place in the folder.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Where the log was.
    pub log_name: PathBuf,
    /// The log's one segment, without the zeros behind its frames.
    pub log: Vec<u8>,
    /// The log's parts in the order in which places are counted.
    parts: Vec<Range<usize>>,
    /// How many places are the same in every run.
    pub steady: usize,
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

    /// Where in the log the place is; behind the last one it ends.
    pub fn offset(&self, place: usize) -> usize {
        let mut left = place;
        for part in &self.parts {
            if left < part.len() {
                return part.start + left;
            }
            left -= part.len();
        }
        self.log.len()
    }

    /// Writes the store into a folder, with this log.
    pub fn write(&self, folder: &Path, log: &[u8]) -> std::io::Result<()> {
        let files = self.files.iter().map(|(name, content)| (name, &content[..]));
        for (name, content) in files.chain([(&self.log_name, log)]) {
            let file = folder.join(name);
            fs::create_dir_all(file.parent().unwrap_or(folder))?;
            fs::write(file, content)?;
        }
        Ok(())
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
    // What is cut is one segment, so it must not be full before the end.
    let engine = engine(place.path(), FolderOptions { write_buffer_bytes: 64 << 20, ..MEMORY })?;
    let frozen = Frozen::default();
    let door = frozen.door();
    let stream_at_bytes = if seed.is_multiple_of(STREAMS) { 100 } else { 16 << 20 };
    let store = Store::builder()
        .durability(Durability::Sync)
        .background_resolve(false)
        .conflict_cache_rows(64)
        .large_transaction_bytes(stream_at_bytes)
        .runtime(Arc::new(frozen))
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let _open = OpenInTheEnd(Arc::clone(&door));
    let (beside, rows) = (store.keyspace(BESIDE)?, store.keyspace(ROWS)?);
    // What the store does by itself after opening would come at another place of the log each time.
    door.close_behind_housekeeper();
    // Where every transaction streams, those that made the keyspaces are to be ended, too.
    door.end_large_transactions(&store);
    let log = segments(place.path())?.into_iter().next().ok_or_else(|| anyhow::anyhow!("no log"))?;
    let notes = Notes::new(&log);
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
    let streamed = store.stats().commits_large;
    anyhow::ensure!((streamed > 0) == seed.is_multiple_of(STREAMS), "{streamed} commits were streamed");
    // What ends a large transaction is no commit, so nobody syncs it, and what is not durable gets no mark.
    engine.storage().sync()?;
    await_mark(&log)?;
    // The folder as it is while the store is open: closing would write more.
    let mut kept = Vec::new();
    read_files(place.path(), Path::new(""), &mut kept)?;
    let begun =
        segments(place.path())?.iter().filter(|file| fs::read(file).is_ok_and(|file| header(&file).is_some())).count();
    anyhow::ensure!(begun == 1, "the log has {begun} segments");
    let log_name = log.strip_prefix(place.path())?.to_owned();
    Ok(Made { streamed, ..notes.into_made((workload.name(), protocol), kept, log_name, seed.is_multiple_of(2))? })
}

/// Waits until the log ends with a mark, after which an idle store writes nothing.
fn await_mark(log: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let last = frames(&fs::read(log)?).pop();
        if last.is_some_and(|frame| frame.is_mark() && frame.durable + 1 == frame.sequence) {
            return Ok(());
        }
        anyhow::ensure!(began.elapsed() < MARKS_WITHIN, "no mark in {MARKS_WITHIN:?}, the log ends with {last:?}");
        std::thread::sleep(POLL);
    }
}

fn read_files(store: &Path, folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) -> anyhow::Result<()> {
    for entry in fs::read_dir(store.join(folder))? {
        let entry = entry?;
        let name = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            read_files(store, &name, files)?;
        // RocksDB's diary is long and read by nobody.
        } else if entry.file_name() != "LOG" {
            files.push((name, fs::read(entry.path())?));
        }
    }
    Ok(())
}

/// The log's parts in the order in which places are counted, and how many places come before the marks.
fn parts_of(log: &[u8]) -> (Vec<Range<usize>>, usize) {
    let (marks, frames): (Vec<_>, Vec<_>) = frames(log).into_iter().partition(Frame::is_mark);
    let mut parts: Vec<Range<usize>> = HEADERS_AT.iter().map(|at| *at..at + HEADER_BYTES).collect();
    parts.extend(frames.iter().map(|frame| frame.offset..frame.end()));
    let steady = parts.iter().map(Range::len).sum();
    parts.extend(marks.iter().map(|mark| mark.offset..mark.end()));
    parts.extend([HEADER_BYTES..HEADERS_AT[1], HEADERS_AT[1] + HEADER_BYTES..FRAMES_AT]);
    (parts, steady)
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

    /// Up to the last frame with content: a mark behind it is not what was waited for.
    fn length(&self) -> usize {
        let frames = fs::read(&self.log).map(|log| frames(&log));
        let last = |frames: Vec<Frame>| frames.iter().rfind(|frame| !frame.is_mark()).map(Frame::end);
        frames.map_or(usize::MAX, |frames| last(frames).unwrap_or(FRAMES_AT))
    }

    fn into_made(
        self,
        (workload, protocol): (&'static str, CommitProtocol),
        mut files: Vec<(PathBuf, Vec<u8>)>,
        log_name: PathBuf,
        without_mark: bool,
    ) -> anyhow::Result<Made> {
        let at = files.iter().position(|(name, _)| *name == log_name).ok_or_else(|| anyhow::anyhow!("no log"))?;
        let (_, mut log) = files.swap_remove(at);
        let content = frames(&log).iter().rfind(|frame| !frame.is_mark()).map_or(FRAMES_AT, Frame::end);
        log.truncate(if without_mark { content } else { written(&log) });
        let (parts, steady) = parts_of(&log);
        let asked = self.asked.into_inner();
        let answered = self.answered.into_inner();
        Ok(Made { workload, protocol, files, log_name, log, parts, steady, streamed: 0, asked, answered })
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
