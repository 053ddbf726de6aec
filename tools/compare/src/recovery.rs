//! `recovery`: how long percolite takes to open after a kill, with the longest write-ahead log.
//!
//! A process writes buffered transfers as fast as it can, and is killed when the log has at least
//! 95 % of the greatest length that it had before. At that moment the immutable and the active
//! memtable are nearly full, and neither is in the tables, so recovery replays both.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::args::CommonArgs;
use crate::generator::{Rng, RowChooser, Skew, key};
use crate::interrupt;
use crate::peer::{Peer as _, Percolite, Read as _, Session as _, StoreConfig};
use crate::statistics::Spread;
use crate::workload::RowGenerator;

/// With few rows, the memtables have many versions of a few cells; with many rows, mostly cells
/// with one version.
const ROWS: [u64; 2] = [10, 1_000_000];
/// The log is observed only after this time, when the segments of the preparation have been
/// removed.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// The process writes at least this long before the kill.
const MIN_WRITE_TIME: Duration = Duration::from_secs(8);
/// The kill then waits until the log is about as long as the longest that was observed, because the
/// recovery time depends on its length. If that takes longer than this, the measurement fails.
const MAX_EXTRA_TIME: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const BYTES_PER_MEGABYTE: f64 = 1e6;

/// The results for one number of rows.
#[derive(Serialize)]
pub struct Recovery {
    pub rows: u64,
    pub wal_megabytes: Spread,
    /// The time until rows can be read, in milliseconds.
    pub millis: Spread,
}

struct Measurement {
    wal_bytes: u64,
    elapsed: Duration,
}

/// Measures each number of rows, in each round. `None` if the run was interrupted.
pub fn run(args: &CommonArgs) -> Result<Option<Vec<Recovery>>> {
    let scratch = args.scratch_dir()?;
    let mut all = Vec::new();
    for rows in ROWS {
        let mut measurements = Vec::new();
        for _ in 0..args.rounds() {
            let dir = scratch.path("store");
            let Some(one) = measure(rows, &dir, args)? else { return Ok(None) };
            std::fs::remove_dir_all(&dir)?;
            measurements.push(one);
        }
        all.push(summarize(rows, &measurements)?);
    }
    Ok(Some(all))
}

#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
fn summarize(rows: u64, measurements: &[Measurement]) -> Result<Recovery> {
    let spread = |of: &dyn Fn(&Measurement) -> f64| Spread::of(measurements.iter().map(of).collect());
    Ok(Recovery {
        rows,
        wal_megabytes: spread(&|one| one.wal_bytes as f64 / BYTES_PER_MEGABYTE).context("no rounds")?,
        millis: spread(&|one| one.elapsed.as_secs_f64() * 1e3).context("no rounds")?,
    })
}

fn measure(rows: u64, dir: &Path, args: &CommonArgs) -> Result<Option<Measurement>> {
    let config = config(dir, args);
    let peer = Percolite::<false>::open(&config)?;
    let mut values = RowGenerator { rng: Rng::new(0, 1), bytes: args.conditions().value_bytes };
    peer.session()?.load(values.rows(0..rows))?;
    peer.close()?;

    let (value_size, buffers) = (args.value_size.to_string(), args.write_buffers.to_string());
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut writer = Command::new(program);
    writer.args([
        "write-until-killed",
        &rows.to_string(),
        "--value-size",
        &value_size,
        "--write-buffers",
        &buffers,
        "--dir",
    ]);
    let mut writer = writer.arg(dir).stdin(Stdio::null()).spawn().context("cannot run this program again")?;
    let was_killed = wait_for_longest_log(&mut writer, &dir.join("wal"));
    writer.kill()?;
    writer.wait()?;
    if !was_killed? {
        return Ok(None);
    }

    let wal_bytes = bytes_in(&dir.join("wal"))?;
    let started = Instant::now();
    let peer = Percolite::<false>::open(&config)?;
    ensure!(peer.session()?.reader(None)?.get(&key(0), |_| ())?, "the first row is missing");
    let elapsed = started.elapsed();
    peer.close()?;
    Ok(Some(Measurement { wal_bytes, elapsed }))
}

fn config(dir: &Path, args: &CommonArgs) -> StoreConfig {
    let conditions = args.conditions();
    StoreConfig {
        dir: dir.to_owned(),
        durable: false,
        cache_bytes: conditions.cache_bytes,
        write_buffer_bytes: conditions.write_buffer_bytes,
        clients: 1,
        history: false,
    }
}

/// Returns when the log has about its greatest length again; `false` if the run was interrupted.
fn wait_for_longest_log(writer: &mut Child, wal: &Path) -> Result<bool> {
    let (started, mut longest) = (Instant::now(), 0);
    while started.elapsed() < MIN_WRITE_TIME + MAX_EXTRA_TIME {
        ensure!(writer.try_wait()?.is_none(), "the writing process ended before it was killed");
        if interrupt::interrupted() {
            return Ok(false);
        }
        // The read fails if a segment is removed at the same time; the sample then counts as zero.
        let bytes = bytes_in(wal).unwrap_or_default();
        if started.elapsed() > MIN_WRITE_TIME && bytes >= longest / 100 * 95 {
            return Ok(true);
        }
        if started.elapsed() > SETTLE_TIME {
            longest = longest.max(bytes);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    anyhow::bail!("the log did not reach its greatest length again")
}

fn bytes_in(dir: &Path) -> Result<u64> {
    let files = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    files.map(|file| Ok(file?.metadata()?.len())).sum()
}

/// Writes until it is killed: the process that `recovery` kills.
pub fn write_until_killed(rows: u64, args: &CommonArgs) -> Result<()> {
    let dir = args.dir.as_deref().context("--dir is missing")?;
    let peer = Percolite::<false>::open(&config(dir, args))?;
    let mut session = peer.session()?;
    let (mut rng, rows) = (Rng::new(0, 2), RowChooser::new(rows, Skew::Uniform)?);
    loop {
        let drawn = [rows.draw(&mut rng), rows.draw(&mut rng)];
        session.transact(&mut |txn| {
            drawn.iter().try_for_each(|&row| txn.put(&key(row), &rng.value(row, args.conditions().value_bytes)))
        })?;
    }
}

pub fn show(all: &[Recovery]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["rows", "log, MB", "until readable, ms"]);
    for one in all {
        table.add_row([
            crate::workload::with_thousands(one.rows),
            one.wal_megabytes.to_string(),
            one.millis.to_string(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
