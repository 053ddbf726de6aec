//! The outer process of `lock run`. The command is ended even if `lock run` itself is killed: so
//! `lock run` is two processes, and each ends everything when the other one is gone.
//!
//! ```text
//!   outer process ──> inner process ──> command ──> …
//!   passes signals    acquires, renews and releases
//!   and the exit      the lock, ends the command
//!   code on
//! ```
//!
//! If the outer process ends, the kernel signals the inner one. If the inner one ends, everything
//! below it becomes the outer one's, and is ended there. Both are in the process group of their
//! caller, as the command is, so that job control works as for any command.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, getpid, getppid};

use super::process_tree::ProcessTree;
use super::run::{exit_code, supervise};
use super::signals::{self, Signals};
use crate::exit::Code;

/// The environment variable that tells the inner process the pid of the outer one.
pub const OUTER_VAR: &str = "PERCOLITE_LOCK_RUN";

/// The name of the inner process in `ps`.
#[cfg(target_os = "linux")]
const PROCESS_NAME: &std::ffi::CStr = c"percolite";

/// Whether this is the inner process.
pub fn is_inner() -> bool {
    !cfg!(target_os = "linux") || env::var_os(OUTER_VAR).is_some()
}

/// Runs the inner process with the arguments of this one; returns its exit code.
pub fn run(name: &str) -> Result<u8> {
    let signals = Signals::watch()?;
    signals.has_command();
    ProcessTree::prepare()?;
    let mut inner = Command::new("/proc/self/exe");
    inner
        .arg0(format!("percolite: keeper of lock {name:?}:"))
        .args(env::args_os().skip(1))
        .env(OUTER_VAR, getpid().as_raw_pid().to_string());
    let inner = inner.spawn().context("cannot start the inner process of `lock run`")?;
    let ended = supervise(ProcessTree::of(&inner), &signals, None, None)?;
    match ended.status.terminating_signal() {
        // The signal came before the inner process could handle it.
        Some(signal) if signals::ENDING.contains(&signal) => Err(signals::interrupted()),
        Some(signal) => Err(Code::LockHeld.error(format!(
            "`lock run` was ended by signal {signal}, and has ended its command; the lock is held until its lease \
             expires"
        ))),
        None => Ok(exit_code(ended.status)),
    }
}

/// In the inner process: from here on SIGTERM is received when the outer process ends. Returns its
/// pid, which [`is_gone`] takes.
pub fn watch() -> Result<Option<Pid>> {
    let outer = env::var(OUTER_VAR).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    #[cfg(target_os = "linux")]
    {
        // The name of this process is that of the file it was started from: `exe`.
        rustix::thread::set_name(PROCESS_NAME).context("cannot name this process")?;
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
            .context("cannot watch the outer process")?;
    }
    if is_gone(outer) {
        return Err(signals::interrupted());
    }
    Ok(outer)
}

/// Whether the outer process has ended.
pub fn is_gone(outer: Option<Pid>) -> bool {
    outer.is_some() && getppid() != outer
}
