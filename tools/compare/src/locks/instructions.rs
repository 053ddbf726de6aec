//! What is counted rather than timed: instructions, by valgrind's callgrind, which runs this program anew.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use percolite::{Durability, Store};

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
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Fenced => "fenced",
            Self::Lock => "lock",
        }
    }
}

pub fn lines(bench: &Bench) -> Result<Vec<Line<'_>>> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("valgrind was not found, so instructions are not counted");
        return Ok(Vec::new());
    }
    let counted = |work| counted(work, bench);
    Ok(vec![
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

/// Instructions of a turn: opening and closing are in both runs.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn counted(work: Work, bench: &Bench) -> Result<f64> {
    let [once, twice] = [TIMES, 2 * TIMES].map(|times| run(work, times, bench));
    Ok((twice? - once?) / TIMES as f64)
}

fn run(work: Work, times: u64, bench: &Bench) -> Result<f64> {
    let folder = bench.path().join("probe");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let out = bench.path().join("callgrind");
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", out.display())])
        .arg(std::env::current_exe().context("cannot find this program")?)
        .args(["lock-probe", work.name(), &times.to_string()])
        .arg(&folder)
        .output()
        .context("cannot run valgrind")?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "valgrind: {said}");
    let Some(count) = said.lines().find_map(|line| line.split("Collected : ").nth(1)) else {
        bail!("valgrind says no count: {said}");
    };
    Ok(count.trim().parse()?)
}
