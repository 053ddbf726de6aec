//! `percolite lock run`: runs a command while a lock is held.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use percolite::MAX_LOCK_REASON_BYTES;
use rustix::process::{Pid, Signal, kill_process};

use super::RunArgs;
use super::acquire::Acquired;
use super::lease::{Lease, LeaseRenewer, Released};
use super::signals::{Event, Signals};
use crate::exit::Code;
use crate::{duration, open};

/// The environment variable with the token, for the command.
const TOKEN_VAR: &str = "PERCOLITE_LOCK_TOKEN";
/// The time between SIGTERM and SIGKILL to a command whose lock is lost.
const KILL_DELAY: Duration = Duration::from_secs(10);
/// How often to check the command, in case its SIGCHLD was missed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the release of the lock is first retried while the store is open elsewhere. Signals are
/// ignored for this time, because the signal that ended the command may arrive here late.
const RELEASE_RETRY_MIN: Duration = Duration::from_secs(2);
/// After [`RELEASE_RETRY_MIN`], the release is retried for this time. A signal ends these retries.
const RELEASE_RETRY_MAX: Duration = Duration::from_secs(28);

/// The end of a command.
struct CommandExit {
    status: ExitStatus,
    /// The message about the loss of the lock, if it was lost while the command ran.
    lost: Option<String>,
}

pub fn run(args: &RunArgs) -> Result<u8> {
    let signals = Signals::watch()?;
    let request = &args.request;
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Code::Usage.error("COMMAND is missing"));
    };
    let reason = request.reason.clone().unwrap_or_else(|| truncate(&program.to_string_lossy()));
    let Acquired { store, guard, requested_at } =
        request.acquire_request(args.ttl, "percolite lock run", Some(reason)).acquire(&signals)?;
    let token = super::detach(guard)?;
    let lease = Lease { dir: &request.store, name: &request.name, token, ttl: args.ttl };
    store.close()?;

    let expires_at = requested_at + lease.ttl;
    if Instant::now() >= expires_at {
        let program = program.to_string_lossy();
        return Err(Code::LockHeld
            .error(format!("lock {:?} expired before {program} could be run; use a longer --ttl", request.name)));
    }
    // A signal that arrived before this call cannot be forwarded, so it prevents the start of the
    // command.
    signals.has_command();
    let started = signals.check().and_then(|()| {
        let started = Command::new(program).args(arguments).env(TOKEN_VAR, token.to_string()).spawn();
        started.map_err(|err| not_started(&program.to_string_lossy(), &err))
    });
    let mut child = match started {
        Ok(child) => child,
        Err(err) => {
            release(&lease, expires_at, None, &signals);
            return Err(err);
        }
    };
    let renewer = LeaseRenewer::start(&lease, requested_at, signals.sender());
    let exit = supervise(&mut child, &signals);
    let ended_at = Instant::now();
    let expires_at = renewer.stop();
    let CommandExit { status, lost } = exit?;
    if let Some(message) = lost {
        return Err(Code::LockHeld.error(format!("{message}; terminated {}", program.to_string_lossy())));
    }
    release(&lease, expires_at, Some(ended_at), &signals);
    Ok(exit_code(status))
}

fn not_started(program: &str, err: &io::Error) -> anyhow::Error {
    let code = if err.kind() == io::ErrorKind::NotFound { Code::CommandNotFound } else { Code::NotExecutable };
    code.error(format!("{program} cannot be run: {err}"))
}

/// Waits for the end of the command, forwards signals to it, and ends it if the lock is lost.
fn supervise(child: &mut Child, signals: &Signals) -> Result<CommandExit> {
    let (mut lost, mut kill_at) = (None, None);
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            return Ok(CommandExit { status, lost });
        }
        let now = Instant::now();
        if kill_at.is_some_and(|at| now >= at) {
            child.kill().context("cannot end the command")?;
            kill_at = None;
        }
        let until_kill = kill_at.map_or(POLL_INTERVAL, |at: Instant| at.saturating_duration_since(now));
        match signals.next(until_kill.min(POLL_INTERVAL)) {
            Some(Event::Signal(received)) => received.forward(child),
            Some(Event::Lost(message)) => {
                // The child was not reaped, so no other process has its pid.
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
                (lost, kill_at) = (Some(message), Some(Instant::now() + KILL_DELAY));
            }
            Some(Event::Child) | None => {}
        }
    }
}

/// Releases the lock; `expires_at` is the earliest time at which its lease may expire. `ended_at`
/// is the end of the command, if it ran. A failure only prints a warning, because the exit code is
/// that of the command.
fn release(lease: &Lease<'_>, expires_at: Instant, ended_at: Option<Instant>, signals: &Signals) {
    let left = || expires_at.saturating_duration_since(Instant::now());
    let Lease { name, token, .. } = lease;
    let released = match lease.release(None, left().min(RELEASE_RETRY_MIN)) {
        Ok(Released::Busy) => lease.release(Some(signals), left().min(RELEASE_RETRY_MAX)),
        released => released,
    };
    let left = left();
    let still_held = |err: &str| {
        let dir = open::shell_quoted(&lease.dir.path);
        let left = duration::human_duration(left);
        eprintln!(
            "warning: lock {name:?} was not released ({err}); it expires in {left}, \
             or release it: percolite lock release {dir} {name:?} {token}"
        );
    };
    match released {
        Ok(Released::Done) => {}
        Ok(Released::NotHeld(_)) if !left.is_zero() => {
            eprintln!(
                "warning: lock {name:?} was released by its token, or by force, before `lock run` released it; \
                 another process may have held it while the command ran"
            );
        }
        // The command did not run, or ended before the lock expired. So the lock was held for as
        // long as the command ran, and there is no warning.
        Ok(Released::NotHeld(_) | Released::Busy) if left.is_zero() && ended_at.is_none_or(|at| at < expires_at) => {}
        Ok(Released::NotHeld(_) | Released::Busy) if left.is_zero() => {
            eprintln!(
                "warning: lock {name:?} expired before the command ended, and could not be renewed; \
                 another process may have held it while the command ran"
            );
        }
        Ok(_) => still_held("the store is open in another process"),
        Err(err) => still_held(&format!("{err:#}")),
    }
}

/// The exit code, as a shell computes it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(Code::Failed as u8)
}

/// The text, truncated to the limit of a reason.
fn truncate(text: &str) -> String {
    let mut end = text.len().min(MAX_LOCK_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}
