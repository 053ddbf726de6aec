//! Starts a child and hears it out.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;

use crate::copies::Copy;
use crate::doom::{Fatal, Visits};
use crate::interrupt;
use crate::ledger::Ledger;
use crate::life::Life;
use crate::mutex::note::Note;
use crate::pipe::{CrashHook, Heard};
use crate::restores::Restores;
use crate::violation::Broken;

/// A child that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(60);

/// What became of a life.
#[derive(Debug, Default)]
pub struct Lived {
    /// Where it died, by its own hand and by no other.
    pub died: Option<Fatal>,
    /// How many commits it acknowledged.
    pub acknowledged: u64,
    /// Copies that it has begun.
    pub copies: Vec<Copy>,
    /// Dumps that it has restored.
    pub restores: Restores,
    /// What it has noted of locks.
    pub notes: Vec<Note>,
    /// What it visited.
    pub visits: Visits,
    /// What went wrong.
    pub broken: Vec<Broken>,
}

/// Runs a life and enters what it says in the ledger; what it writes as errors goes to the file `log`.
///
/// # Errors
/// No process could be started, or all is interrupted.
pub fn live(program: &Path, life: &Life, ledger: &mut Ledger, log: &Path) -> anyhow::Result<Lived> {
    let arguments = life.arguments_of(program)?;
    let mut command = Command::new(&arguments[0]);
    let log = OpenOptions::new().create(true).append(true).open(log).context("the log")?;
    command.args(&arguments[1..]).stderr(log);
    let mut child = CrashHook::start(command, std::mem::take(ledger)).with_context(|| program.display().to_string())?;
    let ended = child.wait(SILENCE, |_| false);
    let (Heard { ledger: told, failed, acknowledged, dying, visits, copies, restores, notes, .. }, status) =
        child.end();
    *ledger = told;
    ensure!(!interrupt::came(), "interrupted");
    let mut lived = Lived { died: None, acknowledged, copies, restores, notes, visits, broken: Vec::new() };
    for call in failed {
        let how = format!("{}: {}", call.call, call.text);
        lived.broken.push(Broken::new("I8 workload, or an error for no reason", how));
    }
    if !ended {
        lived.broken.push(Broken::new("I12 progress", format!("a life was silent for {SILENCE:?}")));
    }
    let status = status.context("the child's end")?;
    let killed = status.signal() == Some(Signal::KILL.as_raw());
    match dying {
        Some(at) if killed => lived.died = Some(at),
        None if status.success() => {}
        at => lived.broken.push(Broken::new("stays alive", format!("the process ended with {status}, saying {at:?}"))),
    }
    Ok(lived)
}
