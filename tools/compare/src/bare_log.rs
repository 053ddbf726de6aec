//! `bare-log`: durable commits without a store, as an upper bound for every store.
//!
//! Each client submits one log record after the other, each of the size that a transfer needs, and
//! waits until it is durable. A client that finds no sync in progress makes one itself. Clients
//! that submit during a sync sleep. When that sync has ended, one thread makes the next sync for
//! all of them, and one call wakes them.
//!
//! Nothing is read, checked or stored, and the log is preallocated. So the result is the limit of
//! the machine if each client has a thread: no store can be much faster. If a store reaches half of
//! the limit, no other store can be much more than twice as fast.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::args::CommonArgs;
use crate::client::{Elapsed, Stopwatch};
use crate::format::{count, time};
use crate::interrupt;
use crate::statistics::Spread;

/// About how many bytes a store's log contains per transfer besides the two values.
const LOG_OVERHEAD_BYTES: usize = 96;
/// The log restarts at its beginning when it is full.
const LOG_BYTES: usize = 64 << 20;
/// Waiters of the current sync and of the next one are in different slots, so that the end of a
/// sync does not wake the clients that wait for the next one.
const WAKE_SLOTS: usize = 2;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The results for one number of clients.
#[derive(Serialize)]
pub struct BareLog {
    pub clients: u64,
    pub commits_per_second: Spread,
    pub commits_per_sync: Spread,
    /// Processor time per commit, in microseconds.
    pub cpu: Spread,
}

/// Measures each number of clients, in each round. `None` if the run was interrupted.
pub fn run(clients: &[u64], args: &CommonArgs) -> Result<Option<Vec<BareLog>>> {
    let (scratch, conditions) = (args.scratch_dir()?, args.conditions());
    let (warm_up, measured) =
        (Duration::from_millis(conditions.warm_up_millis), Duration::from_millis(conditions.millis));
    let mut rounds = vec![Vec::new(); clients.len()];
    for _ in 0..args.rounds() {
        for (&clients, measurements) in clients.iter().zip(&mut rounds) {
            let log = scratch.path("log");
            let commit_bytes = 2 * conditions.value_bytes + LOG_OVERHEAD_BYTES;
            let Some(one) = measure(clients, &log, commit_bytes, warm_up, measured)? else { return Ok(None) };
            std::fs::remove_file(&log)?;
            measurements.push(one);
        }
    }
    let spread_of = |measurements: &[Measurement], of: fn(&Measurement) -> f64| {
        Spread::of(measurements.iter().map(of).collect()).context("no rounds")
    };
    let summarize = |(&clients, measurements): (&u64, &Vec<Measurement>)| {
        let commits_per_second = spread_of(measurements, Measurement::commits_per_second)?;
        let cpu = spread_of(measurements, Measurement::cpu)?;
        Ok(BareLog {
            clients,
            commits_per_second,
            commits_per_sync: spread_of(measurements, Measurement::commits_per_sync)?,
            cpu,
        })
    };
    clients.iter().zip(&rounds).map(summarize).collect::<Result<_>>().map(Some)
}

#[derive(Clone, Copy, Debug)]
struct Measurement {
    commits: u64,
    syncs: u64,
    elapsed: Elapsed,
}

#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
impl Measurement {
    fn commits_per_second(&self) -> f64 {
        self.commits as f64 / self.elapsed.time.as_secs_f64()
    }

    fn cpu(&self) -> f64 {
        self.elapsed.cpu.as_secs_f64() * 1e6 / self.commits as f64
    }

    fn commits_per_sync(&self) -> f64 {
        self.commits as f64 / self.syncs.max(1) as f64
    }
}

#[derive(Clone, Copy, Default)]
struct Counts {
    commits: u64,
    syncs: u64,
}

/// The log file.
struct Log {
    file: File,
    capacity: usize,
    written: usize,
    commit_bytes: usize,
    bytes: Vec<u8>,
}

impl Log {
    fn new(path: &Path, commit_bytes: usize, clients: u64) -> Result<Self> {
        let capacity = LOG_BYTES.max(usize::try_from(clients)? * commit_bytes);
        let mut file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        file.write_all(&vec![0; capacity])?;
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { file, capacity, written: 0, commit_bytes, bytes: Vec::new() })
    }

    fn append(&mut self, commits: usize) -> std::io::Result<()> {
        self.bytes.resize(commits * self.commit_bytes, 1);
        if self.written + self.bytes.len() > self.capacity {
            self.written = 0;
            self.file.seek(SeekFrom::Start(0))?;
        }
        self.written += self.bytes.len();
        self.file.write_all(&self.bytes)?;
        self.file.sync_data()
    }
}

#[derive(Default)]
struct State {
    /// The number of submitted commits that no sync has taken yet.
    waiting: usize,
    is_syncing: bool,
    /// The numbers of started and finished syncs.
    started: usize,
    finished: usize,
    counts: Counts,
    stopped: bool,
}

/// What the clients and the sync thread share.
struct Commits {
    state: Mutex<State>,
    /// Locked by the thread that syncs.
    log: Mutex<Log>,
    submitted: Condvar,
    synced: [Condvar; WAKE_SLOTS],
}

impl Commits {
    fn new(log: Log) -> Self {
        Self { state: Mutex::default(), log: Mutex::new(log), submitted: Condvar::new(), synced: Default::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        self.state().stopped = true;
        self.submitted.notify_all();
        self.synced.iter().for_each(Condvar::notify_all);
    }

    /// The loop of a client, which makes one commit after the other.
    fn commit_loop(&self) -> Result<()> {
        loop {
            let mut state = self.state();
            if state.stopped {
                return Ok(());
            }
            state.waiting += 1;
            if !state.is_syncing {
                self.sync(state)?;
                continue;
            }
            let sync = state.started + 1;
            let is_not_durable = |state: &mut State| state.finished < sync && !state.stopped;
            drop(self.synced[sync % WAKE_SLOTS].wait_while(state, is_not_durable));
        }
    }

    /// The loop of the sync thread, which syncs the commits that were submitted during another
    /// sync.
    fn sync_loop(&self) -> Result<()> {
        loop {
            let has_nothing = |state: &mut State| (state.waiting == 0 || state.is_syncing) && !state.stopped;
            let state = self.submitted.wait_while(self.state(), has_nothing).unwrap_or_else(PoisonError::into_inner);
            if state.stopped {
                return Ok(());
            }
            self.sync(state)?;
        }
    }

    /// Makes the submitted commits durable. No other sync may be in progress.
    fn sync(&self, mut state: MutexGuard<'_, State>) -> Result<()> {
        let commits = std::mem::take(&mut state.waiting);
        state.started += 1;
        state.is_syncing = true;
        let sync = state.started;
        drop(state);
        self.log.lock().unwrap_or_else(PoisonError::into_inner).append(commits).context("cannot write the log")?;
        let mut state = self.state();
        state.finished = sync;
        state.is_syncing = false;
        state.counts.syncs += 1;
        state.counts.commits += commits as u64;
        let more = state.waiting > 0;
        drop(state);
        self.synced[sync % WAKE_SLOTS].notify_all();
        if more {
            self.submitted.notify_one();
        }
        Ok(())
    }
}

/// Stops all threads when one of them ends, also by a panic.
struct StopOnDrop<'a>(&'a Commits);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Measures one number of clients, in one round. `None` if the run was interrupted.
fn measure(
    clients: u64,
    path: &Path,
    commit_bytes: usize,
    warm_up: Duration,
    measured: Duration,
) -> Result<Option<Measurement>> {
    let commits = Commits::new(Log::new(path, commit_bytes, clients)?);
    std::thread::scope(|scope| {
        let commits = &commits;
        let stop_on_drop = StopOnDrop(commits);
        let mut threads = vec![scope.spawn(|| {
            let _stop_on_drop = StopOnDrop(commits);
            commits.sync_loop()
        })];
        threads.extend((0..clients).map(|_| {
            scope.spawn(|| {
                let _stop_on_drop = StopOnDrop(commits);
                commits.commit_loop()
            })
        }));
        sleep(warm_up, commits);
        let (started, before) = (Stopwatch::now(), commits.state().counts);
        sleep(measured, commits);
        let (elapsed, after) = (started.elapsed(), commits.state().counts);
        drop(stop_on_drop);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        ensure!(after.commits > before.commits || interrupt::interrupted(), "no commit became durable");
        let (commits, syncs) = (after.commits - before.commits, after.syncs - before.syncs);
        Ok((!interrupt::interrupted()).then_some(Measurement { commits, syncs, elapsed }))
    })
}

/// Sleeps for the duration, or until the run is interrupted or a thread has failed.
fn sleep(duration: Duration, commits: &Commits) {
    let started = Instant::now();
    while !interrupt::interrupted() && !commits.state().stopped {
        let left = duration.saturating_sub(started.elapsed());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
}

pub fn show(all: &[BareLog]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["clients", "commits/s", "min..max", "commits/sync", "cpu/commit"]);
    for one in all {
        let Spread { median, min, max } = one.commits_per_second;
        table.add_row([
            one.clients.to_string(),
            count(median),
            format!("{}..{}", count(min), count(max)),
            format!("{:.1}", one.commits_per_sync.median),
            time(one.cpu.median),
        ]);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_covers_at_most_one_commit_per_client() {
        let dir = tempfile::tempdir().unwrap();
        for clients in [1, 8] {
            let (warm_up, measured) = (Duration::from_millis(20), Duration::from_millis(200));
            let one = measure(clients, &dir.path().join("log"), 300, warm_up, measured).unwrap().unwrap();
            assert!(one.syncs > 0);
            assert!((one.syncs..=one.syncs * clients).contains(&one.commits), "{clients}: {one:?}");
        }
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing").join("log");
        assert!(measure(1, &missing, 300, Duration::ZERO, Duration::ZERO).is_err());
    }

    #[test]
    fn a_failed_log_stops_all_clients() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log::new(&path, 300, 4).unwrap();
        // The file is opened read-only, so that writes fail.
        log.file = File::open(&path).unwrap();
        let commits = Commits::new(log);
        std::thread::scope(|scope| {
            let run = || {
                let _stop_on_drop = StopOnDrop(&commits);
                commits.commit_loop()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            let failed = threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).count();
            assert_eq!(failed, 1);
        });
    }
}
