//! What is counted rather than timed, by running this program anew: instructions, under valgrind's callgrind, and memory.

use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use percolite::{Durability, LockGuard, Store};

use super::{Bench, Goal, Line};

const TIMES: u64 = 10_000;
const ROWS: u64 = 1000;

/// What is done over and over.
#[derive(Clone, Copy, ValueEnum)]
pub enum Work {
    /// Buffered commits.
    Put,
    /// The same, each fenced by one lock.
    Fenced,
    /// A lock taken and dropped.
    Lock,
    /// So many locks, held together; prints the memory that takes, in KiB.
    Held,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Fenced => "fenced",
            Self::Lock => "lock",
            Self::Held => "held",
        }
    }
}

pub fn lines(bench: &Bench) -> Result<Vec<Line<'_>>> {
    let memory = Line::alone("100,000 held names, MiB of memory", Goal::AtMost(40.0), move || held_mib(bench));
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("valgrind was not found, so instructions are not counted");
        return Ok(vec![memory]);
    }
    let counted = |work| counted(work, bench);
    Ok(vec![
        memory,
        Line::alone("fence on a buffered commit, instructions", Goal::AtMost(200.0), move || {
            Ok(counted(Work::Fenced)? - counted(Work::Put)?)
        }),
        Line::alone("lock and drop, instructions", Goal::None, move || counted(Work::Lock)),
    ])
}

/// Does the work so often, in this folder.
pub fn probe(work: Work, times: u64, folder: &std::path::Path) -> Result<()> {
    let store = Store::builder().durability(Durability::Buffered).open(folder)?;
    let rows = store.keyspace("rows")?;
    if let Work::Held = work {
        println!("{}", held_kib(&store, times)?);
        return Ok(());
    }
    let guard = store.lock("probe")?;
    let fence = guard.fence();
    for turn in 0..times {
        if let Work::Lock = work {
            drop(store.lock("nightly")?);
            continue;
        }
        let mut txn = store.begin()?;
        if let Work::Fenced = work {
            txn.fence(&fence)?;
        }
        txn.put(&rows, (turn % ROWS).to_be_bytes(), [1; 100])?;
        txn.commit()?;
    }
    Ok(())
}

fn held_kib(store: &Store, names: u64) -> Result<u64> {
    let mut guards: Vec<LockGuard> = Vec::with_capacity(usize::try_from(names)?);
    let before = resident_kib()?;
    for name in 0..names {
        guards.push(store.lock(format!("name {name:06}"))?);
    }
    let after = resident_kib()?;
    ensure!(store.lock_table()?.held as u64 == names, "not all are held");
    Ok(after.saturating_sub(before))
}

fn resident_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Scaled where fewer are held.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn held_mib(bench: &Bench) -> Result<f64> {
    let this = std::env::current_exe().context("cannot find this program")?;
    let ran = output(Command::new(this), Work::Held, bench.names, bench)?;
    let kib: u64 = String::from_utf8_lossy(&ran.stdout).trim().parse().context("no figure")?;
    Ok(kib as f64 / 1024.0 * 100_000.0 / bench.names as f64)
}

/// Instructions of a turn: opening and closing are in both runs.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn counted(work: Work, bench: &Bench) -> Result<f64> {
    let [once, twice] = [TIMES, 2 * TIMES].map(|times| instructions(work, times, bench));
    Ok((twice? - once?) / TIMES as f64)
}

fn instructions(work: Work, times: u64, bench: &Bench) -> Result<f64> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", bench.path().join("callgrind").display())])
        .arg(std::env::current_exe().context("cannot find this program")?);
    let ran = output(valgrind, work, times, bench)?;
    let said = String::from_utf8_lossy(&ran.stderr);
    let Some(count) = said.lines().find_map(|line| line.split("Collected : ").nth(1)) else {
        bail!("valgrind says no count: {said}");
    };
    Ok(count.trim().parse()?)
}

/// This program's own command, in a folder of its own.
fn output(mut program: Command, work: Work, times: u64, bench: &Bench) -> Result<Output> {
    let folder = bench.path().join("probe");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let ran = program.args(["lock-probe", work.name(), &times.to_string()]).arg(&folder).output()?;
    ensure!(ran.status.success(), "{}: {}", work.name(), String::from_utf8_lossy(&ran.stderr));
    Ok(ran)
}
