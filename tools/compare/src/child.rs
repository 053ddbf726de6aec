//! The process of a measurement.
//!
//! Each measurement has a process of its own, so that memory, processor time and written bytes are
//! counted for this measurement alone, and a crash fails no other measurement.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::interrupt;
use crate::spec::{Outcome, Spec};

const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How much of the standard error of a failed process is reported.
const STDERR_TAIL_CHARS: usize = 500;

/// The temporary directory of a run. Dropping this value removes the directory, also after an
/// interrupt.
pub struct ScratchDir {
    dir: TempDir,
    /// The time limit of one process.
    timeout: Duration,
}

impl ScratchDir {
    /// Creates the directory in `within`, by default in the system's temporary directory.
    pub fn new(within: Option<&Path>, timeout: Duration) -> Result<Self> {
        let within = within.map_or_else(std::env::temp_dir, Path::to_owned);
        let dir = tempfile::Builder::new()
            .prefix("percolite-compare-")
            .tempdir_in(&within)
            .with_context(|| format!("cannot create a directory in {}", within.display()))?;
        Ok(Self { dir, timeout })
    }

    /// Runs one measurement. `None` if the run was interrupted.
    pub fn run(&self, spec: &Spec) -> Result<Option<Outcome>> {
        self.run_with(spec, &[])
    }

    /// Like [`Self::run`], but under a wrapper command, such as strace.
    pub fn run_with(&self, spec: &Spec, command: &[&str]) -> Result<Option<Outcome>> {
        let (store, result_file, stderr_file) = (self.path("store"), self.path("result"), self.path("stderr"));
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command_line = command.iter().map(std::ffi::OsStr::new).chain([program.as_os_str()]);
        let mut start = Command::new(command_line.next().context("the command is empty")?);
        start.args(command_line).arg("measure").arg(serde_json::to_string(spec)?).arg(&store);
        start.stdin(Stdio::null()).stdout(File::create(&result_file)?).stderr(File::create(&stderr_file)?);
        let mut child = start.spawn().with_context(|| format!("cannot run {}", start.get_program().display()))?;
        let exit = self.wait(&mut child)?;
        let outcome = exit.map(|exit| self.outcome(&exit, &result_file, &stderr_file));
        if store.exists() {
            fs::remove_dir_all(&store).with_context(|| format!("cannot remove {}", store.display()))?;
        }
        Ok(outcome)
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn wait(&self, child: &mut Child) -> Result<Option<ChildExit>> {
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                // The terminal sends Ctrl-C to the child as well, so the child may have ended
                // because of the interrupt.
                return Ok(if interrupt::interrupted() { None } else { Some(ChildExit::Exited(status.to_string())) });
            }
            let timed_out = started.elapsed() > self.timeout;
            if timed_out || interrupt::interrupted() {
                child.kill()?;
                child.wait()?;
                return Ok(if timed_out { Some(ChildExit::TimedOut) } else { None });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn outcome(&self, exit: &ChildExit, result_file: &Path, stderr_file: &Path) -> Outcome {
        match exit {
            ChildExit::TimedOut => Outcome::Failed(format!("it did not end within {:?}", self.timeout)),
            ChildExit::Exited(status) => fs::read_to_string(result_file)
                .ok()
                .and_then(|result| serde_json::from_str(&result).ok())
                .unwrap_or_else(|| {
                    Outcome::Failed(format!("the process ended with {status}: {}", stderr_tail(stderr_file)))
                }),
        }
    }
}

enum ChildExit {
    /// The status as text.
    Exited(String),
    TimedOut,
}

fn stderr_tail(stderr_file: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(stderr_file).map(|mut file| file.read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let from = text.char_indices().rev().nth(STDERR_TAIL_CHARS).map_or(0, |(at, _)| at);
    text[from..].trim().replace('\n', " | ")
}
