//! Leases: locks that outlive their process, for a time.

mod closing;
#[cfg(feature = "rocks")]
mod copies;
mod damage;
#[cfg(feature = "rocks")]
mod kills;
mod names;
mod renewal;
mod restarts;
mod time;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use percolite::engine::Engine;
use percolite::engine::sim::SimStorage;
use percolite::{ErrorKind, KeyspaceId, LockOptions, LostReason, Result, RowKey, Store};

use crate::support::clocks::Clocks;

fn lease(time: Duration) -> LockOptions {
    LockOptions::exclusive().lease(time)
}

fn open(memory: &SimStorage, clocks: &Arc<Clocks>) -> Store {
    clocks.builder().open_sim(memory).unwrap()
}

/// What is left of the lease of the only holder.
fn left(store: &Store, name: &str) -> Option<Duration> {
    let holders = store.lock_holders(name).unwrap();
    assert!(holders.len() < 2, "{holders:?}");
    holders.first()?.lease_left
}

#[track_caller]
fn assert_about(found: Option<Duration>, wanted: Duration) {
    let found = found.expect("nobody holds it");
    assert!(found.abs_diff(wanted) <= Duration::from_secs(1), "{found:?} instead of {wanted:?}");
}

#[track_caller]
fn assert_lost<T>(answer: Result<T>, wanted: LostReason) {
    let why = answer.err().expect("it is lost");
    let ErrorKind::LockLost(lost) = why.kind() else { panic!("{why}") };
    assert_eq!(lost.reason, wanted, "{why}");
}

fn row_of(name: &str) -> RowKey {
    RowKey::new(KeyspaceId(0), format!("lock/{name}").as_bytes())
}

/// Whether there is a row of leases of the name.
fn has_row(engine: &dyn Engine, name: &str) -> bool {
    let newest = engine.view().unwrap().write(&row_of(name)).unwrap();
    newest.is_some_and(|newest| newest.value.is_some())
}

/// A thread of this name, whose answer can be waited for. It is not joined, so that a test of something broken ends.
fn begin<T: Send + 'static>(thread: &str, work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    let work = move || drop(sender.send(work()));
    std::thread::Builder::new().name(thread.into()).spawn(work).unwrap();
    receiver
}

#[track_caller]
fn answer<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(Duration::from_secs(20)).expect("no answer")
}

/// That nothing comes of it while the clocks stand still.
#[track_caller]
fn assert_waits<T>(receiver: &Receiver<T>) {
    assert!(receiver.recv_timeout(Duration::from_millis(60)).is_err(), "it did not wait");
}
