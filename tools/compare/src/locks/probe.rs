//! Instructions and memory of lock operations.
//!
//! Both are measured on a separate process, which runs `lock-probe`: its instructions by valgrind's
//! callgrind, its memory as resident memory.

use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use percolite::{Durability, LockGuard, Store};

use super::{BenchEnv, Benchmark, Goal};

const ITERATIONS: u64 = 10_000;
const ROWS: u64 = 1000;

/// The repeated operation.
#[derive(Clone, Copy, ValueEnum)]
pub enum Probe {
    /// Buffered commits
    Put,
    /// Buffered commits, each fenced by one lock
    Fenced,
    /// Lock and unlock
    Lock,
    /// Hold all locks together, and print their memory in KiB
    Held,
}

impl Probe {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Fenced => "fenced",
            Self::Lock => "lock",
            Self::Held => "held",
        }
    }
}

pub fn benchmarks(env: &BenchEnv) -> Vec<Benchmark<'_>> {
    let memory = Benchmark::single("memory of 100,000 held locks, MiB", Goal::AtMost(40.0), move || memory_mib(env));
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("valgrind was not found, so the instruction counts were skipped");
        return vec![memory];
    }
    let instructions_per_iteration = |work| instructions_per_iteration(work, env);
    vec![
        memory,
        Benchmark::single("fence of a buffered commit, instructions", Goal::AtMost(200.0), move || {
            Ok(instructions_per_iteration(Probe::Fenced)? - instructions_per_iteration(Probe::Put)?)
        }),
        Benchmark::single("lock and unlock, instructions", Goal::None, move || instructions_per_iteration(Probe::Lock)),
    ]
}

/// Repeats the operation, with a store in this directory.
pub fn run_probe(work: Probe, iterations: u64, dir: &std::path::Path) -> Result<()> {
    let store = Store::builder().durability(Durability::Buffered).open(dir)?;
    let rows = store.keyspace("rows")?;
    if let Probe::Held = work {
        println!("{}", lock_memory_kib(&store, iterations)?);
        return Ok(());
    }
    let guard = store.lock("probe")?;
    let fence = guard.fence();
    for iteration in 0..iterations {
        if let Probe::Lock = work {
            drop(store.lock("nightly")?);
            continue;
        }
        let mut txn = store.begin()?;
        if let Probe::Fenced = work {
            txn.fence(&fence)?;
        }
        txn.put(&rows, (iteration % ROWS).to_be_bytes(), [1; 100])?;
        txn.commit()?;
    }
    Ok(())
}

fn lock_memory_kib(store: &Store, names: u64) -> Result<u64> {
    let mut guards: Vec<LockGuard> = Vec::with_capacity(usize::try_from(names)?);
    let before = resident_kib()?;
    for name in 0..names {
        guards.push(store.lock(format!("name {name:06}"))?);
    }
    let after = resident_kib()?;
    ensure!(store.lock_table()?.held as u64 == names, "the store does not hold all locks");
    Ok(after.saturating_sub(before))
}

fn resident_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("/proc/self/status has no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// The memory of held locks in MiB, scaled to 100,000 locks.
#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
fn memory_mib(env: &BenchEnv) -> Result<f64> {
    let this = std::env::current_exe().context("cannot find this program")?;
    let ran = output(Command::new(this), Probe::Held, env.names, env)?;
    let kib: u64 = String::from_utf8_lossy(&ran.stdout).trim().parse().context("the probe did not print its memory")?;
    Ok(kib as f64 / 1024.0 * 100_000.0 / env.names as f64)
}

/// Instructions of one iteration, from the difference of two runs, because each run also opens and
/// closes the store.
#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
fn instructions_per_iteration(work: Probe, env: &BenchEnv) -> Result<f64> {
    let [once, twice] = [ITERATIONS, 2 * ITERATIONS].map(|iterations| instructions(work, iterations, env));
    Ok((twice? - once?) / ITERATIONS as f64)
}

fn instructions(work: Probe, iterations: u64, env: &BenchEnv) -> Result<f64> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", env.path().join("callgrind").display())])
        .arg(std::env::current_exe().context("cannot find this program")?);
    let ran = output(valgrind, work, iterations, env)?;
    let stderr = String::from_utf8_lossy(&ran.stderr);
    let Some(count) = stderr.lines().find_map(|line| line.split("Collected : ").nth(1)) else {
        bail!("valgrind did not print its count: {stderr}");
    };
    Ok(count.trim().parse()?)
}

/// Runs `lock-probe` of this program in a new directory.
fn output(mut program: Command, work: Probe, iterations: u64, env: &BenchEnv) -> Result<Output> {
    let dir = env.path().join("probe");
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    let ran = program.args(["lock-probe", work.name(), &iterations.to_string()]).arg(&dir).output()?;
    ensure!(ran.status.success(), "{}: {}", work.name(), String::from_utf8_lossy(&ran.stderr));
    Ok(ran)
}
