//! Builds the store whose log is damaged, and records the length of the log at every answer.
//!
//! The log is copied when it is idle, so that the sync record proves that all its commits are
//! durable. With an even seed the record is left out, as if the power had failed before it was
//! written; then there is no proof for the last commits.
//!
//! Positions are counted from the two headers, which come first, over the frames, to the rest of
//! the header blocks.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use percolite::engine::Engine;
use percolite::engine::directory::DirectoryOptions;
use percolite::engine::storage::Storage as _;
use percolite::{CommitProtocol, Durability, Store};

use super::deterministic_env::{DeterministicEnv, OpenOnDrop};
use crate::client::{Client, ClientConfig, ClientId, ROWS, Recorder, SECOND};
use crate::client_log::{Answer, ClientLog, Entry};
use crate::history::Outcome;
use crate::layer_args::scratch_dir;
use crate::log_parser::{
    FRAMES_AT, Frame, HEADER_BYTES, HEADERS_AT, SYNC_RECORD, SyncRecord, frames, header, segments, sync_record,
    valid_length,
};
use crate::rng::SeededRng;
use crate::verify_store::{SMALL_STORE, open_engine};
use crate::workload;

/// One seed in this many has large transactions.
const LARGE_EVERY: u64 = 3;
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// An idle store has written its sync record within this time.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);

/// A store as a set of files.
pub struct SampleStore {
    /// The workload of its client.
    pub workload: &'static str,
    /// The commit protocol of its client.
    pub protocol: CommitProtocol,
    /// All files except the log, by path.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The path of the log.
    pub log_name: PathBuf,
    /// The only segment of the log, without the preallocated zeros after the first step.
    pub log: Vec<u8>,
    /// The sync record of the log; `None` if the store has none.
    pub record: Option<SyncRecord>,
    /// The ranges of the log in the order of positions.
    ranges: Vec<Range<usize>>,
    /// How many positions are in headers and frames.
    pub content_bytes: usize,
    /// The number of large commits.
    pub large_commits: u64,
    commits: Vec<(u64, Entry)>,
    /// The length of the log when an answer was recorded, the transaction's number, and the answer.
    answers: Vec<(usize, u64, Answer)>,
}

/// The acknowledged commits at some length of the log.
#[derive(Debug, Default)]
pub struct Acknowledged {
    /// Their number.
    pub count: u64,
    /// The largest commit timestamp.
    pub newest: u64,
}

impl SampleStore {
    /// The client log with the answers that were recorded while the store's log had at most this
    /// length, and with all aborts; and the acknowledged commits among these answers.
    pub fn log_at(&self, length: usize) -> (ClientLog, Acknowledged) {
        let mut client_log = ClientLog::default();
        let mut acknowledged = Acknowledged::default();
        for (number, entry) in &self.commits {
            client_log.record_commit(*number, entry.clone());
        }
        for (at, number, answer) in &self.answers {
            if *at <= length || answer.outcome == Outcome::Aborted {
                client_log.record_answer(*number, *answer);
            }
            if *at <= length && answer.outcome == Outcome::Committed {
                acknowledged.count += 1;
                acknowledged.newest = acknowledged.newest.max(answer.commit_ts.unwrap_or_default());
            }
        }
        (client_log, acknowledged)
    }

    /// The offset of a position in the log; the end of the log for later positions.
    pub fn offset(&self, position: usize) -> usize {
        let mut left = position;
        for range in &self.ranges {
            if left < range.len() {
                return range.start + left;
            }
            left -= range.len();
        }
        self.log.len()
    }

    /// Writes the store into a directory, with this log.
    pub fn write(&self, dir: &Path, log: &[u8]) -> std::io::Result<()> {
        let files = self.files.iter().map(|(name, content)| (name, &content[..]));
        for (name, content) in files.chain([(&self.log_name, log)]) {
            let file = dir.join(name);
            fs::create_dir_all(file.parent().unwrap_or(dir))?;
            fs::write(file, content)?;
        }
        Ok(())
    }

    /// The commit timestamp of each acknowledged commit, by transaction number.
    pub fn acknowledged_commits(&self) -> BTreeMap<u64, u64> {
        self.log_at(usize::MAX).0.acknowledged_commits()
    }

    /// The number of transactions.
    pub fn transactions(&self) -> u64 {
        self.commits.len() as u64
    }
}

/// Builds the store of a seed. Even seeds commit in two phases; every third seed has large
/// transactions.
pub fn build(seed: u64) -> anyhow::Result<SampleStore> {
    let mut rng = SeededRng::new(seed);
    let workload = *rng.pick(workload::ALL).unwrap_or(&workload::ALL[0]);
    let protocol = if seed.is_multiple_of(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
    let dir = scratch_dir()?;
    // The log must be one segment, so it must not become full.
    let engine = open_engine(dir.path(), DirectoryOptions { write_buffer_bytes: 64 << 20, ..SMALL_STORE })?;
    let env = DeterministicEnv::default();
    let gate = env.gate();
    let large_transaction_bytes = if seed.is_multiple_of(LARGE_EVERY) { 100 } else { 16 << 20 };
    let store = Store::builder()
        .durability(Durability::Sync)
        .background_resolve(false)
        .conflict_set_rows(64)
        .large_transaction_bytes(large_transaction_bytes)
        .env(Arc::new(env))
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let _open = OpenOnDrop(Arc::clone(&gate));
    let (second, rows) = (store.keyspace(SECOND)?, store.keyspace(ROWS)?);
    // Background work after the opening would write to the log at a random time.
    gate.close_after_cleanup();
    // In a store with large transactions those that created the keyspaces are large, too, and their
    // locks must be cleaned up.
    gate.finish_large_transactions(&store);
    let log = segments(dir.path())?.into_iter().next().ok_or_else(|| anyhow::anyhow!("no log"))?;
    let recorder = LengthRecorder::new(&log);
    let mut opened_at = 0;
    while opened_at != recorder.length() {
        opened_at = recorder.length();
        std::thread::sleep(SETTLE_TIME);
    }
    let config = ClientConfig { protocol, durability: Durability::Sync, long_value_every: 6 };
    let client_id = ClientId { session: 0, incarnation: 0, config };
    let mut client = Client::new((&store, &*engine), (rows, Some(second)), &recorder, client_id, rng.split());
    client.attempt(|txn| workload.load(txn))?;
    gate.finish_large_transactions(&store);
    for _ in 0..60 + rng.below(40) {
        client.run(workload)?;
        gate.finish_large_transactions(&store);
    }
    let large_commits = store.stats().commits_large;
    anyhow::ensure!((large_commits > 0) == seed.is_multiple_of(LARGE_EVERY), "{large_commits} large commits");
    // The cleanup of a large transaction causes no sync, and without a sync the store writes no
    // record.
    engine.storage().sync()?;
    let record = await_record(dir.path(), &log)?;
    // The files are read while the store is open, because closing would write more.
    let mut files = Vec::new();
    read_files(dir.path(), Path::new(""), &mut files)?;
    let segments_begun =
        segments(dir.path())?.iter().filter(|file| fs::read(file).is_ok_and(|file| header(&file).is_some())).count();
    anyhow::ensure!(segments_begun == 1, "the log has {segments_begun} segments, expected 1");
    let log_name = log.strip_prefix(dir.path())?.to_owned();
    let record = if seed.is_multiple_of(2) {
        files.retain(|(name, _)| name != Path::new(SYNC_RECORD));
        None
    } else {
        Some(record)
    };
    Ok(SampleStore { record, large_commits, ..recorder.into_sample((workload.name(), protocol), files, log_name)? })
}

/// Waits for a sync record that covers the whole log, after which an idle store writes nothing.
fn await_record(store_dir: &Path, log: &Path) -> anyhow::Result<SyncRecord> {
    let began = Instant::now();
    loop {
        let last = frames(&fs::read(log)?).last().map_or(0, |frame| frame.sequence);
        let record = sync_record(store_dir);
        if let Some(record) = record.filter(|record| record.sequence == last) {
            return Ok(record);
        }
        anyhow::ensure!(
            began.elapsed() < RECORD_TIMEOUT,
            "no sync record of frame {last} within {RECORD_TIMEOUT:?}: {record:?}"
        );
        std::thread::sleep(POLL);
    }
}

fn read_files(store: &Path, subdir: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) -> anyhow::Result<()> {
    for entry in fs::read_dir(store.join(subdir))? {
        let entry = entry?;
        let name = subdir.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            read_files(store, &name, files)?;
        // RocksDB's info log is long and not needed.
        } else if entry.file_name() != "LOG" {
            files.push((name, fs::read(entry.path())?));
        }
    }
    Ok(())
}

/// The ranges of the log in the order of positions, and the number of positions in headers and
/// frames.
fn ranges_of(log: &[u8]) -> (Vec<Range<usize>>, usize) {
    let mut ranges: Vec<Range<usize>> = HEADERS_AT.iter().map(|at| *at..at + HEADER_BYTES).collect();
    ranges.extend(frames(log).iter().map(|frame| frame.offset..frame.end()));
    let content_bytes = ranges.iter().map(Range::len).sum();
    ranges.extend([HEADER_BYTES..HEADERS_AT[1], HEADERS_AT[1] + HEADER_BYTES..FRAMES_AT]);
    ranges.push(valid_length(log)..log.len());
    (ranges, content_bytes)
}

/// A recorder that adds the length of the log to each answer.
struct LengthRecorder {
    log: PathBuf,
    ticks: AtomicU64,
    commits: Mutex<Vec<(u64, Entry)>>,
    answers: Mutex<Vec<(usize, u64, Answer)>>,
}

impl LengthRecorder {
    fn new(log: &Path) -> Self {
        Self { log: log.into(), ticks: AtomicU64::new(0), commits: Mutex::default(), answers: Mutex::default() }
    }

    /// The end of the last frame.
    fn length(&self) -> usize {
        let frames = fs::read(&self.log).map(|log| frames(&log));
        frames.map_or(usize::MAX, |frames| frames.last().map_or(FRAMES_AT, Frame::end))
    }

    fn into_sample(
        self,
        (workload, protocol): (&'static str, CommitProtocol),
        mut files: Vec<(PathBuf, Vec<u8>)>,
        log_name: PathBuf,
    ) -> anyhow::Result<SampleStore> {
        let at = files.iter().position(|(name, _)| *name == log_name).ok_or_else(|| anyhow::anyhow!("no log"))?;
        let (_, mut log) = files.swap_remove(at);
        let first_step = header(&log).map_or(0, |header| header.durable_bytes);
        log.truncate(valid_length(&log).max(usize::try_from(first_step)?));
        let (ranges, content_bytes) = ranges_of(&log);
        let commits = self.commits.into_inner();
        let answers = self.answers.into_inner();
        Ok(SampleStore {
            workload,
            protocol,
            files,
            log_name,
            log,
            record: None,
            ranges,
            content_bytes,
            large_commits: 0,
            commits,
            answers,
        })
    }
}

impl Recorder for LengthRecorder {
    fn now(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn number(&self) -> u64 {
        self.now()
    }

    fn record_commit(&self, number: u64, entry: Entry) {
        self.commits.lock().push((number, entry));
    }

    fn record_answer(&self, number: u64, answer: Answer) {
        let length = self.length();
        self.answers.lock().push((length, number, answer));
    }
}
