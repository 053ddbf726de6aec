//! Running a command while a lock is held.

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

/// The command finds its token here.
const TOKEN_VAR: &str = "PERCOLITE_LOCK_TOKEN";
/// So long a command has to end by itself when the lock is lost.
const KILL_DELAY: Duration = Duration::from_secs(10);
/// How often to look after a command of whose end no signal has come.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait after the command for a store that is open elsewhere; for this long whatever signals come, since the one that has
/// ended the command may come here late,
const RELEASE_RETRY_MIN: Duration = Duration::from_secs(2);
/// and for this long until one does.
const RELEASE_RETRY_MAX: Duration = Duration::from_secs(28);

/// How a command has ended.
struct CommandExit {
    status: ExitStatus,
    /// What was seen of the lock meanwhile, if it is lost.
    lost: Option<String>,
}

pub fn run(args: &RunArgs) -> Result<u8> {
    let signals = Signals::watch()?;
    let request = &args.request;
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Code::Usage.error("there is no COMMAND"));
    };
    let err = request.reason.clone().unwrap_or_else(|| truncate(&program.to_string_lossy()));
    let Acquired { store, guard, requested_at: since } =
        request.acquire_request(args.time, "percolite lock run", Some(err)).acquire(&signals)?;
    let token = super::detach(guard)?;
    let lease = Lease { dir: &request.store, name: &request.name, token, ttl: args.time };
    store.close()?;

    if Instant::now() >= since + lease.ttl {
        let what = format!(
            "the time of lock {:?} was over before {} could be run; say a longer --for",
            request.name,
            program.to_string_lossy()
        );
        return Err(Code::LockHeld.error(what));
    }
    // A signal that comes before this finds nothing to be passed on to.
    signals.has_command();
    let started = signals.check().and_then(|()| {
        let started = Command::new(program).args(arguments).env(TOKEN_VAR, token.to_string()).spawn();
        started.map_err(|err| not_started(&program.to_string_lossy(), &err))
    });
    let mut child = match started {
        Ok(child) => child,
        Err(err) => {
            release(&lease, since + lease.ttl, None, &signals);
            return Err(err);
        }
    };
    let keeper = LeaseRenewer::start(&lease, since, signals.sender());
    let ended = supervise(&mut child, &signals);
    let at = Instant::now();
    let ends = keeper.stop();
    let CommandExit { status, lost } = ended?;
    if let Some(err) = lost {
        return Err(Code::LockHeld.error(format!("{err}; so {} was ended", program.to_string_lossy())));
    }
    release(&lease, ends, Some(at), &signals);
    Ok(exit_code(status))
}

fn not_started(program: &str, err: &io::Error) -> anyhow::Error {
    let code = if err.kind() == io::ErrorKind::NotFound { Code::CommandNotFound } else { Code::NotExecutable };
    code.error(format!("{program} cannot be run: {err}"))
}

/// Waits for the end of a command, and sees to it that it ends when the lock is lost.
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
            Some(Event::Signal(caught)) => caught.forward(child),
            Some(Event::Lost(err)) => {
                // It was not waited for, so no other process has its number.
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
                (lost, kill_at) = (Some(err), Some(Instant::now() + KILL_DELAY));
            }
            Some(Event::Child) | None => {}
        }
    }
}

/// Releases a lock that lasts until `ends` at least, after the command, if one ran, has `ended`. That end is what counts: what goes wrong
/// here is a warning.
fn release(lease: &Lease<'_>, ends: Instant, ended: Option<Instant>, signals: &Signals) {
    let left = || ends.saturating_duration_since(Instant::now());
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
            "warning: lock {name:?} was not released ({err}); it is free in {left}, or after: percolite lock release {dir} {name:?} {token}"
        );
    };
    match released {
        Ok(Released::Done) => {}
        Ok(Released::NotHeld(_)) if !left.is_zero() => {
            eprintln!(
                "warning: lock {name:?} was released by its token, or taken away, before `lock run` did so; another may have held it while the command ran"
            );
        }
        // All its time was the lock's. Then it was free without being released.
        Ok(Released::NotHeld(_) | Released::Busy) if left.is_zero() && ended.is_none_or(|ended| ended < ends) => {}
        Ok(Released::NotHeld(_) | Released::Busy) if left.is_zero() => {
            eprintln!(
                "warning: the time of lock {name:?} was over before the command had ended, and it could not be renewed; another may have held it while the command ran"
            );
        }
        Ok(_) => still_held("the store is open in another process"),
        Err(err) => still_held(&format!("{err:#}")),
    }
}

/// As a shell says it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(Code::Failed as u8)
}

/// As much of it as fits.
fn truncate(text: &str) -> String {
    let mut end = text.len().min(MAX_LOCK_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}
