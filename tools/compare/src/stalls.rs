//! Write stalls: percolite under writers that are faster than flush and compaction.
//!
//! Clients make buffered commits of large values, with write buffers that are far too small. Flush
//! and compaction fall behind, and commits wait until a memtable has been flushed. No commit may
//! fail because of this wait. Commits may take longer, but the delay must be spread over all of
//! them: no commit may take longer than a second.
//!
//! During a run [`percolite::Store::stats`] and [`percolite::Store::engine_stats`] are sampled, as
//! an operator would do. The bars for evenness are this tool's own choice.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use comfy_table::{CellAlignment, Table};
use percolite::{ColumnStats, Durability, EngineStats, Keyspace, Store};
use serde::Serialize;

use crate::args::CommonArgs;
use crate::fairness::{Bar, Requirement};
use crate::format::time;
use crate::generator::{Rng, key, number};
use crate::interrupt;
use crate::peer::StoreKind;

const CLIENTS: u64 = 4;
/// Each client writes rows of its own, in a cycle.
const ROWS: u64 = 256;
const VALUE_BYTES: usize = 64 << 10;
const WRITE_BUFFER_BYTES: usize = 1 << 20;
/// A run takes as long as this many measurements of other commands, because flush and compaction
/// fall behind only after some time.
const DURATION_FACTOR: u32 = 5;
const SECOND: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

const NO_FAILURES: Bar = Bar::AtMost(0.0);
const MIN_STALLED: Bar = Bar::AtLeast(0.01);
const MIN_EVENNESS: Bar = Bar::AtLeast(0.3);
const MAX_LATENCY_SECONDS: Bar = Bar::AtMost(1.0);

/// The statistics of one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SecondStats {
    pub commits: u64,
    /// The latency of the slowest commit that ended in this second, in microseconds.
    pub max_latency: f64,
    /// The number of samples, and of those that show a stalled write.
    pub samples: u64,
    pub stalled: u64,
    /// The maximum of the samples. `pending_compaction_bytes` is a maximum, too.
    pub level0_files: u64,
    pub pending_compaction_bytes: u64,
}

/// The time since the start of the run, whether a write was stalled, and the engine's statistics.
type Sample = (Duration, bool, EngineStats);

/// One run.
#[derive(Debug, Default, Serialize)]
pub struct StallRun {
    pub commits: u64,
    /// Failed commits, and the first error.
    pub failures: u64,
    pub failure: Option<String>,
    /// Latencies in microseconds.
    pub p50: f64,
    pub p99: f64,
    pub max_latency: f64,
    /// The share of the time with a stalled writer, from the store's statistics.
    pub stalled_time: f64,
    /// The share of the samples that show a stalled write.
    pub stalled_samples: f64,
    /// Commits of the slowest second, divided by the mean.
    pub slowest_second: f64,
    pub seconds: Vec<SecondStats>,
}

/// A commit: the time of its acknowledgement since the start, and its latency.
type TimedCommit = (Duration, Duration);

/// The commits of one writer.
struct WriterLog {
    timed: Vec<TimedCommit>,
    /// The last acknowledged value of each row; zero if none.
    last_values: Vec<u64>,
    failure: Option<String>,
}

/// One run per round. `None` if it was interrupted.
pub fn run(args: &CommonArgs) -> Result<Option<Vec<StallRun>>> {
    let scratch = args.scratch_dir()?;
    let duration = Duration::from_millis(args.conditions().millis) * DURATION_FACTOR;
    let mut all = Vec::new();
    for round in 0..args.rounds() {
        let dir = scratch.path(&format!("stalls-{round}"));
        let Some(stalls) = measure(round, duration, &dir)? else { return Ok(None) };
        std::fs::remove_dir_all(&dir)?;
        eprintln!("[stalls, round {}] {} commits, {} failures", round + 1, stalls.commits, stalls.failures);
        all.push(stalls);
    }
    Ok(Some(all))
}

fn open(dir: &Path) -> Result<(Store, Keyspace)> {
    let builder = Store::builder().durability(Durability::Buffered).write_buffer_bytes(WRITE_BUFFER_BYTES);
    let store = builder.open(dir)?;
    let rows = store.keyspace("rows")?;
    Ok((store, rows))
}

fn measure(round: u64, duration: Duration, dir: &Path) -> Result<Option<StallRun>> {
    let (store, rows) = open(dir)?;
    let (start, stop) = (Barrier::new(usize::try_from(CLIENTS)? + 1), AtomicBool::new(false));
    let (written, samples) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (store, rows, start, stop) = (&store, &rows, &start, &stop);
                scope.spawn(move || write(client, Rng::new(round, client), store, rows, start, stop))
            })
            .collect();
        start.wait();
        let samples = sample(&store, duration);
        stop.store(true, Ordering::Relaxed);
        let written: Result<Vec<WriterLog>> =
            writers.into_iter().map(|writer| writer.join().map_err(|_| anyhow!("a writer panicked"))).collect();
        (written, samples)
    });
    let (written, ControlFlow::Continue(samples)) = (written?, samples?) else { return Ok(None) };
    let stalled_time = store.stats().write_stall_time;
    store.close().context("close")?;
    verify(dir, &written)?;
    Ok(Some(summarize(&written, &samples, stalled_time, duration)))
}

/// Writes until the run ends or a commit fails.
fn write(client: u64, mut rng: Rng, store: &Store, rows: &Keyspace, start: &Barrier, stop: &AtomicBool) -> WriterLog {
    let mut written = WriterLog { timed: Vec::new(), last_values: Vec::new(), failure: None };
    written.last_values.resize(usize::try_from(ROWS).unwrap_or_default(), 0);
    start.wait();
    let started = Instant::now();
    for place in (0..written.last_values.len()).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let count = written.timed.len() as u64 + 1;
        let value = rng.value(count, VALUE_BYTES);
        let before = started.elapsed();
        if let Err(error) = store.transact(|txn| txn.put(rows, key(client * ROWS + place as u64), &value)) {
            written.failure = Some(error.to_string());
            break;
        }
        let after = started.elapsed();
        written.timed.push((after, after.saturating_sub(before)));
        written.last_values[place] = count;
    }
    written
}

/// Samples the engine for the duration; breaks if the run is interrupted.
fn sample(store: &Store, duration: Duration) -> Result<ControlFlow<(), Vec<Sample>>> {
    let (started, mut samples) = (Instant::now(), Vec::new());
    while started.elapsed() < duration {
        if interrupt::interrupted() {
            return Ok(ControlFlow::Break(()));
        }
        let is_stalled = store.stats().current_write_stall.is_some();
        let stats = store.engine_stats()?;
        samples.push((started.elapsed(), is_stalled, stats));
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(ControlFlow::Continue(samples))
}

/// Checks that the reopened store has every acknowledged value.
fn verify(dir: &Path, written: &[WriterLog]) -> Result<()> {
    let (store, rows) = open(dir).context("reopen")?;
    let snapshot = store.snapshot()?;
    let all = written.iter().flat_map(|one| &one.last_values).zip(0_u64..);
    for (&last_values, row) in all.filter(|(last_values, _)| **last_values > 0) {
        let found = snapshot.get(&rows, key(row))?;
        let found = found.as_deref().map_or(0, number);
        ensure!(found == last_values, "row {row} has value {found} instead of the acknowledged {last_values}");
    }
    drop(snapshot);
    store.close().context("close after the verification")
}

#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
fn summarize(written: &[WriterLog], samples: &[Sample], stalled_time: Duration, duration: Duration) -> StallRun {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let mut seconds = vec![SecondStats::default(); usize::try_from(duration.as_secs()).unwrap_or_default().max(1)];
    let place = |at: Duration| usize::try_from(at.as_secs() / SECOND.as_secs()).unwrap_or(usize::MAX);
    let mut latencies = Vec::new();
    for &(ended, elapsed) in written.iter().flat_map(|one| &one.timed) {
        latencies.push(elapsed);
        if let Some(second) = seconds.get_mut(place(ended)) {
            second.commits += 1;
            second.max_latency = second.max_latency.max(micros(elapsed));
        }
    }
    for (at, is_stalled, stats) in samples {
        if let Some(second) = seconds.get_mut(place(*at)) {
            second.sample(*is_stalled, stats);
        }
    }
    latencies.sort_unstable();
    let quantile = |hundredths: usize| {
        let place = (latencies.len() * hundredths / 100).min(latencies.len().saturating_sub(1));
        latencies.get(place).copied().map_or(0.0, micros)
    };
    let samples = seconds.iter().map(|second| second.samples).sum::<u64>();
    let stalled_samples = seconds.iter().map(|second| second.stalled).sum::<u64>();
    let sum = seconds.iter().map(|second| second.commits).sum::<u64>();
    let slowest = seconds.iter().map(|second| second.commits).min().unwrap_or_default();
    StallRun {
        commits: latencies.len() as u64,
        failures: written.iter().filter(|one| one.failure.is_some()).count() as u64,
        failure: written.iter().find_map(|one| one.failure.clone()),
        stalled_time: stalled_time.as_secs_f64() / duration.as_secs_f64(),
        p50: quantile(50),
        p99: quantile(99),
        max_latency: quantile(100),
        stalled_samples: stalled_samples as f64 / samples.max(1) as f64,
        slowest_second: slowest as f64 * seconds.len() as f64 / sum.max(1) as f64,
        seconds,
    }
}

impl SecondStats {
    fn sample(&mut self, is_stalled: bool, stats: &EngineStats) {
        self.samples += 1;
        self.stalled += u64::from(is_stalled);
        let level0_files = |column: &ColumnStats| column.level0_files;
        let files = stats.columns.iter().map(level0_files).max().unwrap_or_default();
        self.level0_files = self.level0_files.max(files);
        self.pending_compaction_bytes = self.pending_compaction_bytes.max(stats.pending_compaction_bytes);
    }
}

/// The requirements.
#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
pub fn check(all: &[StallRun]) -> Vec<Requirement> {
    let failed = all.iter().find_map(|one| one.failure.clone());
    let requirement = |what, bar, metric: fn(&StallRun) -> f64| {
        Requirement::new(what, StoreKind::Percolite, bar, all.iter().map(metric).collect(), failed.clone())
    };
    vec![
        requirement("stalls: failed writers", NO_FAILURES, |one| one.failures as f64),
        requirement("stalls: share of samples that show a stalled write", MIN_STALLED, |one| one.stalled_samples),
        requirement("stalls: share of the time with a stalled writer", MIN_STALLED, |one| one.stalled_time),
        requirement("stalls: commits of the slowest second / mean", MIN_EVENNESS, |one| one.slowest_second),
        requirement("stalls: longest commit, seconds", MAX_LATENCY_SECONDS, |one| one.max_latency / 1e6),
    ]
}

pub fn show(all: &[StallRun]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "round, second",
        "commits",
        "max",
        "p50",
        "p99",
        "stalled time",
        "stalled samples",
        "level-0 files",
        "pending compaction",
    ]);
    for (round, one) in (1..).zip(all) {
        let [empty, again] = [String::new(), String::new()];
        table.add_row([
            format!("{round}, all"),
            one.commits.to_string(),
            time(one.max_latency),
            time(one.p50),
            time(one.p99),
            format!("{:.0} %", one.stalled_time * 100.0),
            format!("{:.0} %", one.stalled_samples * 100.0),
            empty,
            again,
        ]);
        for (number, second) in (1..).zip(&one.seconds) {
            table.add_row([
                format!("{round}, {number}"),
                second.commits.to_string(),
                time(second.max_latency),
                String::new(),
                String::new(),
                String::new(),
                format!("{}/{}", second.stalled, second.samples),
                second.level0_files.to_string(),
                format!("{} MiB", second.pending_compaction_bytes >> 20),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn written(timed: &[(u64, u64)], failure: Option<&str>) -> WriterLog {
        let timed = timed.iter().map(|&(ended, elapsed)| (at(ended), at(elapsed))).collect();
        WriterLog { timed, last_values: Vec::new(), failure: failure.map(str::to_owned) }
    }

    #[test]
    fn commits_and_samples_count_in_their_second() {
        let commits = [written(&[(100, 1), (999, 5), (1000, 2)], None), written(&[(200, 1), (2500, 900)], None)];
        let samples = [(10, true), (20, false), (1500, true)]
            .map(|(millis, is_stalled)| (at(millis), is_stalled, EngineStats::default()));
        let stalls = summarize(&commits, &samples, at(500), at(2000));
        let counts: Vec<_> = stalls.seconds.iter().map(|one| (one.commits, one.samples, one.stalled)).collect();
        assert_eq!(counts, [(3, 2, 1), (1, 1, 1)]);
        assert_eq!((stalls.commits, stalls.max_latency, stalls.seconds[0].max_latency), (5, 900_000.0, 5000.0));
        assert!((stalls.slowest_second - 0.5).abs() < 1e-9 && (stalls.stalled_samples - 2.0 / 3.0).abs() < 1e-9);
        assert!((stalls.stalled_time - 0.25).abs() < 1e-9);
    }

    #[test]
    fn each_defect_misses_its_requirement() {
        let met = |stalls: StallRun| check(&[stalls]).iter().map(|one| one.met).collect::<Vec<_>>();
        let good = || StallRun {
            stalled_time: 0.5,
            stalled_samples: 0.5,
            slowest_second: 0.9,
            max_latency: 1000.0,
            ..StallRun::default()
        };
        assert_eq!(met(good()), [true; 5]);
        assert_eq!(met(StallRun { stalled_samples: 0.0, ..good() }), [true, false, true, true, true]);
        assert_eq!(met(StallRun { stalled_time: 0.0, ..good() }), [true, true, false, true, true]);
        assert_eq!(met(StallRun { slowest_second: 0.0, ..good() }), [true, true, true, false, true]);
        assert_eq!(met(StallRun { max_latency: 1.1e6, ..good() }), [true, true, true, true, false]);
        assert_eq!(met(StallRun { failures: 1, failure: Some("disk full".into()), ..good() }), [false; 5]);
    }

    #[test]
    fn missing_acknowledged_values_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let stalls = measure(0, at(300), &path).unwrap().unwrap();
        assert!(stalls.commits > 0 && stalls.failures == 0 && (0.0..10.0).contains(&stalls.stalled_time), "{stalls:?}");
        let lost = WriterLog { last_values: vec![u64::MAX], ..written(&[], None) };
        assert!(verify(&path, &[lost]).unwrap_err().to_string().contains("acknowledged"));
    }
}
