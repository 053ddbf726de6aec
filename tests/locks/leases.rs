//! Leases: locks with a time to live, which is kept in the store and outlives the process.

mod boots;
mod closing;
#[cfg(feature = "rocks")]
mod copies;
pub mod damage;
#[cfg(feature = "rocks")]
mod kills;
mod names;
mod releases;
mod renewal;
mod restarts;
mod time;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{ErrorKind, LockLostReason, LockOptions, Result, Store};

use crate::support::LIMIT;
use crate::support::clocks::Clocks;
use crate::support::rows::{has_row, row_of};

fn lease(time: Duration) -> LockOptions {
    LockOptions::exclusive().lease(time)
}

fn open(memory: &SimStorage, clocks: &Arc<Clocks>) -> Store {
    clocks.builder().open_in_memory(memory).unwrap()
}

/// The remaining lease time of the only holder.
fn left(store: &Store, name: &str) -> Option<Duration> {
    let holders = store.lock_holders(name).unwrap();
    assert!(holders.len() < 2, "{holders:?}");
    holders.first()?.lease_remaining
}

#[track_caller]
fn assert_about(found: Option<Duration>, wanted: Duration) {
    let found = found.expect("the lock has no holder");
    assert!(found.abs_diff(wanted) <= Duration::from_secs(1), "{found:?} instead of {wanted:?}");
}

#[track_caller]
fn assert_lost<T>(answer: Result<T>, wanted: LockLostReason) {
    let error = answer.err().expect("the lock is not lost");
    let ErrorKind::LockLost(lost) = error.kind() else { panic!("{error}") };
    assert_eq!(lost.reason, wanted, "{error}");
}

/// Starts a named thread whose result can be awaited. The thread is not joined, so that a failed
/// test does not wait for it.
fn begin<T: Send + 'static>(thread: &str, work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    let work = move || drop(sender.send(work()));
    std::thread::Builder::new().name(thread.into()).spawn(work).unwrap();
    receiver
}

#[track_caller]
fn answer<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(LIMIT).expect("no result in time")
}

/// The thread must wait for something that the test has yet to do: it must not return in 60 ms.
#[track_caller]
fn assert_waits<T>(receiver: &Receiver<T>) {
    assert!(receiver.recv_timeout(Duration::from_millis(60)).is_err(), "the thread did not wait");
}
