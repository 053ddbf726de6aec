//! `percolite lock run`: runs a command while a lock is held.
//!
//! The lock is released when the command has ended and nothing that it has started runs any more:
//! what is left gets SIGTERM and then SIGKILL. The same ends all of it when the lock is lost.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use percolite::MAX_LOCK_REASON_BYTES;
use rustix::process::{Pid, WaitStatus};

use super::RunArgs;
use super::acquire::Acquired;
use super::lease::{Lease, LeaseRenewer, Released};
use super::leftovers::{self, Mark};
use super::outer::{self, OUTER_VAR};
use super::process_tree::{Ending, KILL_DELAY, ProcessTree, descendants};
use super::signals::{EndReason, Event, Signals};
use crate::exit::Code;
use crate::quoting::quoted_name;
use crate::{duration, open};

/// The environment variable with the token, for the command.
const TOKEN_VAR: &str = "PERCOLITE_LOCK_TOKEN";
/// How often to check the command, in case its SIGCHLD was missed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often to check what is being ended.
const ENDING_INTERVAL: Duration = Duration::from_millis(20);
/// How long the release of the lock is first retried while the store is open elsewhere. Signals are
/// ignored for this time, because the signal that ended the command may arrive here late.
const RELEASE_RETRY_MIN: Duration = Duration::from_secs(2);
/// After [`RELEASE_RETRY_MIN`], the release is retried for this time. A signal ends these retries.
const RELEASE_RETRY_MAX: Duration = Duration::from_secs(28);

/// The end of a command and of everything that it has started.
pub struct CommandExit {
    pub status: WaitStatus,
    /// Why the command was ended, if it did not end by itself.
    pub reason: Option<EndReason>,
}

pub fn run(args: &RunArgs) -> Result<u8> {
    if outer::is_inner() { run_command(args) } else { outer::run(&args.request.name) }
}

fn run_command(args: &RunArgs) -> Result<u8> {
    let signals = Signals::watch()?;
    let outer = outer::watch()?;
    let request = &args.request;
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Code::Usage.error("COMMAND is missing"));
    };
    let reason = request.reason.clone().unwrap_or_else(|| truncate(&program.to_string_lossy()));
    let acquire = request.acquire_request(args.ttl, "percolite lock run", Some(reason));
    let Acquired { store, guard, requested_at, running } = acquire.acquire(&signals)?;
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
    let started = signals.check().and_then(|()| ProcessTree::prepare()).and_then(|()| {
        let asked = running.try_clone()?;
        running.make_inheritable()?;
        let mark = Mark::create(&acquire.turn_files(), request.shared)?;
        let mut command = Command::new(program);
        command.args(arguments).env(TOKEN_VAR, token.to_string()).env_remove(OUTER_VAR);
        let started = mark.put_on(&mut command).spawn();
        let started = started.map_err(|err| not_started(&program.to_string_lossy(), &err))?;
        Ok((ProcessTree::of(&started), asked, mark))
    });
    let (tree, asked, mut mark) = match started {
        Ok(started) => started,
        Err(err) => {
            release(&lease, expires_at, None, &signals);
            drop(running);
            leftovers::remove_unused_files(&acquire.turn_files());
            return Err(err);
        }
    };
    let renewer = LeaseRenewer::start(&lease, requested_at, asked, signals.sender());
    let ended = supervise(tree, &signals, outer, Some(&mut mark));
    let ended_at = Instant::now();
    let expires_at = renewer.stop();
    let CommandExit { status, reason } = ended?;
    drop(mark);
    match &reason {
        None => release(&lease, expires_at, Some(ended_at), &signals),
        // The error says what has happened; the lease may have expired meanwhile.
        Some(reason) if !reason.is_lost => drop(lease.release(None, RELEASE_RETRY_MIN)),
        Some(_) => {}
    }
    drop(running);
    leftovers::remove_unused_files(&acquire.turn_files());
    match reason {
        Some(EndReason { message, .. }) => {
            Err(Code::LockHeld.error(format!("{message}; terminated {}", program.to_string_lossy())))
        }
        None => Ok(exit_code(status)),
    }
}

fn not_started(program: &str, err: &io::Error) -> anyhow::Error {
    let code = if err.kind() == io::ErrorKind::NotFound { Code::CommandNotFound } else { Code::NotExecutable };
    code.error(format!("{program} cannot be run: {err}"))
}

/// Forwards signals to the command, and ends it if the lock is lost or the outer process is gone.
/// Returns when nothing that the command has started runs any more.
pub fn supervise(
    mut tree: ProcessTree,
    signals: &Signals,
    outer: Option<Pid>,
    mut mark: Option<&mut Mark>,
) -> Result<CommandExit> {
    let (mut reason, mut ending): (_, Option<Ending>) = (None, None);
    loop {
        let is_over = tree.reap()?;
        if is_over {
            let status = tree.status().context("the command was waited for elsewhere")?;
            return Ok(CommandExit { status, reason });
        }
        mark.iter_mut().for_each(|mark| mark.note_descendants());
        if tree.status().is_some() {
            ending.get_or_insert_with(|| Ending::by(Instant::now() + KILL_DELAY));
        }
        if let Some(ending) = &mut ending {
            ending.step(&descendants(), tree.command());
        }
        let event = signals.next(if ending.is_some() { ENDING_INTERVAL } else { POLL_INTERVAL });
        let end = match event {
            _ if reason.is_none() && outer::is_gone(outer) => {
                let message = "`lock run` was killed".to_owned();
                Some(EndReason { message, by: None, is_lost: false })
            }
            Some(Event::Signal(received)) => {
                match (tree.command(), &mut ending) {
                    (Some(command), _) => received.forward(command),
                    // The command has ended, and a second request is not to wait for what is left.
                    (None, Some(ending)) => ending.kill_at = Instant::now(),
                    (None, None) => {}
                }
                None
            }
            Some(Event::End(end)) => Some(end),
            Some(Event::Child | Event::Turn(_)) | None => None,
        };
        if let Some(end) = end {
            let begun = ending.as_ref().map(|ending| ending.kill_at);
            let kill_at = [end.by, begun].into_iter().flatten().fold(Instant::now() + KILL_DELAY, Instant::min);
            ending.get_or_insert_with(|| Ending::by(kill_at)).kill_at = kill_at;
            reason = Some(end);
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
             or release it: percolite lock release {dir} {} {token}",
            quoted_name(name)
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
        Err(err) => still_held(&crate::format_chain(&err)),
    }
}

/// The exit code, as a shell computes it.
pub fn exit_code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
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
