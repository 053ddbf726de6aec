//! A cell's own process: what it uses is its own, and what it does to itself is its own misfortune.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::interrupt;
use crate::spec::{Outcome, Spec};

const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How much of what a process said on its way out is kept.
const LAST_WORDS: usize = 500;

/// Where cells have their folders. It goes with this, also when the run is interrupted.
pub struct Scratch {
    folder: TempDir,
    /// How long a process may take.
    limit: Duration,
}

impl Scratch {
    /// In this folder, or in the system's for temporary ones.
    pub fn new(within: Option<&Path>, limit: Duration) -> Result<Self> {
        let within = within.map_or_else(std::env::temp_dir, Path::to_owned);
        let folder = tempfile::Builder::new()
            .prefix("percolite-compare-")
            .tempdir_in(&within)
            .with_context(|| format!("cannot make a folder in {}", within.display()))?;
        Ok(Self { folder, limit })
    }

    /// Measures a cell. `None` if the run was interrupted.
    pub fn run(&self, spec: &Spec) -> Result<Option<Outcome>> {
        self.run_with(spec, &[])
    }

    /// The same under a command that runs another, such as strace.
    pub fn run_with(&self, spec: &Spec, command: &[&str]) -> Result<Option<Outcome>> {
        let (store, told, said) = (self.path("store"), self.path("outcome"), self.path("said"));
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut words = command.iter().map(std::ffi::OsStr::new).chain([program.as_os_str()]);
        let mut start = Command::new(words.next().context("no command")?);
        start.args(words).arg("cell").arg(serde_json::to_string(spec)?).arg(&store);
        start.stdin(Stdio::null()).stdout(File::create(&told)?).stderr(File::create(&said)?);
        let mut child = start.spawn().with_context(|| format!("cannot run {}", start.get_program().display()))?;
        let ended = self.wait(&mut child)?;
        let outcome = ended.map(|ended| self.outcome(&ended, &told, &said));
        if store.exists() {
            fs::remove_dir_all(&store).with_context(|| format!("cannot remove {}", store.display()))?;
        }
        Ok(outcome)
    }

    /// A file or folder in it.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn wait(&self, child: &mut Child) -> Result<Option<Ended>> {
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                // A signal from the terminal reaches the child as well.
                return Ok(if interrupt::came() { None } else { Some(Ended::ByItself(status.to_string())) });
            }
            let is_late = began.elapsed() > self.limit;
            if is_late || interrupt::came() {
                child.kill()?;
                child.wait()?;
                return Ok(if is_late { Some(Ended::Late) } else { None });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn outcome(&self, ended: &Ended, told: &Path, said: &Path) -> Outcome {
        match ended {
            Ended::Late => Outcome::Failed(format!("took more than {:?}", self.limit)),
            Ended::ByItself(status) => fs::read_to_string(told)
                .ok()
                .and_then(|told| serde_json::from_str(&told).ok())
                .unwrap_or_else(|| Outcome::Failed(format!("ended with {status}: {}", last_words(said)))),
        }
    }
}

enum Ended {
    /// With this status.
    ByItself(String),
    Late,
}

fn last_words(said: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(said).map(|mut file| file.read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let from = text.char_indices().rev().nth(LAST_WORDS).map_or(0, |(at, _)| at);
    text[from..].trim().replace('\n', " | ")
}
