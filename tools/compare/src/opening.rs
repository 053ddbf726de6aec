//! Opening after a kill: how long a store takes that has as much of its log to replay as there can be.
//!
//! A process writes buffered transfers as fast as it can, and is killed when its log is about as long as it has been so far. Then the
//! frozen generation and the one after it are nearly full, and neither is in the tables.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::dice::{Dice, Rows, Skew, key};
use crate::interrupt;
use crate::options::Arguments;
use crate::peer::{Peer as _, Percolite, Read as _, Session as _, Setup};
use crate::statistics::Spread;
use crate::workload::Values;

/// A few rows fill the log alone, many fill memory, too.
const ROWS: [u64; 2] = [10, 1_000_000];
/// The log that it finds is gone by then.
const SETTLING: Duration = Duration::from_secs(1);
/// The process writes at least for so long before it is killed.
const WRITING: Duration = Duration::from_secs(8);
/// And at most for so much longer.
const LONGER: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(1);
const BYTES_A_MEGABYTE: f64 = 1e6;

/// The figures for one number of rows.
#[derive(Serialize)]
pub struct Opening {
    pub rows: u64,
    pub log_megabytes: Spread,
    /// Until all rows can be read, in milliseconds.
    pub millis: Spread,
}

struct Measurement {
    log_bytes: u64,
    took: Duration,
}

/// `None` if the run was interrupted.
pub fn run(arguments: &Arguments) -> Result<Option<Vec<Opening>>> {
    let scratch = arguments.scratch()?;
    let mut all = Vec::new();
    for rows in ROWS {
        let mut measurements = Vec::new();
        for _ in 0..arguments.rounds() {
            let folder = scratch.path("store");
            let Some(one) = measure(rows, &folder, arguments)? else { return Ok(None) };
            std::fs::remove_dir_all(&folder)?;
            measurements.push(one);
        }
        all.push(summarize(rows, &measurements)?);
    }
    Ok(Some(all))
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn summarize(rows: u64, measurements: &[Measurement]) -> Result<Opening> {
    let spread = |of: &dyn Fn(&Measurement) -> f64| Spread::of(measurements.iter().map(of).collect());
    Ok(Opening {
        rows,
        log_megabytes: spread(&|one| one.log_bytes as f64 / BYTES_A_MEGABYTE).context("no round")?,
        millis: spread(&|one| one.took.as_secs_f64() * 1e3).context("no round")?,
    })
}

fn measure(rows: u64, folder: &Path, arguments: &Arguments) -> Result<Option<Measurement>> {
    let setup = setup(folder, arguments);
    let peer = Percolite::<false>::open(&setup)?;
    let mut values = Values { dice: Dice::new(0, 1), bytes: arguments.conditions().value_bytes };
    peer.session()?.load(values.rows(0..rows))?;
    peer.close()?;

    let (value, buffers) = (arguments.value.to_string(), arguments.write_buffers.to_string());
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut writer = Command::new(program);
    writer.args(["write-on", &rows.to_string(), "--value", &value, "--write-buffers", &buffers, "--folder"]);
    let mut writer = writer.arg(folder).stdin(Stdio::null()).spawn().context("cannot run this program again")?;
    let was_killed = kill_at_its_longest(&mut writer, &folder.join("log"));
    writer.kill()?;
    writer.wait()?;
    if !was_killed? {
        return Ok(None);
    }

    let log_bytes = bytes_in(&folder.join("log"))?;
    let began = Instant::now();
    let peer = Percolite::<false>::open(&setup)?;
    ensure!(peer.session()?.reader(None)?.get(&key(0), |_| ())?, "the first row is missing");
    let took = began.elapsed();
    peer.close()?;
    Ok(Some(Measurement { log_bytes, took }))
}

fn setup(folder: &Path, arguments: &Arguments) -> Setup {
    let conditions = arguments.conditions();
    Setup {
        folder: folder.to_owned(),
        durable: false,
        cache_bytes: conditions.cache_bytes,
        write_buffer_bytes: conditions.write_buffer_bytes,
        clients: 1,
        history: false,
    }
}

/// Returns when the process is to be killed; `false` if the run was interrupted.
fn kill_at_its_longest(writer: &mut Child, log: &Path) -> Result<bool> {
    let (began, mut longest) = (Instant::now(), 0);
    while began.elapsed() < WRITING + LONGER {
        ensure!(writer.try_wait()?.is_none(), "the process that writes has ended by itself");
        if interrupt::came() {
            return Ok(false);
        }
        // A segment that goes meanwhile is not counted.
        let bytes = bytes_in(log).unwrap_or_default();
        if began.elapsed() > WRITING && bytes >= longest / 100 * 95 {
            return Ok(true);
        }
        if began.elapsed() > SETTLING {
            longest = longest.max(bytes);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    anyhow::bail!("the log was never again as long as it had been")
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let files = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    files.map(|file| Ok(file?.metadata()?.len())).sum()
}

/// Writes until it is killed; this is the process that `opening` kills.
pub fn write_on(rows: u64, arguments: &Arguments) -> Result<()> {
    let folder = arguments.folder.as_deref().context("no directory")?;
    let peer = Percolite::<false>::open(&setup(folder, arguments))?;
    let mut session = peer.session()?;
    let (mut dice, rows) = (Dice::new(0, 2), Rows::new(rows, Skew::Uniform)?);
    loop {
        let drawn = [rows.draw(&mut dice), rows.draw(&mut dice)];
        session.transact(&mut |txn| {
            drawn.iter().try_for_each(|&row| txn.put(&key(row), &dice.value(row, arguments.conditions().value_bytes)))
        })?;
    }
}

/// As people read it.
pub fn show(all: &[Opening]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["rows written to", "log, MB", "until rows can be read, ms"]);
    for one in all {
        table.add_row([crate::workload::grouped(one.rows), one.log_megabytes.to_string(), one.millis.to_string()]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
