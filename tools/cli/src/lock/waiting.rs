//! Waiting for a lock that another process may hold.
//!
//! A store that is kept open while waiting keeps the holder from renewing its lease and from releasing it, and the command that runs
//! under it from its rows. So a process that waits has the store closed nearly all the time. It tries once. Where the lock
//! is held it sees how much of the lease is left, closes the store, and sleeps until that is over, or something has changed. Only a process that
//! has opened the store for writing changes anything, and then the log has a new segment: the names in its folder can be read without
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

use super::shown;
use super::signals::Signals;
use crate::exit::Code;
use crate::history;
use crate::open::{self, Folder, Opened};

/// Between two looks at the names of the log, and two tries to open a store that is open elsewhere.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// So long nothing more has changed before the store is opened: the process that has just closed it may be about to open it again.
const SETTLED: Duration = Duration::from_millis(100);
/// Whatever the names say: some file systems show changes late.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(10);

/// A lock that is to be taken.
pub struct Wanted<'a> {
    pub folder: &'a Folder,
    pub name: &'a str,
    pub shared: bool,
    pub wait: Duration,
    pub time: Duration,
    /// What this process is called.
    pub by: &'static str,
    pub why: Option<String>,
}

/// A lock that was taken. The store is open, for a moment.
pub struct Taken {
    pub store: Store,
    pub guard: LockGuard,
    /// The time of the lease began after this, before its row was written.
    pub since: Instant,
}

/// What a try or a look has come to.
enum Found {
    Granted(Taken),
    Free,
    Held(Held),
    Busy,
}

/// A lock in other hands.
struct Held {
    message: String,
    /// When all leases that are in the way are over, unless they are renewed or released before.
    until: Instant,
}

impl Wanted<'_> {
    /// Takes it, within the time.
    pub fn take(&self, signals: &Signals) -> Result<Taken> {
        let end = Instant::now().checked_add(self.wait);
        let mut names = names_in(&self.folder.folder);
        let mut found = self.try_once()?;
        let mut last_held = None;
        loop {
            signals.check()?;
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            match found {
                Found::Granted(taken) => return Ok(taken),
                Found::Held(held) if is_over => return Err(self.too_late(&held.message)),
                Found::Busy if is_over => {
                    // Others that wait open the store for moments. That is not what this has waited for.
                    let held = last_held.filter(|held: &Held| held.until > Instant::now());
                    return Err(
                        held.map_or_else(|| self.folder.still_open(self.wait), |held| self.too_late(&held.message))
                    );
                }
                Found::Free | Found::Busy => signals.sleep(until(end, LOOK_EVERY.mul_f64(spread())))?,
                Found::Held(held) => {
                    let left = held.until.saturating_duration_since(Instant::now()).min(LOOK_AT_LEAST_EVERY);
                    wait_for_change(&self.folder.folder, names, until(end, left), signals)?;
                    last_held = Some(held);
                }
            }
            // Before the look: what changes during it is seen by the next.
            names = names_in(&self.folder.folder);
            found = match self.look()? {
                Found::Free => self.try_once()?,
                found => found,
            };
        }
    }

    fn try_once(&self) -> Result<Found> {
        let store = match self.folder.write_unless_busy(Store::builder().application_name(self.by))? {
            Opened::Store(store) => store,
            Opened::Busy => return Ok(Found::Busy),
        };
        let options = if self.shared { LockOptions::shared() } else { LockOptions::exclusive() };
        let options = self.why.iter().fold(options, LockOptions::reason);
        let since = Instant::now();
        match store.lock_with(self.name, options.wait(LockWaitPolicy::NoWait).lease(self.time).once()) {
            Ok(guard) => Ok(Found::Granted(Taken { store: open::telling_lost(store), guard, since })),
            Err(why) => match why.kind() {
                ErrorKind::LockNotAvailable(held) => {
                    let held = Held::by(self.name, &held.holders);
                    store.close()?;
                    Ok(Found::Held(held))
                }
                _ => Err(why.into()),
            },
        }
    }

    /// Looks whether it is free. Nothing in the folder is changed.
    fn look(&self) -> Result<Found> {
        let store = match self.folder.look_unless_busy()? {
            Opened::Store(store) => store,
            Opened::Busy => return Ok(Found::Busy),
        };
        let mut holders = store.lock_holders(self.name)?;
        holders.retain(|holder| !(self.shared && holder.mode == LockMode::Shared));
        Ok(if holders.is_empty() { Found::Free } else { Found::Held(Held::by(self.name, &holders)) })
    }

    fn too_late(&self, message: &str) -> anyhow::Error {
        Code::LockHeld.error(format!("{message}; waited {}", history::readable(self.wait)))
    }
}

impl Held {
    fn by(name: &str, holders: &[LockEntry]) -> Self {
        let left = holders.iter().filter_map(|holder| holder.lease_remaining).max().unwrap_or(LOOK_AT_LEAST_EVERY);
        Self { message: format!("lock {name:?} is {}", shown::holders(holders)), until: Instant::now() + left }
    }
}

/// So long, but not beyond the end.
fn until(end: Option<Instant>, time: Duration) -> Duration {
    end.map_or(time, |end| end.saturating_duration_since(Instant::now()).min(time))
}

/// Has processes that began to wait at the same time not look at the same time.
pub fn spread() -> f64 {
    rand::random_range(0.5..1.5)
}

/// Waits until other names are in the folder, and stay; so long at most.
fn wait_for_change(folder: &Path, before: Vec<OsString>, at_most: Duration, signals: &Signals) -> Result<()> {
    let (began, mut seen, mut changed) = (Instant::now(), before, None);
    loop {
        let left = at_most.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        signals.sleep(LOOK_EVERY.min(left))?;
        let now = names_in(folder);
        if now != seen {
            (seen, changed) = (now, Some(Instant::now()));
        } else if changed.is_some_and(|at| at.elapsed() >= SETTLED.mul_f64(spread())) {
            return Ok(());
        }
    }
}

/// The names of the store's log; none where they cannot be read, for which opening the store then returns the error.
fn names_in(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder.join("log")).into_iter().flatten();
    let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    names
}
