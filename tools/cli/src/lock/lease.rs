//! A lease that was taken: renewing it and releasing it, each by opening the store for a moment.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use percolite::{Error, ErrorKind, LockEntry, LockLostReason, Store, Timestamp};

use super::signals::{Event, Signals};
use super::{shown, waiting};
use crate::exit::Code;
use crate::open::{self, Folder, Opened};

/// Between two tries to open a store that is open elsewhere; a short lease leaves less.
const TRY_EVERY_MIN: Duration = Duration::from_millis(20);
const TRY_EVERY_MAX: Duration = Duration::from_millis(500);

/// See the [module](self).
#[derive(Clone)]
pub struct Lease<'a> {
    pub folder: &'a Folder,
    pub name: &'a str,
    pub token: Timestamp,
    pub time: Duration,
}

/// What releasing has come to.
pub enum Released {
    Yes,
    /// No grant of the lock has this token. Those that there are:
    NotHeld(Vec<LockEntry>),
    /// The store was open elsewhere all the time.
    Busy,
}

/// What renewing has come to.
enum Renewed {
    Yes,
    /// The store is open elsewhere, which says nothing of the lease.
    Busy,
    /// It is over, or another's.
    Lost(String),
}

impl Lease<'_> {
    /// Releases it, durably, if the store can be opened within the time, and before a signal comes where there are some to be heeded.
    pub fn release(&self, signals: Option<&Signals>, wait: Duration) -> Result<Released> {
        let end = Instant::now().checked_add(wait);
        loop {
            match self.folder.write_unless_busy(Store::builder())? {
                Opened::Store(store) => {
                    let released = if store.release_lock(self.name, self.token)? {
                        Released::Yes
                    } else {
                        Released::NotHeld(store.lock_holders(self.name)?)
                    };
                    store.close()?;
                    return Ok(released);
                }
                Opened::Busy => {}
            }
            let left = end.map_or(TRY_EVERY_MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(Released::Busy);
            }
            let pause = left.min(TRY_EVERY_MIN.mul_f64(waiting::spread()));
            match signals {
                Some(signals) => signals.sleep(pause).map_err(|_| {
                    Code::Interrupted.error(format!("interrupted; lock {:?} was not released", self.name))
                })?,
                None => std::thread::sleep(pause),
            }
        }
    }

    /// Renews a lease that lasts at least until `ends`.
    fn renew(&self, ends: Instant) -> Result<Renewed> {
        let store = match self.folder.write_unless_busy(Store::builder())? {
            Opened::Store(store) => store,
            Opened::Busy => return Ok(Renewed::Busy),
        };
        let renewed = match store.attach_lock(self.name, self.token) {
            Ok(guard) => {
                let renewed = guard.renew(self.time);
                // In any case: a guard that is dropped releases the lock. One that is lost is not kept, and that was reported already.
                let _ = guard.detach();
                renewed
            }
            Err(why) => Err(why),
        };
        let lost = match &renewed {
            Err(why) if is_loss(why) => Some(self.loss_message(&store, why, ends)),
            _ => None,
        };
        store.close()?;
        match (lost, renewed) {
            (Some(lost), _) => Ok(Renewed::Lost(lost)),
            (None, renewed) => Ok(renewed.map(|()| Renewed::Yes)?),
        }
    }

    fn loss_message(&self, store: &Store, why: &Error, ends: Instant) -> String {
        // Of a lease that is over the store answers as of one that never was.
        let message = if Instant::now() >= ends {
            let Self { name, token, .. } = self;
            format!("lock {name:?} with token {token} is lost: its time was over before it could be renewed")
        } else {
            why.to_string()
        };
        match store.lock_holders(self.name).unwrap_or_default().as_slice() {
            [] => message,
            others => format!("{message}; it is {}", shown::holders(others)),
        }
    }
}

/// A store that fails takes its guards with it, but not their leases.
fn is_loss(why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::LockLost(lost) if lost.reason != LockLostReason::Closed)
}

/// The thread that renews a lease while a command runs.
pub struct Keeper {
    /// Dropped, it ends the thread.
    running: Sender<()>,
    thread: JoinHandle<Instant>,
}

/// A lease of its own, for a thread.
struct Kept {
    folder: Folder,
    name: String,
    token: Timestamp,
    time: Duration,
}

impl Keeper {
    /// The lease was granted after this moment.
    pub fn start(lease: &Lease<'_>, granted: Instant, events: Sender<Event>) -> Self {
        let (running, stop) = channel();
        let folder = Folder { folder: lease.folder.folder.clone() };
        let kept = Kept { folder, name: lease.name.into(), token: lease.token, time: lease.time };
        let thread = std::thread::spawn(move || {
            let lease = Lease { folder: &kept.folder, name: &kept.name, token: kept.token, time: kept.time };
            keep(&lease, granted, &stop, &events)
        });
        Self { running, thread }
    }

    /// Ends it; the answer is until when the lease lasts at least, as it was last renewed.
    pub fn stop(self) -> Instant {
        drop(self.running);
        self.thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why))
    }
}

/// Renews the lease each time that half of it is over, until `stop` says so or the lease is lost. As long as the store is open elsewhere, or
/// renewing fails, it is tried again, also when its time is over: it is not known then whether it is lost.
fn keep(lease: &Lease<'_>, granted: Instant, stop: &Receiver<()>, events: &Sender<Event>) -> Instant {
    let (mut ends, mut due) = (granted + lease.time, granted + lease.time / 2);
    let mut warned = false;
    loop {
        let pause = due.saturating_duration_since(Instant::now());
        if stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return ends;
        }
        let began = Instant::now();
        let again = (lease.time / 20).clamp(TRY_EVERY_MIN, TRY_EVERY_MAX).mul_f64(waiting::spread());
        due = began + again;
        match lease.renew(ends) {
            Ok(Renewed::Yes) => (ends, due) = (began + lease.time, began + lease.time / 2),
            Ok(Renewed::Busy) => {}
            Ok(Renewed::Lost(why)) => {
                // The receiver is gone when the command has ended meanwhile.
                let _ = events.send(Event::Lost(why));
                return ends;
            }
            Err(why) if !warned => {
                warned = true;
                let folder = open::quoted(&lease.folder.folder);
                eprintln!(
                    "warning: lock {:?} in {folder} cannot be renewed, which is tried again: {why:#}",
                    lease.name
                );
            }
            Err(_) => {}
        }
    }
}
