//! Stalls: what percolite's writers notice when they bring more than RocksDB can put away.
//!
//! Buffered commits of large values into write buffers that are far too small for them: flushes and compactions fall behind, and
//! RocksDB refuses writes until they have caught up. No commit may fail for that; each is to take longer instead, all the
//! time a little rather than now and then for seconds. What [`percolite::Store::engine_stats`] says meanwhile is looked
//! at as an operator would, and what [`percolite::Store::stats`] says in the end. The issue that asked for it named no bars for smoothness: those here are its authors'.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use comfy_table::{CellAlignment, Table};
use percolite::{ColumnFigures, Durability, EngineFigures, Keyspace, Store};
use serde::Serialize;

use crate::compare::time;
use crate::dice::{Dice, key, number};
use crate::fairness::{Bar, Requirement};
use crate::interrupt;
use crate::options::Arguments;
use crate::peer::Kind;

const CLIENTS: u64 = 4;
/// Each client writes rows of its own, one after the other and again from the first.
const ROWS: u64 = 256;
const VALUE_BYTES: usize = 64 << 10;
const WRITE_BUFFER_BYTES: usize = 1 << 20;
/// A run takes so many times as long as a measurement elsewhere, since falling behind takes time.
const LONGER: u32 = 5;
const SLICE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

const NO_FAILURES: Bar = Bar::AtMost(0.0);
const SOME: Bar = Bar::AtLeast(0.01);
const EVEN: Bar = Bar::AtLeast(0.3);
const LONGEST_SECONDS: Bar = Bar::AtMost(1.0);

/// A second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Slice {
    pub commits: u64,
    /// Of those that ended in it, in microseconds.
    pub longest: f64,
    /// How often the engine was looked at, and was stopped or slowed down then.
    pub looks: u64,
    pub stopped: u64,
    pub delayed: u64,
    /// The most that was seen.
    pub files_at_level_0: u64,
    pub pending_compaction_bytes: u64,
}

/// One run.
#[derive(Debug, Default, Serialize)]
pub struct Stalls {
    pub commits: u64,
    /// Commits that failed, and why the first did.
    pub failures: u64,
    pub failure: Option<String>,
    /// In microseconds.
    pub p50: f64,
    pub p99: f64,
    pub longest: f64,
    /// Of the time, that in which a writer waited for RocksDB, as the store's statistics have it.
    pub waited: f64,
    /// Of the looks at the engine, those that saw it stop writes or slow them down.
    pub seen: f64,
    /// Commits of the slowest second, of the mean.
    pub slowest_second: f64,
    pub slices: Vec<Slice>,
}

/// A commit: when it was acknowledged since the beginning, and how long it took.
type Timed = (Duration, Duration);

struct Written {
    timed: Vec<Timed>,
    /// Of each row, what was acknowledged last; zero if nothing was.
    last: Vec<u64>,
    failure: Option<String>,
}

/// Runs it as often as there are rounds. `None` if it was interrupted.
pub fn run(arguments: &Arguments) -> Result<Option<Vec<Stalls>>> {
    let scratch = arguments.scratch()?;
    let takes = Duration::from_millis(arguments.conditions().millis) * LONGER;
    let mut all = Vec::new();
    for round in 0..arguments.rounds() {
        let folder = scratch.path(&format!("stalls-{round}"));
        let Some(stalls) = measure(round, takes, &folder)? else { return Ok(None) };
        std::fs::remove_dir_all(&folder)?;
        eprintln!("[stalls, round {}] {} commits, {} failures", round + 1, stalls.commits, stalls.failures);
        all.push(stalls);
    }
    Ok(Some(all))
}

fn open(folder: &Path) -> Result<(Store, Keyspace)> {
    let builder = Store::builder().durability(Durability::Buffered).write_buffer_bytes(WRITE_BUFFER_BYTES);
    let store = builder.open(folder)?;
    let rows = store.keyspace("rows")?;
    Ok((store, rows))
}

fn measure(round: u64, takes: Duration, folder: &Path) -> Result<Option<Stalls>> {
    let (store, rows) = open(folder)?;
    let (start, over) = (Barrier::new(usize::try_from(CLIENTS)? + 1), AtomicBool::new(false));
    let (written, looks) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (store, rows, start, over) = (&store, &rows, &start, &over);
                scope.spawn(move || write(client, Dice::new(round, client), store, rows, start, over))
            })
            .collect();
        start.wait();
        let looks = look(&store, takes);
        over.store(true, Ordering::Relaxed);
        let written: Result<Vec<Written>> =
            writers.into_iter().map(|writer| writer.join().map_err(|_| anyhow!("a writer panicked"))).collect();
        (written, looks)
    });
    let (written, ControlFlow::Continue(looks)) = (written?, looks?) else { return Ok(None) };
    let waited = store.stats().write_stalled;
    store.close().context("closing")?;
    verify(folder, &written)?;
    Ok(Some(summarize(&written, &looks, waited, takes)))
}

/// Until it is over, or something fails: a writer that is told of an error has no reason to go on.
fn write(client: u64, mut dice: Dice, store: &Store, rows: &Keyspace, start: &Barrier, over: &AtomicBool) -> Written {
    let mut written = Written { timed: Vec::new(), last: Vec::new(), failure: None };
    written.last.resize(usize::try_from(ROWS).unwrap_or_default(), 0);
    start.wait();
    let began = Instant::now();
    for place in (0..written.last.len()).cycle() {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let count = written.timed.len() as u64 + 1;
        let value = dice.value(count, VALUE_BYTES);
        let before = began.elapsed();
        if let Err(why) = store.transact(|txn| txn.put(rows, key(client * ROWS + place as u64), &value)) {
            written.failure = Some(why.to_string());
            break;
        }
        let after = began.elapsed();
        written.timed.push((after, after.saturating_sub(before)));
        written.last[place] = count;
    }
    written
}

/// Looks at the engine for so long, unless the run is interrupted.
fn look(store: &Store, takes: Duration) -> Result<ControlFlow<(), Vec<(Duration, EngineFigures)>>> {
    let (began, mut looks) = (Instant::now(), Vec::new());
    while began.elapsed() < takes {
        if interrupt::came() {
            return Ok(ControlFlow::Break(()));
        }
        let figures = store.engine_figures()?;
        looks.push((began.elapsed(), figures));
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(ControlFlow::Continue(looks))
}

/// Everything acknowledged is there, after the store was closed and opened again.
fn verify(folder: &Path, written: &[Written]) -> Result<()> {
    let (store, rows) = open(folder).context("opening again")?;
    let snapshot = store.snapshot()?;
    let all = written.iter().flat_map(|one| &one.last).zip(0_u64..);
    for (&last, row) in all.filter(|(last, _)| **last > 0) {
        let found = snapshot.get(&rows, key(row))?;
        let found = found.as_deref().map_or(0, number);
        ensure!(found == last, "row {row} has value {found} instead of {last}, which was acknowledged");
    }
    drop(snapshot);
    store.close().context("closing again")
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn summarize(written: &[Written], looks: &[(Duration, EngineFigures)], waited: Duration, takes: Duration) -> Stalls {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let mut slices = vec![Slice::default(); usize::try_from(takes.as_secs()).unwrap_or_default().max(1)];
    let place = |at: Duration| usize::try_from(at.as_secs() / SLICE.as_secs()).unwrap_or(usize::MAX);
    let mut latencies = Vec::new();
    for &(ended, took) in written.iter().flat_map(|one| &one.timed) {
        latencies.push(took);
        if let Some(slice) = slices.get_mut(place(ended)) {
            slice.commits += 1;
            slice.longest = slice.longest.max(micros(took));
        }
    }
    for (at, figures) in looks {
        if let Some(slice) = slices.get_mut(place(*at)) {
            slice.look(figures);
        }
    }
    latencies.sort_unstable();
    let quantile = |hundredths: usize| {
        let place = (latencies.len() * hundredths / 100).min(latencies.len().saturating_sub(1));
        latencies.get(place).copied().map_or(0.0, micros)
    };
    let looks = slices.iter().map(|slice| slice.looks).sum::<u64>();
    let seen = slices.iter().map(|slice| slice.stopped + slice.delayed).sum::<u64>();
    let sum = slices.iter().map(|slice| slice.commits).sum::<u64>();
    let slowest = slices.iter().map(|slice| slice.commits).min().unwrap_or_default();
    Stalls {
        commits: latencies.len() as u64,
        failures: written.iter().filter(|one| one.failure.is_some()).count() as u64,
        failure: written.iter().find_map(|one| one.failure.clone()),
        waited: waited.as_secs_f64() / takes.as_secs_f64(),
        p50: quantile(50),
        p99: quantile(99),
        longest: quantile(100),
        seen: seen as f64 / looks.max(1) as f64,
        slowest_second: slowest as f64 * slices.len() as f64 / sum.max(1) as f64,
        slices,
    }
}

impl Slice {
    fn look(&mut self, figures: &EngineFigures) {
        self.looks += 1;
        if figures.is_write_stopped {
            self.stopped += 1;
        } else if figures.delayed_write_bytes_per_second > 0 {
            self.delayed += 1;
        }
        let of_level_0 = |column: &ColumnFigures| column.files_at_level_0;
        let files = figures.columns.iter().map(of_level_0).max().unwrap_or_default();
        self.files_at_level_0 = self.files_at_level_0.max(files);
        self.pending_compaction_bytes = self.pending_compaction_bytes.max(figures.pending_compaction_bytes);
    }
}

/// What is asked of the runs.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
pub fn judge(all: &[Stalls]) -> Vec<Requirement> {
    let failed = all.iter().find_map(|one| one.failure.clone());
    let requirement = |what, bar, figure: fn(&Stalls) -> f64| {
        Requirement::new(what, Kind::Percolite, bar, all.iter().map(figure).collect(), failed.clone())
    };
    vec![
        requirement("stalls: writers that were told of an error", NO_FAILURES, |one| one.failures as f64),
        requirement("stalls: looks at the engine's figures that show them", SOME, |one| one.seen),
        requirement("stalls: of the time, what the statistics say that writers waited", SOME, |one| one.waited),
        requirement("stalls: commits of the slowest second, of the mean", EVEN, |one| one.slowest_second),
        requirement("stalls: the longest commit, in seconds", LONGEST_SECONDS, |one| one.longest / 1e6),
    ]
}

/// As people read them.
pub fn show(all: &[Stalls]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "round, second",
        "commits",
        "longest",
        "p50",
        "p99",
        "waited",
        "stopped",
        "slowed",
        "level 0",
        "to compact",
    ]);
    for (round, one) in (1..).zip(all) {
        let [empty, again] = [String::new(), String::new()];
        table.add_row([
            format!("{round}, all"),
            one.commits.to_string(),
            time(one.longest),
            time(one.p50),
            time(one.p99),
            format!("{:.0} %", one.waited * 100.0),
            format!("{:.0} %", one.seen * 100.0),
            "(both)".to_owned(),
            empty,
            again,
        ]);
        for (second, slice) in (1..).zip(&one.slices) {
            table.add_row([
                format!("{round}, {second}"),
                slice.commits.to_string(),
                time(slice.longest),
                String::new(),
                String::new(),
                String::new(),
                format!("{}/{}", slice.stopped, slice.looks),
                format!("{}/{}", slice.delayed, slice.looks),
                slice.files_at_level_0.to_string(),
                format!("{} MiB", slice.pending_compaction_bytes >> 20),
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

    fn written(timed: &[(u64, u64)], failure: Option<&str>) -> Written {
        let timed = timed.iter().map(|&(ended, took)| (at(ended), at(took))).collect();
        Written { timed, last: Vec::new(), failure: failure.map(str::to_owned) }
    }

    fn figures(stopped: bool, delayed: u64) -> EngineFigures {
        let mut figures = EngineFigures::default();
        (figures.is_write_stopped, figures.delayed_write_bytes_per_second) = (stopped, delayed);
        figures
    }

    #[test]
    fn commits_and_looks_count_in_the_second_in_which_they_end() {
        let commits = [written(&[(100, 1), (999, 5), (1000, 2)], None), written(&[(200, 1), (2500, 900)], None)];
        let looks = [(at(10), figures(true, 0)), (at(20), figures(false, 0)), (at(1500), figures(false, 7))];
        let stalls = summarize(&commits, &looks, at(500), at(2000));
        let counts: Vec<_> =
            stalls.slices.iter().map(|one| (one.commits, one.looks, one.stopped, one.delayed)).collect();
        assert_eq!(counts, [(3, 2, 1, 0), (1, 1, 0, 1)]);
        assert_eq!((stalls.commits, stalls.longest, stalls.slices[0].longest), (5, 900_000.0, 5000.0));
        assert!((stalls.slowest_second - 0.5).abs() < 1e-9 && (stalls.seen - 2.0 / 3.0).abs() < 1e-9);
        assert!((stalls.waited - 0.25).abs() < 1e-9);
    }

    #[test]
    fn an_error_an_empty_second_a_long_wait_or_no_stall_at_all_is_a_miss() {
        let met = |stalls: Stalls| judge(&[stalls]).iter().map(|one| one.met).collect::<Vec<_>>();
        let good = || Stalls { waited: 0.5, seen: 0.5, slowest_second: 0.9, longest: 1000.0, ..Stalls::default() };
        assert_eq!(met(good()), [true; 5]);
        assert_eq!(met(Stalls { seen: 0.0, ..good() }), [true, false, true, true, true]);
        assert_eq!(met(Stalls { waited: 0.0, ..good() }), [true, true, false, true, true]);
        assert_eq!(met(Stalls { slowest_second: 0.0, ..good() }), [true, true, true, false, true]);
        assert_eq!(met(Stalls { longest: 1.1e6, ..good() }), [true, true, true, true, false]);
        assert_eq!(met(Stalls { failures: 1, failure: Some("no room".into()), ..good() }), [false; 5]);
    }

    #[test]
    fn what_was_acknowledged_and_is_not_there_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let stalls = measure(0, at(300), &path).unwrap().unwrap();
        assert!(stalls.commits > 0 && stalls.failures == 0 && (0.0..10.0).contains(&stalls.waited), "{stalls:?}");
        let lost = Written { last: vec![u64::MAX], ..written(&[], None) };
        assert!(verify(&path, &[lost]).unwrap_err().to_string().contains("acknowledged"));
    }
}
