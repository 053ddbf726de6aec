//! The options of a layer, and what all layers share: the time limit, the choice of one case, and
//! the saving of a failure.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use percolite::mutants::Mutant;

use crate::client_log::ClientLog;
use crate::interrupt;
use crate::layer_result::{Failure, LayerResult};
use crate::violation::Violation;

/// The options of a layer. See the [module](self).
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LayerArgs {
    /// Run the small set of cases that CI runs.
    #[arg(long)]
    pub quick: bool,
    /// Start cases until this time has passed, as in `90s`, `10m` or `4h`.
    #[arg(long = "for", value_parser = duration)]
    pub time: Option<Duration>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Skip this many cases of the layer's case list.
    #[arg(long, default_value_t = 0)]
    pub skip: u64,
    /// Run only this case.
    #[arg(long)]
    pub case: Option<String>,
    /// Enable a known mistake.
    #[arg(long, hide = true, value_parser = mutant)]
    pub mutant: Option<Mutant>,
    /// Stop at the first failure.
    #[arg(long)]
    pub fail_fast: bool,
    /// Write the run report to this file, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl LayerArgs {
    /// The options of a quick run, from seed 1.
    pub fn quick() -> Self {
        Self { quick: true, seed: 1, ..Self::default() }
    }

    /// The command line that repeats a case.
    pub fn replay(&self, case: &str) -> String {
        let mutant = self.mutant.map(|mutant| format!(" --mutant {}", mutant.name())).unwrap_or_default();
        format!("percolite-crashtest replay {case}{mutant}")
    }

    /// Starts the clock of a run.
    pub fn clock(&self) -> RunClock {
        RunClock { started: Instant::now(), limit: self.time }
    }

    /// Whether the run must stop: after an interrupt, or at the first failure with `--fail-fast`.
    pub fn should_stop(&self, outcome: &LayerResult) -> bool {
        interrupt::is_requested() || self.fail_fast && !outcome.failures.is_empty()
    }
}

/// Measures the time of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunClock {
    started: Instant,
    limit: Option<Duration>,
}

impl RunClock {
    /// Whether another case may start after `done` cases: until the time limit or, without one,
    /// until there are `enough` cases.
    pub fn allows(&self, done: u64, enough: u64) -> bool {
        self.limit.map_or(done < enough, |limit| self.started.elapsed() < limit)
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

/// Parses a time.
///
/// # Errors
/// A text that is not a time.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(format!("invalid time {text:?}; expected a time like 90s, 10m or 4h")),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("invalid time {text:?}; expected a time like 90s, 10m or 4h"))?;
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}

/// Parses the name of a mutant.
///
/// # Errors
/// An unknown mutant.
pub fn mutant(name: &str) -> Result<Mutant, String> {
    Mutant::from_name(name).ok_or_else(|| format!("unknown mutant {name:?}"))
}

/// Saves a failure: the store's directory, the history and the violations.
pub fn save_failure(
    args: &LayerArgs,
    case: &str,
    store_dir: &Path,
    client_log: Option<&ClientLog>,
    violations: Vec<Violation>,
) -> Failure {
    save_failure_with(args, case, client_log, violations, |dir| copy_dir(store_dir, &dir.join("store")))
}

/// Saves a failure of a case without a directory; `write_more` writes additional files.
pub fn save_failure_with(
    args: &LayerArgs,
    case: &str,
    client_log: Option<&ClientLog>,
    mut violations: Vec<Violation>,
    write_more: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Failure {
    Violation::sort(&mut violations);
    let name: String = case.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let dir = std::env::temp_dir().join("percolite-crashtest").join(name);
    let replay = args.replay(case);
    let write = || {
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        write_more(&dir)?;
        if let Some(client_log) = client_log {
            let mut history = BufWriter::new(fs::File::create(dir.join("history.jsonl"))?);
            for line in client_log.lines() {
                line.write(&mut history)?;
            }
            history.flush()?;
        }
        let text: Vec<String> = violations.iter().map(ToString::to_string).collect();
        fs::write(dir.join("violations.txt"), format!("{}\n\n{replay}\n", text.join("\n")))
    };
    let dir = write().is_ok().then_some(dir);
    Failure { replay, violations, saved_in: dir }
}

/// Copies a directory with its subdirectories.
///
/// # Errors
/// I/O errors.
pub fn copy_dir(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &to.join(entry.file_name()))?;
        } else {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// A directory for stores that need no disk: in memory where the machine has `/dev/shm`.
///
/// # Errors
/// I/O errors.
pub fn scratch_dir() -> std::io::Result<tempfile::TempDir> {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    // The process id in the name shows which process has created the directory.
    let prefix = format!("percolite-crashtest-{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(&parent).or_else(|_| tempfile::tempdir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_with_their_unit() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("4h"), Ok(Duration::from_secs(14400)));
        assert!(duration("4 weeks").is_err());
    }
}
