//! Acquires a lock that another process may hold.
//!
//! A waiting process must not keep the store open. Otherwise the holder of the lock could not renew
//! or release its lease, and a command that runs under the lock could not use the store. So the
//! waiting process polls:
//!
//! 1. It opens the store and tries to acquire the lock. If the lock is held, it reads how much of
//!    the lease is left, and closes the store.
//! 2. It sleeps until the lease expires or the store has changed. Each opening for writing creates
//!    a WAL segment, so the names of the segments show that the store may have changed. The process
//!    watches these names without opening the store.
//! 3. It opens the store read-only, which several waiters can do at the same time. If the lock is
//!    free, it continues with step 1, else with step 2.
//!
//! Waiting processes are in no queue: the first that tries after the end of the lease acquires the
//! lock.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use percolite::{ErrorKind, LockEntry, LockGuard, LockMode, LockOptions, LockWaitPolicy, Store};

use super::render;
use super::signals::Signals;
use crate::duration;
use crate::exit::Code;
use crate::open::{self, StoreDir, StoreOrBusy};

/// The time between two checks of the segments, and between two attempts to open a busy store.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// After a change the segments must stay the same for this time before the store is opened, because
/// the process that has just closed the store may open it again soon.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// The store is read after this time even if the segments have not changed, because some file
/// systems show changes late.
const POLL_MAX: Duration = Duration::from_secs(10);

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
}

/// The result of a check, or of an attempt to acquire the lock.
enum Attempt {
    Granted(Acquired),
    Free,
    Held(HeldByOthers),
    Busy,
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
        let deadline = Instant::now().checked_add(self.wait);
        let mut segments = segment_names(&self.dir.path);
        let mut attempt = self.try_once()?;
        let mut last_held = None;
        loop {
            signals.check()?;
            let is_timed_out = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            match attempt {
                Attempt::Granted(acquired) => return Ok(acquired),
                Attempt::Held(held) if is_timed_out => return Err(self.timeout_error(&held.message)),
                Attempt::Busy if is_timed_out => {
                    // The store may be busy only because another waiter is polling. If the lease
                    // that this process saw last has not expired yet, the error is that the lock is
                    // held, not that the store is busy.
                    let held = last_held.filter(|held: &HeldByOthers| held.until > Instant::now());
                    return Err(
                        held.map_or_else(|| self.dir.busy_error(self.wait), |held| self.timeout_error(&held.message))
                    );
                }
                Attempt::Free | Attempt::Busy => signals.sleep(limit(deadline, POLL_INTERVAL.mul_f64(jitter())))?,
                Attempt::Held(held) => {
                    let left = held.until.saturating_duration_since(Instant::now()).min(POLL_MAX);
                    wait_for_change(&self.dir.path, segments, limit(deadline, left), signals)?;
                    last_held = Some(held);
                }
            }
            // The names are read before the check, so that a change during the check ends the next
            // wait.
            segments = segment_names(&self.dir.path);
            attempt = match self.check_free()? {
                Attempt::Free => self.try_once()?,
                other => other,
            };
        }
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
            Ok(guard) => Ok(Attempt::Granted(Acquired { store: open::warn_data_loss(store), guard, requested_at })),
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

/// Waits until the segments have changed and have then stayed the same for about [`DEBOUNCE`];
/// waits for `at_most` at the longest.
fn wait_for_change(dir: &Path, before: Vec<OsString>, at_most: Duration, signals: &Signals) -> Result<()> {
    let (started, mut last, mut changed_at) = (Instant::now(), before, None);
    loop {
        let left = at_most.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        signals.sleep(POLL_INTERVAL.min(left))?;
        let now = segment_names(dir);
        if now != last {
            (last, changed_at) = (now, Some(Instant::now()));
        } else if changed_at.is_some_and(|at| at.elapsed() >= DEBOUNCE.mul_f64(jitter())) {
            return Ok(());
        }
    }
}

/// The names of the WAL segments; none if they cannot be read, because opening the store reports
/// that error.
fn segment_names(dir: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(dir.join("wal")).into_iter().flatten();
    let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    names
}
