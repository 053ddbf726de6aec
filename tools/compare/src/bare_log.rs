//! What durable commits cost where there is no store: a log, its syncs, and a sleep and a wake-up for each client.
//!
//! Each client hands in as many bytes as a transfer leaves in a log, and goes on when they are durable. Whoever finds that nobody syncs
//! does so at once; those who come meanwhile sleep, a thread syncs for all of them together, and one call wakes them. Nothing is read,
//! checked or kept, and the log has all its room from the beginning. So this is about what the machine gives to clients that have
//! a thread each, whatever they commit to. A store will hardly make more of it, and whoever is half as fast leaves no room for
//! anybody who is four times as fast.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::client::{Moment, Took};
use crate::compare::{count, time};
use crate::interrupt;
use crate::options::Arguments;
use crate::statistics::Spread;

/// Beside the values of the two rows, about what a store's log has of a transfer.
const MORE_BYTES: usize = 96;
/// The log is begun again at its start when it is full.
const LOG_BYTES: usize = 64 << 20;
/// Whoever waits for one sync must not be woken by the next one, nor the other way round.
const BELLS: usize = 2;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What came out with so many clients.
#[derive(Serialize)]
pub struct BareLog {
    pub clients: u64,
    pub commits_a_second: Spread,
    pub commits_a_sync: Spread,
    /// Of the processor for each commit, in microseconds.
    pub processor: Spread,
}

/// `None` if the run was interrupted.
pub fn run(clients: &[u64], arguments: &Arguments) -> Result<Option<Vec<BareLog>>> {
    let (scratch, conditions) = (arguments.scratch()?, arguments.conditions());
    let (warm_up, measured) =
        (Duration::from_millis(conditions.warm_up_millis), Duration::from_millis(conditions.millis));
    let mut rounds = vec![Vec::new(); clients.len()];
    for _ in 0..arguments.rounds() {
        for (&clients, measurements) in clients.iter().zip(&mut rounds) {
            let log = scratch.path("log");
            let commit_bytes = 2 * conditions.value_bytes + MORE_BYTES;
            let Some(one) = measure(clients, &log, commit_bytes, warm_up, measured)? else { return Ok(None) };
            std::fs::remove_file(&log)?;
            measurements.push(one);
        }
    }
    let of_all = |measurements: &[Measurement], of: fn(&Measurement) -> f64| {
        Spread::of(measurements.iter().map(of).collect()).context("no round")
    };
    let summarize = |(&clients, measurements): (&u64, &Vec<Measurement>)| {
        let commits_a_second = of_all(measurements, Measurement::a_second)?;
        let processor = of_all(measurements, Measurement::processor)?;
        Ok(BareLog { clients, commits_a_second, commits_a_sync: of_all(measurements, Measurement::a_sync)?, processor })
    };
    clients.iter().zip(&rounds).map(summarize).collect::<Result<_>>().map(Some)
}

#[derive(Clone, Copy, Debug)]
struct Measurement {
    commits: u64,
    syncs: u64,
    took: Took,
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
impl Measurement {
    fn a_second(&self) -> f64 {
        self.commits as f64 / self.took.time.as_secs_f64()
    }

    fn processor(&self) -> f64 {
        self.took.processor.as_secs_f64() * 1e6 / self.commits as f64
    }

    fn a_sync(&self) -> f64 {
        self.commits as f64 / self.syncs.max(1) as f64
    }
}

#[derive(Clone, Copy, Default)]
struct Counts {
    commits: u64,
    syncs: u64,
}

/// Where commits go.
struct Log {
    file: File,
    room: usize,
    written: usize,
    commit_bytes: usize,
    bytes: Vec<u8>,
}

impl Log {
    fn new(path: &Path, commit_bytes: usize, clients: u64) -> Result<Self> {
        let room = LOG_BYTES.max(usize::try_from(clients)? * commit_bytes);
        let mut file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
        file.write_all(&vec![0; room])?;
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { file, room, written: 0, commit_bytes, bytes: Vec::new() })
    }

    fn append(&mut self, commits: usize) -> std::io::Result<()> {
        self.bytes.resize(commits * self.commit_bytes, 1);
        if self.written + self.bytes.len() > self.room {
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
    /// How many have handed in something that is not in the log.
    waiting: usize,
    is_syncing: bool,
    /// How many syncs have begun, and how many of them have ended.
    begun: usize,
    ended: usize,
    counts: Counts,
    is_over: bool,
}

/// What clients and the syncing thread have in common.
struct Commits {
    state: Mutex<State>,
    /// Whoever syncs has it.
    log: Mutex<Log>,
    handed_in: Condvar,
    synced: [Condvar; BELLS],
}

impl Commits {
    fn new(log: Log) -> Self {
        Self { state: Mutex::default(), log: Mutex::new(log), handed_in: Condvar::new(), synced: Default::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.state().is_over = true;
        self.handed_in.notify_all();
        self.synced.iter().for_each(Condvar::notify_all);
    }

    /// One client: one commit after the other.
    fn commit_on_and_on(&self) -> Result<()> {
        loop {
            let mut state = self.state();
            if state.is_over {
                return Ok(());
            }
            state.waiting += 1;
            if !state.is_syncing {
                self.sync(state)?;
                continue;
            }
            let sync = state.begun + 1;
            let is_not_durable = |state: &mut State| state.ended < sync && !state.is_over;
            drop(self.synced[sync % BELLS].wait_while(state, is_not_durable));
        }
    }

    /// The thread that syncs for those who came while somebody did.
    fn sync_on_and_on(&self) -> Result<()> {
        loop {
            let has_nothing = |state: &mut State| (state.waiting == 0 || state.is_syncing) && !state.is_over;
            let state = self.handed_in.wait_while(self.state(), has_nothing).unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return Ok(());
            }
            self.sync(state)?;
        }
    }

    /// Makes durable what has been handed in, by nobody else at the same time.
    fn sync(&self, mut state: MutexGuard<'_, State>) -> Result<()> {
        let commits = std::mem::take(&mut state.waiting);
        state.begun += 1;
        state.is_syncing = true;
        let sync = state.begun;
        drop(state);
        self.log.lock().unwrap_or_else(PoisonError::into_inner).append(commits).context("the log")?;
        let mut state = self.state();
        state.ended = sync;
        state.is_syncing = false;
        state.counts.syncs += 1;
        state.counts.commits += commits as u64;
        let more = state.waiting > 0;
        drop(state);
        if commits > 1 {
            self.synced[sync % BELLS].notify_all();
        }
        if more {
            self.handed_in.notify_one();
        }
        Ok(())
    }
}

/// Whatever ends one of them, nobody else is to wait for it.
struct Ends<'a>(&'a Commits);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// `None` if it was interrupted.
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
        let ends = Ends(commits);
        let mut threads = vec![scope.spawn(|| {
            let _ends = Ends(commits);
            commits.sync_on_and_on()
        })];
        threads.extend((0..clients).map(|_| {
            scope.spawn(|| {
                let _ends = Ends(commits);
                commits.commit_on_and_on()
            })
        }));
        sleep(warm_up, commits);
        let (began, before) = (Moment::now(), commits.state().counts);
        sleep(measured, commits);
        let (took, after) = (began.took(), commits.state().counts);
        drop(ends);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        ensure!(after.commits > before.commits || interrupt::came(), "no commit became durable");
        let (commits, syncs) = (after.commits - before.commits, after.syncs - before.syncs);
        Ok((!interrupt::came()).then_some(Measurement { commits, syncs, took }))
    })
}

/// So long, or until the run is interrupted or there is nothing to wait for.
fn sleep(duration: Duration, commits: &Commits) {
    let began = Instant::now();
    while !interrupt::came() && !commits.state().is_over {
        let left = duration.saturating_sub(began.elapsed());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

/// As people read it.
pub fn show(all: &[BareLog]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["clients", "commits a second", "least..greatest", "commits a sync", "processor"]);
    for one in all {
        let Spread { median, least, greatest } = one.commits_a_second;
        table.add_row([
            one.clients.to_string(),
            count(median),
            format!("{}..{}", count(least), count(greatest)),
            format!("{:.1}", one.commits_a_sync.median),
            time(one.processor.median),
        ]);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sync_serves_a_commit_of_each_client_at_most() {
        let folder = tempfile::tempdir().unwrap();
        for clients in [1, 8] {
            let (warm_up, measured) = (Duration::from_millis(20), Duration::from_millis(200));
            let one = measure(clients, &folder.path().join("log"), 300, warm_up, measured).unwrap().unwrap();
            assert!(one.syncs > 0);
            assert!((one.syncs..=one.syncs * clients).contains(&one.commits), "{clients}: {one:?}");
        }
    }

    #[test]
    fn a_log_that_cannot_be_made_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing").join("log");
        assert!(measure(1, &missing, 300, Duration::ZERO, Duration::ZERO).is_err());
    }

    #[test]
    fn nobody_waits_for_a_log_that_failed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::new(&path, 300, 4).unwrap();
        // It cannot be written to.
        log.file = File::open(&path).unwrap();
        let commits = Commits::new(log);
        std::thread::scope(|scope| {
            let run = || {
                let _ends = Ends(&commits);
                commits.commit_on_and_on()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            let failed = threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).count();
            assert_eq!(failed, 1);
        });
    }
}
