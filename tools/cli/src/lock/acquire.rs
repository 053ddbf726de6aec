//! Acquires a lock that another process may hold.
//!
//! A waiting process must not keep the store open. Otherwise the holder of the lock could not renew
//! or release its lease, and a command that runs under the lock could not use the store. So:
//!
//! 1. The process waits for its [turn](super::turns), without looking into the store. So of all
//!    that wait for a lock, only the first one opens the store.
//! 2. It waits until nothing runs under the lock. A `lock run` that ends lets it continue within
//!    [`POLL_INTERVAL`].
//! 3. It opens the store and tries to acquire the lock. If the lock is held, it reads how much of
//!    the lease is left, and closes the store.
//! 4. It waits until the lease expires or the store has changed. Each opening for writing creates a
//!    WAL segment, so the names of the segments show that the store may have changed. Then it opens
//!    the store read-only, which creates none. If the lock is free, it continues with step 3.
//!
//! If the lock is found to be free while a command still runs under it, the lease was released by
//! its token, or has expired. The process then asks the `lock run` of that command to look: it ends
//! the command. If it was killed, this process ends the command itself ([`leftovers`]).
//!
//! [`leftovers`]: super::leftovers

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use percolite::{ErrorKind, LockEntry, LockGuard, LockMode, LockOptions, LockWaitPolicy, Store};
use rustix::process::Pid;

use super::leftovers::Leftovers;
use super::render;
use super::signals::{Event, Signals};
use super::turns::{Running, Turn, TurnFiles};
use crate::duration;
use crate::exit::Code;
use crate::open::{self, StoreDir, StoreOrBusy};
use crate::process;

/// The time between two checks of the segments, and between two attempts to open a busy store. One
/// process for each lock makes them.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Bounds of the time between two checks of the store, which doubles as long as the store changes
/// and the lock does not: while the store is read, no other process can open it for writing.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(20);
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// A check this long after the last one is not one of a series.
const CHECK_PAUSE: Duration = Duration::from_secs(2);
/// The store is read after this time even if the segments have not changed, because some file
/// systems show changes late.
const POLL_MAX: Duration = Duration::from_secs(10);
/// How long a process whose wait has ended tries to read who holds the lock.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// In the error of a lock that is free, while something runs under it.
pub const STILL_RUNS: &str = "still runs";

/// The lock to acquire, and how.
pub struct AcquireRequest<'a> {
    pub dir: &'a StoreDir,
    pub name: &'a str,
    pub shared: bool,
    pub wait: Duration,
    pub ttl: Duration,
    /// The name of this process in the messages of other processes that find the lock held.
    pub application_name: &'static str,
    pub reason: Option<String>,
}

/// An acquired lock. The store is still open, and the caller must close it soon, so that other
/// processes can open it.
pub struct Acquired {
    pub store: Store,
    pub guard: LockGuard,
    /// A time before the grant: the lease does not expire before `requested_at` plus its ttl.
    pub requested_at: Instant,
    /// Keeps other commands from running under the lock.
    pub running: Running,
}

/// The result of a check, or of an attempt to acquire the lock.
enum Attempt {
    Granted(Grant),
    Free,
    Held(HeldByOthers),
    Busy,
}

/// A lock that was granted, in the open store.
struct Grant {
    store: Store,
    guard: LockGuard,
    requested_at: Instant,
}

/// A lock that others hold.
struct HeldByOthers {
    message: String,
    /// When the last of the blocking leases expires, if none is renewed or released earlier.
    until: Instant,
}

impl AcquireRequest<'_> {
    /// Acquires the lock, or fails after the timeout `wait` or on a signal.
    pub fn acquire(&self, signals: &Signals) -> Result<Acquired> {
        self.dir.check_is_store()?;
        let deadline = Instant::now().checked_add(self.wait);
        let mut turn = self.wait_for_turn(deadline, signals)?;
        let mut segments = segment_names(&self.dir.path);
        let mut pace = CheckPace { checked_at: Instant::now(), interval: Duration::ZERO };
        let mut next_check = pace.checked_at + CHECK_INTERVAL_MAX;
        let (mut is_first_attempt, mut last_held) = (true, None);
        let mut leftovers = Leftovers::of(self.turn_files(), self.shared);
        loop {
            signals.check()?;
            let now = Instant::now();
            let is_timed_out = deadline.is_some_and(|deadline| now >= deadline);
            let mut attempt = None;
            let is_running = turn.try_run(self.shared)? && leftovers.are_gone();
            if is_running && is_first_attempt {
                is_first_attempt = false;
                attempt = Some(self.try_once()?);
            } else if now >= next_check
                || is_timed_out
                || pace.may_check(now, is_running) && segments != segment_names(&self.dir.path)
            {
                // The names are read before the check, so that a change during the check ends the
                // next wait.
                segments = segment_names(&self.dir.path);
                pace.checked(now);
                attempt = Some(match self.check_free()? {
                    Attempt::Free if is_running => self.try_once()?,
                    checked => checked,
                });
            }
            match attempt {
                Some(Attempt::Granted(Grant { store, guard, requested_at })) => {
                    return Ok(Acquired { store, guard, requested_at, running: turn.into_running() });
                }
                Some(Attempt::Held(held)) => {
                    if is_timed_out {
                        return Err(self.timeout_error(&held.message));
                    }
                    leftovers.lock_is_held();
                    next_check = held.until.min(Instant::now() + POLL_MAX);
                    last_held = Some(held);
                }
                Some(Attempt::Free) => {
                    if is_timed_out {
                        return Err(self.timeout_error(&self.still_running(&leftovers)));
                    }
                    turn.ask_to_look();
                    leftovers.lock_is_free(self.name);
                    next_check = Instant::now() + CHECK_INTERVAL_MAX;
                }
                Some(Attempt::Busy) => {
                    if is_timed_out {
                        // The store may be open for a moment only. If the lease that this process
                        // saw last has not expired yet, the error is that the lock is held.
                        let held = last_held.filter(|held: &HeldByOthers| held.until > Instant::now());
                        return Err(held.map_or_else(|| self.last_look(), |held| self.timeout_error(&held.message)));
                    }
                    next_check = Instant::now() + POLL_INTERVAL.mul_f64(jitter());
                }
                None => {}
            }
            signals.sleep(limit(deadline, POLL_INTERVAL))?;
        }
    }

    /// Waits until no other process is ahead of this one.
    fn wait_for_turn(&self, deadline: Option<Instant>, signals: &Signals) -> Result<Turn> {
        let files = self.turn_files();
        if let Some(turn) = files.try_turn()? {
            return Ok(turn);
        }
        if self.wait.is_zero() {
            return Err(self.last_look());
        }
        files.send_turn(signals.sender());
        loop {
            let left = limit(deadline, POLL_MAX);
            match signals.next(left) {
                Some(Event::Turn(turn)) => return turn,
                _ => signals.check()?,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(self.last_look());
            }
        }
    }

    /// The error of a wait in which this process could not see who holds the lock.
    fn last_look(&self) -> anyhow::Error {
        let since = Instant::now();
        loop {
            match self.check_free() {
                Ok(Attempt::Held(held)) => return self.timeout_error(&held.message),
                Ok(Attempt::Busy) if since.elapsed() < LAST_LOOK => std::thread::sleep(POLL_INTERVAL.mul_f64(jitter())),
                Ok(Attempt::Busy) => return self.dir.busy_error(self.wait),
                Ok(_) => {
                    let message = format!("lock {:?} is free only now, or other commands wait for it", self.name);
                    return self.timeout_error(&message);
                }
                Err(err) => return err,
            }
        }
    }

    fn still_running(&self, leftovers: &Leftovers) -> String {
        let (name, running) = (self.name, leftovers.running());
        let running =
            if running.is_empty() { process::that_have_open(&self.turn_files().running_path()) } else { running };
        let what = if running.is_empty() {
            format!("fuser -v {} shows it", open::shell_quoted(&self.turn_files().running_path()))
        } else {
            let pids = |pids: &[Pid]| pids.iter().map(|pid| pid.as_raw_pid().to_string()).collect::<Vec<_>>().join(" ");
            let stopped: Vec<Pid> = running.iter().copied().filter(|pid| process::is_stopped(*pid)).collect();
            let go_on = if stopped.is_empty() { String::new() } else { format!("kill -CONT {}, or ", pids(&stopped)) };
            format!("{}; to end it: {go_on}kill {}", process::names(&running), pids(&running))
        };
        format!("what an earlier `lock run` has started under lock {name:?} {STILL_RUNS}: {what}")
    }

    pub fn turn_files(&self) -> TurnFiles {
        TurnFiles::of(&self.dir.path, self.name)
    }

    /// Opens the store for writing and tries to acquire the lock, without waiting.
    fn try_once(&self) -> Result<Attempt> {
        let store = match self.dir.try_open(Store::builder().application_name(self.application_name))? {
            StoreOrBusy::Store(store) => store,
            StoreOrBusy::Busy => return Ok(Attempt::Busy),
        };
        let options = if self.shared { LockOptions::shared() } else { LockOptions::exclusive() };
        let options = self.reason.iter().fold(options, LockOptions::reason);
        let requested_at = Instant::now();
        match store.lock_with(self.name, options.wait(LockWaitPolicy::NoWait).lease(self.ttl).auto_renew(false)) {
            Ok(guard) => Ok(Attempt::Granted(Grant { store: open::warn_data_loss(store), guard, requested_at })),
            Err(err) => match err.kind() {
                ErrorKind::LockNotAvailable(held) => {
                    let held = HeldByOthers::by(self.name, &held.holders);
                    store.close()?;
                    Ok(Attempt::Held(held))
                }
                _ => Err(err.into()),
            },
        }
    }

    /// Checks whether the lock is free, in a read-only store.
    fn check_free(&self) -> Result<Attempt> {
        let store = match self.dir.try_open_read_only()? {
            StoreOrBusy::Store(store) => store,
            StoreOrBusy::Busy => return Ok(Attempt::Busy),
        };
        let mut holders = store.lock_holders(self.name)?;
        holders.retain(|holder| !(self.shared && holder.mode == LockMode::Shared));
        Ok(if holders.is_empty() { Attempt::Free } else { Attempt::Held(HeldByOthers::by(self.name, &holders)) })
    }

    fn timeout_error(&self, message: &str) -> anyhow::Error {
        Code::LockHeld.error(format!("{message}; waited {}", duration::human_duration(self.wait)))
    }
}

/// Keeps checks of a store that changes all the time apart.
struct CheckPace {
    checked_at: Instant,
    interval: Duration,
}

impl CheckPace {
    /// While a command runs under the lock, its end is seen without the store.
    fn may_check(&self, now: Instant, is_free_to_run: bool) -> bool {
        let interval = if is_free_to_run { self.interval } else { CHECK_INTERVAL_MAX };
        now >= self.checked_at + interval
    }

    fn checked(&mut self, now: Instant) {
        let is_in_series = now < self.checked_at + CHECK_PAUSE;
        let interval = if is_in_series { 2 * self.interval } else { CHECK_INTERVAL_MIN };
        (self.checked_at, self.interval) = (now, interval.clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX));
    }
}

impl HeldByOthers {
    fn by(name: &str, holders: &[LockEntry]) -> Self {
        let left = holders.iter().filter_map(|holder| holder.lease_remaining).max().unwrap_or(POLL_MAX);
        Self { message: format!("lock {name:?} is {}", render::holders(holders)), until: Instant::now() + left }
    }
}

/// `time`, or the time until the deadline if that is shorter.
fn limit(deadline: Option<Instant>, time: Duration) -> Duration {
    deadline.map_or(time, |deadline| deadline.saturating_duration_since(Instant::now()).min(time))
}

/// A random factor for pauses, so that processes that started to wait together do not poll
/// together.
pub fn jitter() -> f64 {
    rand::random_range(0.5..1.5)
}

/// The names of the WAL segments; none if they cannot be read, because opening the store reports
/// that error.
fn segment_names(dir: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(dir.join("wal")).into_iter().flatten();
    let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    names
}
