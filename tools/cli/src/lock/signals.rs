//! Signals that ask for an end: they end a wait, and are passed on to a command that runs.

use std::fs;
use std::os::raw::c_int;
use std::process::Child;
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

use crate::exit::Code;

/// What happens while a command runs.
pub enum Event {
    /// A signal asks for an end.
    Signal(Received),
    /// A child has changed its state.
    Child,
    /// The lock is lost, as this says.
    Lost(String),
}

/// A signal that has come.
pub struct Received {
    signal: c_int,
    /// The terminal sends what is typed to all processes in the foreground.
    by_terminal: bool,
}

impl Received {
    /// Passes it on to a child that was not waited for. One that the child has been sent as well, by the terminal, is not sent twice:
    /// programs take a second one for more than the first.
    pub fn forward(&self, child: &Child) {
        let pid = Pid::from_child(child);
        if self.by_terminal && getpgid(Some(pid)).is_ok_and(|group| group == getpgrp()) {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(self.signal) {
            // One that has ended meanwhile needs none.
            let _ = kill_process(pid, signal);
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
    /// From here on signals do not end this process, but for a second one before [`Signals::has_command`].
    pub fn watch() -> Result<Self> {
        // What is to be ignored stays so, here and in the command: `nohup`, and what scripts leave behind them with `&`.
        let watched = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal)).chain([SIGCHLD]);
        let mut caught = SignalsInfo::<WithOrigin>::new(watched).context("cannot watch for signals")?;
        let (sender, events) = channel();
        let signals = Self { events, sender, stop_requested: Arc::default(), has_command: Arc::default() };
        let (sender, asked, has_command) =
            (signals.sender(), Arc::clone(&signals.stop_requested), Arc::clone(&signals.has_command));
        std::thread::spawn(move || {
            for origin in caught.forever() {
                let event = if origin.signal == SIGCHLD {
                    Event::Child
                } else {
                    if asked.swap(true, Ordering::SeqCst) && !has_command.load(Ordering::SeqCst) {
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

    /// Fails when an end is wanted.
    pub fn check(&self) -> Result<()> {
        if self.stop_requested.load(Ordering::SeqCst) { Err(interrupted()) } else { Ok(()) }
    }

    /// From here on signals are for the command.
    pub fn has_command(&self) {
        self.has_command.store(true, Ordering::SeqCst);
    }

    /// Waits for what happens next, so long at most.
    pub fn next(&self, at_most: Duration) -> Option<Event> {
        match self.events.recv_timeout(at_most) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            // It cannot be: one sender is here.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(at_most);
                None
            }
        }
    }

    /// Waits so long. Fails at once when an end is wanted.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            let left = time.saturating_sub(began.elapsed());
            if let Some(Event::Signal(_)) = self.next(left) {
                return Err(interrupted());
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    }
}

fn interrupted() -> anyhow::Error {
    Code::Interrupted.error("interrupted; nothing is held by this command")
}

/// Whether the signal was to be ignored when this program began. Where it cannot be known, it was not.
fn is_ignored(signal: c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    // The first signal has the lowest bit.
    ignored >> (signal - 1) & 1 == 1
}
