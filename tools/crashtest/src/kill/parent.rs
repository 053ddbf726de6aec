//! Starts a child process and receives its events.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;

use crate::checkpoints::Checkpoint;
use crate::child::ChildConfig;
use crate::client_log::ClientLog;
use crate::event_pipe::{ChildMonitor, Received};
use crate::interrupt;
use crate::lock_workload::event::LockEvent;
use crate::restores::Restores;
use crate::self_kill::{KillAt, Visits};
use crate::violation::Violation;

/// A child that sends no event for this time hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a child process.
#[derive(Debug, Default)]
pub struct ChildResult {
    /// Where the child killed itself.
    pub killed_at: Option<KillAt>,
    /// How many commits it acknowledged.
    pub acknowledged: u64,
    /// Checkpoints that it started.
    pub checkpoints: Vec<Checkpoint>,
    /// Dumps that it restored.
    pub restores: Restores,
    /// Events of named locks.
    pub lock_events: Vec<LockEvent>,
    /// Visits of crash points.
    pub visits: Visits,
    /// Violations.
    pub violations: Vec<Violation>,
}

/// Runs a child and records its events in the client log; its standard error goes to the file
/// `log`.
///
/// # Errors
/// The process cannot be started, or the run is interrupted.
pub fn run_child(
    program: &Path,
    config: &ChildConfig,
    client_log: &mut ClientLog,
    log: &Path,
) -> anyhow::Result<ChildResult> {
    let arguments = config.arguments_for(program)?;
    let mut command = Command::new(&arguments[0]);
    let log = OpenOptions::new().create(true).append(true).open(log).context("the log")?;
    command.args(&arguments[1..]).stderr(log);
    let mut child =
        ChildMonitor::start(command, std::mem::take(client_log)).with_context(|| program.display().to_string())?;
    let ended = child.wait(HANG_TIMEOUT, |_| false);
    let (
        Received {
            client_log: log_after,
            failed,
            acknowledged,
            killed_at,
            visits,
            checkpoints,
            restores,
            lock_events,
            ..
        },
        status,
    ) = child.end();
    *client_log = log_after;
    ensure!(!interrupt::is_requested(), "interrupted");
    let mut result = ChildResult {
        killed_at: None,
        acknowledged,
        checkpoints,
        restores,
        lock_events,
        visits,
        violations: Vec::new(),
    };
    for call in failed {
        let how = format!("{}: {}", call.call, call.text);
        result.violations.push(Violation::new("workload, or an unexpected error", how));
    }
    if !ended {
        result.violations.push(Violation::new("progress", format!("the child sent no event for {HANG_TIMEOUT:?}")));
    }
    let status = status.context("the child's end")?;
    let killed = status.signal() == Some(Signal::KILL.as_raw());
    match killed_at {
        Some(at) if killed => result.killed_at = Some(at),
        None if status.success() => {}
        at => result.violations.push(Violation::new(
            "the process stays alive",
            format!("the process ended with {status}; its last event was {at:?}"),
        )),
    }
    Ok(result)
}
