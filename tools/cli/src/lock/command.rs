//! Running a command while a lock is held.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use percolite::MAX_LOCK_REASON_BYTES;
use rustix::process::{Pid, Signal, kill_process};

use super::RunArgs;
use super::lease::{Keeper, Lease, Released};
use super::signals::{Event, Signals};
use super::waiting::Taken;
use crate::exit::Code;
use crate::{history, open};

/// The command finds its token here.
const TOKEN: &str = "PERCOLITE_LOCK_TOKEN";
/// So long a command has to end by itself when the lock is lost.
const GRACE: Duration = Duration::from_secs(10);
/// How often to look after a command of whose end no signal has come.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long to wait after the command for a store that is open elsewhere; for this long whatever signals come, since the one that has
/// ended the command may come here late,
const RELEASE_TRIED: Duration = Duration::from_secs(2);
/// and for this long until one does.
const RELEASE_PATIENCE: Duration = Duration::from_secs(28);

/// How a command has ended.
struct Ended {
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
    let why = request.why.clone().unwrap_or_else(|| short(&program.to_string_lossy()));
    let Taken { store, guard, since } = request.wanted(args.time, "percolite lock run", Some(why)).take(&signals)?;
    let token = super::kept(guard)?;
    let lease = Lease { folder: &request.store, name: &request.name, token, time: args.time };
    store.close()?;

    if Instant::now() >= since + lease.time {
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
        let started = Command::new(program).args(arguments).env(TOKEN, token.to_string()).spawn();
        started.map_err(|why| not_started(&program.to_string_lossy(), &why))
    });
    let mut child = match started {
        Ok(child) => child,
        Err(why) => {
            release(&lease, since + lease.time, None, &signals);
            return Err(why);
        }
    };
    let keeper = Keeper::start(&lease, since, signals.sender());
    let ended = attend(&mut child, &signals);
    let at = Instant::now();
    let ends = keeper.stop();
    let Ended { status, lost } = ended?;
    if let Some(why) = lost {
        return Err(Code::LockHeld.error(format!("{why}; so {} was ended", program.to_string_lossy())));
    }
    release(&lease, ends, Some(at), &signals);
    Ok(code(status))
}

fn not_started(program: &str, why: &io::Error) -> anyhow::Error {
    let code = if why.kind() == io::ErrorKind::NotFound { Code::NoCommand } else { Code::NotExecutable };
    code.error(format!("{program} cannot be run: {why}"))
}

/// Waits for the end of a command, and sees to it that it ends when the lock is lost.
fn attend(child: &mut Child, signals: &Signals) -> Result<Ended> {
    let (mut lost, mut kill_at) = (None, None);
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            return Ok(Ended { status, lost });
        }
        let now = Instant::now();
        if kill_at.is_some_and(|at| now >= at) {
            child.kill().context("cannot end the command")?;
            kill_at = None;
        }
        let until_kill = kill_at.map_or(LOOK_EVERY, |at: Instant| at.saturating_duration_since(now));
        match signals.next(until_kill.min(LOOK_EVERY)) {
            Some(Event::Signal(caught)) => caught.pass_on(child),
            Some(Event::Lost(why)) => {
                // It was not waited for, so no other process has its number.
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
                (lost, kill_at) = (Some(why), Some(Instant::now() + GRACE));
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
    let released = match lease.release(None, left().min(RELEASE_TRIED)) {
        Ok(Released::Busy) => lease.release(Some(signals), left().min(RELEASE_PATIENCE)),
        released => released,
    };
    let left = left();
    let still_held = |why: &str| {
        let folder = open::quoted(&lease.folder.folder);
        let left = history::readable(left);
        eprintln!(
            "warning: lock {name:?} was not released ({why}); it is free in {left}, or after: percolite lock release {folder} {name:?} {token}"
        );
    };
    match released {
        Ok(Released::Yes) => {}
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
        Err(why) => still_held(&format!("{why:#}")),
    }
}

/// As a shell says it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(Code::Failed as u8)
}

/// As much of it as fits.
fn short(text: &str) -> String {
    let mut end = text.len().min(MAX_LOCK_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}
