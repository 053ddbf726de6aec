//! What a killed `lock run` has left running.
//!
//! The command of `lock run` has a *mark*: a number in the environment, which all that it starts
//! inherit, and in the name of a file beside those of the [turns](super::turns). `lock run` removes
//! the file when nothing of the command runs any more. So a file that is still there when no `lock
//! run` has the lock is that of a killed one, and processes with its number are what it has left:
//! also those that have closed all files that they did not open, and have a session of their own.
//!
//! The next process that wants the lock waits for them, and ends them if the lock has been free
//! for longer than a living `lock run` takes to end its command. Each writes what it has found into
//! the file, because a process without the variable, which was started with another environment or
//! belongs to another user, is found below its parent only, and the parent may end first. Not found
//! is such a process that was started in the last second, and whose parent had ended, when both
//! processes of `lock run` were killed.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Pid, getpid};

use super::process_tree::{self, Ending, KILL_DELAY};
use super::turns::{TurnFiles, open_regular};
use crate::process;

/// The environment variable with the marks of a command, one for each `lock run` above it.
const MARKS_VAR: &str = "PERCOLITE_LOCK_MARKS";
const SEPARATOR: char = ':';
/// The end of the file's name, for an exclusive and for a shared lock.
const KINDS: [&str; 2] = ["exclusive", "shared"];
/// The time between two looks at all processes.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A lock that is free for this long while something runs under it has no `lock run` that would end
/// it.
const PATIENCE: Duration = KILL_DELAY.saturating_add(Duration::from_secs(2));

/// The mark of one command. Its file is removed on drop: when nothing of the command runs.
pub struct Mark {
    number: String,
    file: PathBuf,
    noted: String,
    noted_at: Option<Instant>,
}

impl Mark {
    pub fn create(files: &TurnFiles, shared: bool) -> Result<Self> {
        let number = format!("{:032x}", rand::random::<u128>());
        let file = files.create_mark(&format!("{number}.{}", KINDS[usize::from(shared)]))?;
        Ok(Self { number, file, noted: String::new(), noted_at: None })
    }

    pub fn put_on<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let above = env::var(MARKS_VAR).map(|marks| marks + &SEPARATOR.to_string()).unwrap_or_default();
        command.env(MARKS_VAR, above + &self.number)
    }

    /// To be called repeatedly while the command runs: writes what it has started into the file,
    /// from time to time.
    pub fn note_descendants(&mut self) {
        if self.noted_at.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL) {
            self.noted_at = Some(Instant::now());
            self.noted = note(&self.file, &self.noted, &process_tree::descendants());
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // A file that stays is removed by the next process that wants the lock.
        let _ = fs::remove_file(&self.file);
    }
}

/// The processes that exclude a command under this lock, though no `lock run` may be left.
pub struct Leftovers {
    files: TurnFiles,
    shared: bool,
    looked_at: Option<Instant>,
    are_gone: bool,
    /// Since when the lock is free and they run.
    since: Option<Instant>,
    ending: Option<Ending>,
}

impl Leftovers {
    /// Of the commands that exclude one of this mode.
    pub fn of(files: TurnFiles, shared: bool) -> Self {
        Self { files, shared, looked_at: None, are_gone: false, since: None, ending: None }
    }

    /// Whether there are none. The caller must be the one that may run a command, so that no `lock
    /// run` is left whose files these could be.
    pub fn are_gone(&mut self) -> bool {
        let is_due = self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL);
        if !self.are_gone && is_due {
            self.looked_at = Some(Instant::now());
            let marks = self.marks();
            self.are_gone = marks.iter().all(|mark| processes_of(mark).is_empty());
            if self.are_gone {
                // A file that cannot be removed is looked at again by the next process.
                marks.iter().for_each(|mark| drop(fs::remove_file(mark)));
            }
        }
        self.are_gone
    }

    /// To be called repeatedly while the lock is free and something runs under it: ends that after
    /// [`PATIENCE`].
    pub fn lock_is_free(&mut self, name: &str) {
        if self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return;
        }
        let running = self.running();
        // What runs within such a command itself can only wait.
        if running.is_empty() || running.contains(&getpid()) {
            return;
        }
        let ending = self.ending.get_or_insert_with(|| {
            eprintln!(
                "warning: a killed `lock run` has left processes under lock {name:?}, which are ended: {}",
                process::names(&running)
            );
            Ending::by(Instant::now() + KILL_DELAY)
        });
        ending.step(&running, None);
    }

    /// To be called when the lock is held: what runs may be the holder's.
    pub fn lock_is_held(&mut self) {
        (self.since, self.ending) = (None, None);
    }

    pub fn running(&self) -> Vec<Pid> {
        self.marks().iter().flat_map(|mark| processes_of(mark)).collect()
    }

    fn marks(&self) -> Vec<PathBuf> {
        let mut marks = self.files.marks();
        marks.retain(|mark| !self.shared || mark.extension().is_some_and(|kind| kind == KINDS[0]));
        marks
    }
}

/// Removes the files of all locks that no command uses.
pub fn remove_unused_files(files: &TurnFiles) {
    files.remove_unused(|mark| processes_of(mark).is_empty());
}

/// The processes with this mark, those that were found earlier, and all below them.
fn processes_of(mark: &Path) -> Vec<Pid> {
    // The name is that of the lock, the number, and the kind.
    let Some(number) = mark.file_stem().and_then(|stem| stem.to_str()?.rsplit('.').next()) else { return Vec::new() };
    let prefix = format!("{MARKS_VAR}=");
    let has_mark = |pid: &Pid| {
        // The environment of another user's process cannot be read, and one that has ended has
        // none.
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        let own = variables.find_map(|variable| variable.strip_prefix(prefix.as_bytes())).unwrap_or_default();
        own.split(|byte| *byte == SEPARATOR as u8).any(|found| found == number.as_bytes())
    };
    let known = open_regular(mark, OpenOptions::new().read(true)).and_then(io::read_to_string).unwrap_or_default();
    let mut found: Vec<Pid> = process_tree::all().filter(has_mark).chain(known.lines().filter_map(running)).collect();
    found.extend(process_tree::below(found.clone()));
    found.sort_unstable_by_key(|pid| pid.as_raw_pid());
    found.dedup();
    note(mark, &known, &found);
    found
}

/// The process of a line that [`note`] has written, if it still runs.
fn running(line: &str) -> Option<Pid> {
    let (pid, started_at) = line.split_once(' ')?;
    let (pid, started_at) = (Pid::from_raw(pid.parse().ok()?)?, started_at.parse::<u64>().ok()?);
    (process_tree::started_at(pid)? == started_at).then_some(pid)
}

/// Writes processes into the file of their mark, unless it has them; returns the text.
fn note(mark: &Path, known: &str, processes: &[Pid]) -> String {
    let mut text = String::new();
    for pid in processes {
        if let Some(started_at) = process_tree::started_at(*pid) {
            let _ = writeln!(text, "{} {started_at}", pid.as_raw_pid());
        }
    }
    if text != known {
        // A file that cannot be written, such as another user's, leaves what its marks show.
        let opened = open_regular(mark, OpenOptions::new().write(true).truncate(true));
        let _ = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    }
    text
}
