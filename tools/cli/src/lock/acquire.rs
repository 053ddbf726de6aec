//! Waiting for a lock that another process may hold.
//!
//! A store that is kept open while waiting keeps the holder from renewing its lease and from releasing it, and the command that runs
//! under it from its rows. So a process that waits has the store closed nearly all the time. It tries once. Where the lock
//! is held it sees how much of the lease is left, closes the store, and sleeps until that is over, or something has changed. Only a process that
//! has opened the store for writing changes anything, and then the log has a new segment: the names in its directory can be read without
//! opening anything. Only then does it look again, read-only, beside others that do the same; and only where the lock is free does
//! it open the store for writing and try again.
//!
//! Processes that wait so are in no queue: the first that tries after the end has the lock.

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

/// Between two looks at the names of the log, and two tries to open a store that is open elsewhere.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// So long nothing more has changed before the store is opened: the process that has just closed it may be about to open it again.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Whatever the names say: some file systems show changes late.
const POLL_MAX: Duration = Duration::from_secs(10);

/// A lock that is to be taken.
pub struct AcquireRequest<'a> {
    pub dir: &'a StoreDir,
    pub name: &'a str,
    pub shared: bool,
    pub wait: Duration,
    pub ttl: Duration,
    /// What this process is called.
    pub application_name: &'static str,
    pub reason: Option<String>,
}

/// A lock that was taken. The store is open, for a moment.
pub struct Acquired {
    pub store: Store,
    pub guard: LockGuard,
    /// The time of the lease began after this, before its row was written.
    pub requested_at: Instant,
}

/// What a try or a look has come to.
enum Attempt {
    Granted(Acquired),
    Free,
    Held(HeldByOthers),
    Busy,
}

/// A lock in other hands.
struct HeldByOthers {
    message: String,
    /// When all leases that are in the way are over, unless they are renewed or released before.
    until: Instant,
}

impl AcquireRequest<'_> {
    /// Takes it, within the time.
    pub fn acquire(&self, signals: &Signals) -> Result<Acquired> {
        let end = Instant::now().checked_add(self.wait);
        let mut names = log_files(&self.dir.path);
        let mut found = self.try_once()?;
        let mut last_held = None;
        loop {
            signals.check()?;
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            match found {
                Attempt::Granted(taken) => return Ok(taken),
                Attempt::Held(held) if is_over => return Err(self.timeout_error(&held.message)),
                Attempt::Busy if is_over => {
                    // Others that wait open the store for moments. That is not what this has waited for.
                    let held = last_held.filter(|held: &HeldByOthers| held.until > Instant::now());
                    return Err(
                        held.map_or_else(|| self.dir.busy_error(self.wait), |held| self.timeout_error(&held.message))
                    );
                }
                Attempt::Free | Attempt::Busy => signals.sleep(time_left(end, POLL_INTERVAL.mul_f64(jitter())))?,
                Attempt::Held(held) => {
                    let left = held.until.saturating_duration_since(Instant::now()).min(POLL_MAX);
                    wait_for_change(&self.dir.path, names, time_left(end, left), signals)?;
                    last_held = Some(held);
                }
            }
            // Before the look: what changes during it is seen by the next.
            names = log_files(&self.dir.path);
            found = match self.check_free()? {
                Attempt::Free => self.try_once()?,
                found => found,
            };
        }
    }

    fn try_once(&self) -> Result<Attempt> {
        let store = match self.dir.try_open(Store::builder().application_name(self.application_name))? {
            StoreOrBusy::Store(store) => store,
            StoreOrBusy::Busy => return Ok(Attempt::Busy),
        };
        let options = if self.shared { LockOptions::shared() } else { LockOptions::exclusive() };
        let options = self.reason.iter().fold(options, LockOptions::reason);
        let since = Instant::now();
        match store.lock_with(self.name, options.wait(LockWaitPolicy::NoWait).lease(self.ttl).once()) {
            Ok(guard) => {
                Ok(Attempt::Granted(Acquired { store: open::warn_data_loss(store), guard, requested_at: since }))
            }
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

    /// Looks whether it is free. Nothing in the directory is changed.
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

/// So long, but not beyond the end.
fn time_left(end: Option<Instant>, time: Duration) -> Duration {
    end.map_or(time, |end| end.saturating_duration_since(Instant::now()).min(time))
}

/// Has processes that began to wait at the same time not look at the same time.
pub fn jitter() -> f64 {
    rand::random_range(0.5..1.5)
}

/// Waits until other names are in the directory, and stay; so long at most.
fn wait_for_change(dir: &Path, before: Vec<OsString>, at_most: Duration, signals: &Signals) -> Result<()> {
    let (began, mut seen, mut changed) = (Instant::now(), before, None);
    loop {
        let left = at_most.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        signals.sleep(POLL_INTERVAL.min(left))?;
        let now = log_files(dir);
        if now != seen {
            (seen, changed) = (now, Some(Instant::now()));
        } else if changed.is_some_and(|at| at.elapsed() >= DEBOUNCE.mul_f64(jitter())) {
            return Ok(());
        }
    }
}

/// The names of the store's log; none where they cannot be read, for which opening the store then returns the error.
fn log_files(dir: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(dir.join("log")).into_iter().flatten();
    let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    names
}
