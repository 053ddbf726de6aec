//! INT, TERM and HUP: they end a wait for a lock, and are forwarded to a running command.

use std::fs;
use std::os::raw::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, getpgid, getpgrp, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use super::turns::Turn;
use crate::exit::Code;

/// The signals that request the end.
pub const ENDING: [c_int; 3] = [SIGINT, SIGTERM, SIGHUP];

/// An event while this process waits for a lock, or while a command runs.
pub enum Event {
    /// A signal that requests the end.
    Signal(Received),
    /// A child has changed its state.
    Child,
    /// No other process is ahead of this one in the queue for the lock.
    Turn(Result<Turn>),
    /// The command must end.
    End(EndReason),
}

/// Why a command must end.
pub struct EndReason {
    /// The message of the error.
    pub message: String,
    /// The command must have ended by then; `None` if nothing is known.
    pub by: Option<Instant>,
    /// Whether the lease has ended, so that another process may hold the lock.
    pub is_lost: bool,
}

/// A received signal.
pub struct Received {
    signal: c_int,
    /// Whether the terminal sent the signal, so that all processes of the foreground group have
    /// received it.
    by_terminal: bool,
}

impl Received {
    /// Forwards the signal to the command, which must not have been reaped: another process could
    /// have its pid. A signal from the terminal is not forwarded to a command of the same process
    /// group: the command has received it from the terminal, and many programs act differently on a
    /// second signal.
    pub fn forward(&self, command: Pid) {
        if self.by_terminal && getpgid(Some(command)).is_ok_and(|group| group == getpgrp()) {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(self.signal) {
            // Sending fails if the command has ended meanwhile.
            let _ = kill_process(command, signal);
        }
    }
}

/// See the [module](self).
pub struct Signals {
    events: Receiver<Event>,
    sender: Sender<Event>,
    stop_requested: Arc<AtomicBool>,
    has_command: Arc<AtomicBool>,
}

impl Signals {
    /// Handles the signals from here on. A signal does not end this process, except for a second
    /// signal before [`Signals::has_command`].
    pub fn watch() -> Result<Self> {
        // A signal that was ignored when this process started stays ignored, here and in the
        // command: for example under `nohup`, or in a background job of a script.
        let watched = ENDING.into_iter().filter(|signal| !is_ignored(*signal)).chain([SIGCHLD]);
        let mut received = SignalsInfo::<WithOrigin>::new(watched).context("cannot watch for signals")?;
        let (sender, events) = channel();
        let signals = Self { events, sender, stop_requested: Arc::default(), has_command: Arc::default() };
        let (sender, stop_requested, has_command) =
            (signals.sender(), Arc::clone(&signals.stop_requested), Arc::clone(&signals.has_command));
        std::thread::spawn(move || {
            for origin in received.forever() {
                let event = if origin.signal == SIGCHLD {
                    Event::Child
                } else {
                    if stop_requested.swap(true, Ordering::SeqCst) && !has_command.load(Ordering::SeqCst) {
                        signal_hook::low_level::exit(Code::Interrupted as c_int);
                    }
                    Event::Signal(Received { signal: origin.signal, by_terminal: origin.cause == Cause::Kernel })
                };
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Ok(signals)
    }

    pub fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// An error if a signal has requested the end.
    pub fn check(&self) -> Result<()> {
        if self.stop_requested.load(Ordering::SeqCst) { Err(interrupted()) } else { Ok(()) }
    }

    /// Signals are forwarded to the command from here on.
    pub fn has_command(&self) {
        self.has_command.store(true, Ordering::SeqCst);
    }

    /// Waits for the next event, at most this long.
    pub fn next(&self, at_most: Duration) -> Option<Event> {
        match self.events.recv_timeout(at_most) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            // Unreachable: `self` has a sender.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(at_most);
                None
            }
        }
    }

    /// Sleeps, or returns an error as soon as a signal requests the end.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            let left = time.saturating_sub(started.elapsed());
            if let Some(Event::Signal(_)) = self.next(left) {
                return Err(interrupted());
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    }
}

pub fn interrupted() -> anyhow::Error {
    Code::Interrupted.error("interrupted; this command holds no lock")
}

/// Whether the signal was ignored when this program started; false if that cannot be read.
fn is_ignored(signal: c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    // Signal 1 is bit 0.
    ignored >> (signal - 1) & 1 == 1
}
