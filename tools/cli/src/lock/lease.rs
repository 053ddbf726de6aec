//! Renews and releases a lease; the store is open only during each of these calls.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use percolite::{Error, ErrorKind, LockEntry, LockLostReason, Store, Timestamp};

use super::signals::{EndReason, Event, Signals};
use super::turns::Running;
use super::{acquire, process_tree, render};
use crate::advice;
use crate::exit::Code;
use crate::open::{self, StoreDir, StoreOrBusy};

/// Bounds of the pause between two attempts to open a store that is open elsewhere. The pause of a
/// release is about the minimum; that of a renewal is a twentieth of the ttl, within these bounds.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(500);
/// How often the renewer looks whether another process has asked for a renewal.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// An acquired lease.
#[derive(Clone)]
pub struct Lease<'a> {
    pub dir: &'a StoreDir,
    pub name: &'a str,
    pub token: Timestamp,
    pub ttl: Duration,
}

/// The result of a release.
pub enum Released {
    Done,
    /// No grant of the lock has this token. Contains the current grants.
    NotHeld(Vec<LockEntry>),
    /// The store was open elsewhere until the timeout.
    Busy,
}

/// The result of a renewal.
enum Renewed {
    Done,
    /// The store is open elsewhere, so the state of the lease is unknown.
    Busy,
    /// The lease has expired, or was released. Contains a message.
    Lost(String),
}

impl Lease<'_> {
    /// Releases the lease durably. While the store is open elsewhere, the release is retried, for
    /// at most `wait`. If `signals` are given, a signal ends the retries.
    pub fn release(&self, signals: Option<&Signals>, wait: Duration) -> Result<Released> {
        let deadline = Instant::now().checked_add(wait);
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
            let left = deadline.map_or(RETRY_MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
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

    /// Renews the lease. `expires_at` is the earliest time at which its current term may expire.
    fn renew(&self, expires_at: Instant) -> Result<Renewed> {
        let store = match self.dir.try_open(Store::builder())? {
            StoreOrBusy::Store(store) => store,
            StoreOrBusy::Busy => return Ok(Renewed::Busy),
        };
        let renewed = match store.attach_lock(self.name, self.token) {
            Ok(guard) => {
                let renewed = guard.renew(self.ttl);
                // Dropping the guard would release the lock, so the guard is detached. Detaching
                // fails if the lock is lost; then the renewal has failed, too.
                let _ = guard.detach();
                renewed
            }
            Err(err) => Err(err),
        };
        let lost = match &renewed {
            Err(err) if is_loss(err) => Some(self.loss_message(&store, err, expires_at)),
            _ => None,
        };
        store.close()?;
        match (lost, renewed) {
            (Some(lost), _) => Ok(Renewed::Lost(lost)),
            (None, renewed) => Ok(renewed.map(|()| Renewed::Done)?),
        }
    }

    fn loss_message(&self, store: &Store, err: &Error, expires_at: Instant) -> String {
        // The store's error is the same for an expired lease and for an unknown token, so an
        // expired lease gets its own message here.
        let message = if Instant::now() >= expires_at {
            let Self { name, token, .. } = self;
            format!("lock {name:?} with token {token} is lost: it expired before it could be renewed")
        } else {
            advice::of_library(&err.to_string())
        };
        match store.lock_holders(self.name).unwrap_or_default().as_slice() {
            [] => message,
            others => format!("{message}; it is {}", render::holders(others)),
        }
    }
}

/// Whether the lease is lost. The reason `Closed` is no loss: a store that fails ends its guards,
/// but their leases remain.
fn is_loss(err: &Error) -> bool {
    matches!(err.kind(), ErrorKind::LockLost(lost) if lost.reason != LockLostReason::Closed)
}

/// The thread that renews a lease while a command runs.
pub struct LeaseRenewer {
    /// Dropping this sender ends the thread.
    running: Sender<()>,
    thread: JoinHandle<Instant>,
}

/// A [`Lease`] that owns its fields, so that it can be moved to a thread.
struct OwnedLease {
    dir: StoreDir,
    name: String,
    token: Timestamp,
    ttl: Duration,
}

impl LeaseRenewer {
    /// Starts the thread. The lease was granted after `requested_at`, so it does not expire before
    /// `requested_at` plus its ttl. Other processes ask through `asked` whether the lease is held.
    pub fn start(lease: &Lease<'_>, requested_at: Instant, mut asked: Running, events: Sender<Event>) -> Self {
        let (running, stop) = channel();
        let dir = StoreDir { path: lease.dir.path.clone() };
        let owned = OwnedLease { dir, name: lease.name.into(), token: lease.token, ttl: lease.ttl };
        let thread = std::thread::spawn(move || {
            let lease = Lease { dir: &owned.dir, name: &owned.name, token: owned.token, ttl: owned.ttl };
            renew_until_stopped(&lease, requested_at, &stop, &mut asked, &events)
        });
        Self { running, thread }
    }

    /// Ends the thread, and returns a time before which the lease does not expire.
    pub fn stop(self) -> Instant {
        drop(self.running);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Renews the lease each time half of its ttl has passed, until `stop` is disconnected or the lease
/// is lost. A renewal that fails or finds the store open elsewhere is retried.
///
/// The command is ended before the lease can expire, except if the command itself has the store
/// open: then no other process can be granted the lock, and only the store shows whether the lease
/// is lost.
fn renew_until_stopped(
    lease: &Lease<'_>,
    requested_at: Instant,
    stop: &Receiver<()>,
    asked: &mut Running,
    events: &Sender<Event>,
) -> Instant {
    let (mut expires_at, mut due) = (requested_at + lease.ttl, requested_at + lease.ttl / 2);
    let (mut is_warned, mut late_attempts) = (false, 0);
    loop {
        let pause = due.saturating_duration_since(Instant::now()).min(LOOK_INTERVAL);
        if stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return expires_at;
        }
        let started = Instant::now();
        if started < due && !asked.was_asked_to_look() {
            continue;
        }
        due = started + (lease.ttl / 20).clamp(RETRY_MIN, RETRY_MAX).mul_f64(acquire::jitter());
        let cause = match lease.renew(expires_at) {
            Ok(Renewed::Done) => {
                (expires_at, due) = (started + lease.ttl, started + lease.ttl / 2);
                late_attempts = 0;
                continue;
            }
            Ok(Renewed::Lost(message)) => {
                // Sending fails if the command has ended meanwhile and the receiver is dropped.
                let _ = events.send(Event::End(EndReason { message, by: None, is_lost: true }));
                return expires_at;
            }
            Ok(Renewed::Busy) => "the store is open in another process".to_owned(),
            Err(err) => {
                let cause = crate::format_chain(&err);
                if !is_warned {
                    is_warned = true;
                    let dir = open::shell_quoted(&lease.dir.path);
                    eprintln!("warning: lock {:?} in {dir} cannot be renewed yet, retrying: {cause}", lease.name);
                }
                cause
            }
        };
        let is_late = Instant::now() + lease.ttl / 4 >= expires_at;
        if !is_late || process_tree::is_open_in_tree(&lease.dir.path.join("PERCOLITE")) {
            continue;
        }
        // At the first such attempt, the command may have closed the store since the attempt.
        late_attempts += 1;
        if late_attempts == 2 {
            let Lease { name, token, .. } = lease;
            let message = format!("lock {name:?} with token {token} could not be renewed before it expires: {cause}");
            let reason =
                EndReason { message, by: expires_at.checked_sub(lease.ttl / 10).or(Some(expires_at)), is_lost: false };
            let _ = events.send(Event::End(reason));
        }
    }
}
