//! A lease that was taken: renewing it and releasing it, each by opening the store for a moment.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use percolite::{Error, ErrorKind, LockEntry, LockLostReason, Store, Timestamp};

use super::signals::{Event, Signals};
use super::{acquire, render};
use crate::exit::Code;
use crate::open::{self, StoreDir, StoreOrBusy};

/// Between two tries to open a store that is open elsewhere; a short lease leaves less.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// See the [module](self).
#[derive(Clone)]
pub struct Lease<'a> {
    pub dir: &'a StoreDir,
    pub name: &'a str,
    pub token: Timestamp,
    pub ttl: Duration,
}

/// What releasing has come to.
pub enum Released {
    Done,
    /// No grant of the lock has this token. Those that there are:
    NotHeld(Vec<LockEntry>),
    /// The store was open elsewhere all the time.
    Busy,
}

/// What renewing has come to.
enum Renewed {
    Done,
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
            match self.dir.try_open(Store::builder())? {
                StoreOrBusy::Store(store) => {
                    let released = if store.release_lock(self.name, self.token)? {
                        Released::Done
                    } else {
                        Released::NotHeld(store.lock_holders(self.name)?)
                    };
                    store.close()?;
                    return Ok(released);
                }
                StoreOrBusy::Busy => {}
            }
            let left = end.map_or(RETRY_MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(Released::Busy);
            }
            let pause = left.min(RETRY_MIN.mul_f64(acquire::jitter()));
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
        let store = match self.dir.try_open(Store::builder())? {
            StoreOrBusy::Store(store) => store,
            StoreOrBusy::Busy => return Ok(Renewed::Busy),
        };
        let renewed = match store.attach_lock(self.name, self.token) {
            Ok(guard) => {
                let renewed = guard.renew(self.ttl);
                // In any case: a guard that is dropped releases the lock. One that is lost is not kept, and that was reported already.
                let _ = guard.detach();
                renewed
            }
            Err(err) => Err(err),
        };
        let lost = match &renewed {
            Err(err) if is_loss(err) => Some(self.loss_message(&store, err, ends)),
            _ => None,
        };
        store.close()?;
        match (lost, renewed) {
            (Some(lost), _) => Ok(Renewed::Lost(lost)),
            (None, renewed) => Ok(renewed.map(|()| Renewed::Done)?),
        }
    }

    fn loss_message(&self, store: &Store, err: &Error, ends: Instant) -> String {
        // Of a lease that is over the store answers as of one that never was.
        let message = if Instant::now() >= ends {
            let Self { name, token, .. } = self;
            format!("lock {name:?} with token {token} is lost: its time was over before it could be renewed")
        } else {
            err.to_string()
        };
        match store.lock_holders(self.name).unwrap_or_default().as_slice() {
            [] => message,
            others => format!("{message}; it is {}", render::holders(others)),
        }
    }
}

/// A store that fails takes its guards with it, but not their leases.
fn is_loss(err: &Error) -> bool {
    matches!(err.kind(), ErrorKind::LockLost(lost) if lost.reason != LockLostReason::Closed)
}

/// The thread that renews a lease while a command runs.
pub struct LeaseRenewer {
    /// Dropped, it ends the thread.
    running: Sender<()>,
    thread: JoinHandle<Instant>,
}

/// A lease of its own, for a thread.
struct OwnedLease {
    dir: StoreDir,
    name: String,
    token: Timestamp,
    time: Duration,
}

impl LeaseRenewer {
    /// The lease was granted after this moment.
    pub fn start(lease: &Lease<'_>, granted: Instant, events: Sender<Event>) -> Self {
        let (running, stop) = channel();
        let dir = StoreDir { path: lease.dir.path.clone() };
        let kept = OwnedLease { dir, name: lease.name.into(), token: lease.token, time: lease.ttl };
        let thread = std::thread::spawn(move || {
            let lease = Lease { dir: &kept.dir, name: &kept.name, token: kept.token, ttl: kept.time };
            renew_until_stopped(&lease, granted, &stop, &events)
        });
        Self { running, thread }
    }

    /// Ends it; the answer is until when the lease lasts at least, as it was last renewed.
    pub fn stop(self) -> Instant {
        drop(self.running);
        self.thread.join().unwrap_or_else(|err| std::panic::resume_unwind(err))
    }
}

/// Renews the lease each time that half of it is over, until `stop` says so or the lease is lost. As long as the store is open elsewhere, or
/// renewing fails, it is tried again, also when its time is over: it is not known then whether it is lost.
fn renew_until_stopped(lease: &Lease<'_>, granted: Instant, stop: &Receiver<()>, events: &Sender<Event>) -> Instant {
    let (mut ends, mut due) = (granted + lease.ttl, granted + lease.ttl / 2);
    let mut warned = false;
    loop {
        let pause = due.saturating_duration_since(Instant::now());
        if stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return ends;
        }
        let began = Instant::now();
        let again = (lease.ttl / 20).clamp(RETRY_MIN, RETRY_MAX).mul_f64(acquire::jitter());
        due = began + again;
        match lease.renew(ends) {
            Ok(Renewed::Done) => (ends, due) = (began + lease.ttl, began + lease.ttl / 2),
            Ok(Renewed::Busy) => {}
            Ok(Renewed::Lost(err)) => {
                // The receiver is gone when the command has ended meanwhile.
                let _ = events.send(Event::Lost(err));
                return ends;
            }
            Err(err) if !warned => {
                warned = true;
                let dir = open::shell_quoted(&lease.dir.path);
                eprintln!("warning: lock {:?} in {dir} cannot be renewed, which is tried again: {err:#}", lease.name);
            }
            Err(_) => {}
        }
    }
}
