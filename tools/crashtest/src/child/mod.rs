//! The child process: one incarnation of a store.
//!
//! Clients run until their work is done or until the store fails. After a failure the child makes a
//! few more calls, all of which the store must refuse. When the clients have ended, the child
//! either closes the store, or keeps it open until the parent kills the process. A child that is to
//! close the store may kill itself at a configured crash point
//! ([`KillAt`](crate::self_kill::KillAt)).

mod clients;
mod config;
mod large_txns;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use percolite::engine::Engine;
use percolite::engine::directory::{DirectoryEngine, DirectoryOptions};
use percolite::env::Env;
use percolite::internal::coordinator::HistoryRetention;
use percolite::mutants::{Mutant, enable_mutant};
use percolite::{Durability, Error, Keyspace, Store, TxnOptions};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::client::{ROWS, SECOND, with_retention};
use crate::event_pipe::{Call, Event, PipeRecorder};
use crate::fast_env::FastEnv;
use crate::key_encoding::encode_key;
use crate::lock_workload::event::{EventRecorder as _, LockEvent};
use crate::lock_workload::final_checks::logical_time;
use crate::lock_workload::{LOCK_KEYSPACE, SharedLocks};
use crate::self_kill::SelfKill;
use crate::verify_store::{SMALL_STORE, open_engine};
use crate::workload;

use clients::run_clients;
pub use config::{ChildConfig, DurabilityMode, SYNC_EVERY};
pub use large_txns::{LARGE_COMMITS, check_large_commits, count_large_commits, workload_for};

/// Within this time after `strace` has logged a fault, the failed call has returned to the store.
const FAULT_LOG_DELAY: Duration = Duration::from_millis(100);

/// The entry point of the child process.
///
/// # Errors
/// An invalid configuration. What the store does is reported through the pipe.
pub fn run(config: &str) -> anyhow::Result<()> {
    let config: ChildConfig = serde_json::from_str(config)?;
    let workload =
        workload::named(&config.workload).with_context(|| format!("unknown workload {:?}", config.workload))?;
    // A child that hangs must not outlive its parent.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot request a signal at the parent's end")?;
    enable_mutant(config.mutant.as_deref().and_then(Mutant::from_name));
    let recorder = Arc::new(PipeRecorder::new(config.incarnation));
    let self_kill = (!config.stay_open).then(|| SelfKill::install(&config, &recorder)).transpose()?;
    match open_store(&config, &recorder) {
        Ok(opened) => {
            recorder.send(&Event::Ready);
            if run_clients(&config, workload, &opened, &recorder) || final_durable_commit(&config, &opened, &recorder) {
                calls_after_failure(&opened, &recorder);
            }
            if let Some(self_kill) = self_kill {
                close_store(opened, &recorder);
                recorder.send(&Event::Closed(self_kill.visits()));
                return Ok(());
            }
            recorder.send(&Event::Done);
            loop {
                std::thread::park();
            }
        }
        Err(error) => {
            recorder.send(&Event::Failed(call_result("open", Err(error))));
            recorder.send(&Event::Done);
        }
    }
    Ok(())
}

fn close_store(opened: OpenStore, recorder: &PipeRecorder) {
    let closed = opened.store.resolve_orphan_locks().and_then(|_| opened.store.close());
    if closed.is_err() {
        recorder.send(&Event::Failed(call_result("close", closed)));
    }
}

struct OpenStore {
    runtime: Arc<FastEnv>,
    lock_rows: Option<Keyspace>,
    shared_locks: SharedLocks,
    store: Store,
    engine: Arc<DirectoryEngine>,
    rows: Keyspace,
    second: Keyspace,
}

fn open_store(config: &ChildConfig, recorder: &PipeRecorder) -> Result<OpenStore, Error> {
    let setup = DirectoryOptions { write_buffer_bytes: config.write_buffer_bytes, ..SMALL_STORE };
    let engine = open_engine(&config.store_dir, setup)?;
    let runtime = Arc::new(FastEnv::new(config.clock_speed));
    let (before, wall) = (logical_time(config.incarnation, runtime.elapsed(), recorder.tick()), runtime.unix_millis());
    let keep =
        config.history_ms.map_or(HistoryRetention::Unchanged, |ms| HistoryRetention::For(Duration::from_millis(ms)));
    let store = with_retention(Store::builder(), keep)
        .commit_protocol(config.protocol())
        .durability(config.durability())
        .env(Arc::clone(&runtime) as Arc<dyn Env>)
        .conflict_set_rows(config.conflict_set_rows)
        .large_transaction_bytes(config.large_transaction_bytes)
        .background_resolve(config.background_resolve)
        .admission_limit(4)
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let (second, rows) = (store.keyspace(SECOND)?, store.keyspace(ROWS)?);
    let locked = if config.lock_clients > 0 { Some(store.keyspace(LOCK_KEYSPACE)?) } else { None };
    let now = logical_time(config.incarnation, runtime.elapsed(), recorder.tick());
    recorder.record(LockEvent::StoreOpened(before, now, (wall, runtime.unix_millis())));
    Ok(OpenStore { store, engine, rows, second, runtime, lock_rows: locked, shared_locks: SharedLocks::default() })
}

/// Requests a last durable commit, which must fail if a fault has stopped the store: after a fault
/// in the background, only a later call returns an error. Returns whether the commit failed.
fn final_durable_commit(config: &ChildConfig, opened: &OpenStore, recorder: &PipeRecorder) -> bool {
    let Some(strace_log) = &config.strace_log else { return false };
    let length = std::fs::read(strace_log).unwrap_or_default().len();
    // `strace` logs a fault before the failed call returns to the store. This waits for the return.
    std::thread::sleep(FAULT_LOG_DELAY);
    let options = TxnOptions::default().durability(Durability::Sync);
    let outcome = opened.store.transact_with(options, |txn| txn.put(&opened.second, encode_key("last"), ""));
    recorder.send(&Event::FaultLogLength(length));
    let has_failed = outcome.is_err();
    if has_failed {
        recorder.send(&Event::Failed(call_result("a last commit", outcome)));
    }
    has_failed
}

/// Calls the main functions of the API on a failed store, twice, and reports the results.
fn calls_after_failure(opened: &OpenStore, recorder: &PipeRecorder) {
    let OpenStore { store, rows, .. } = opened;
    let check_error =
        |call: &str, outcome: Result<(), Error>| recorder.send(&Event::CallAfterFailure(call_result(call, outcome)));
    for _ in 0..2 {
        check_error(
            "begin and commit",
            store.begin().and_then(|mut txn| {
                txn.put(rows, encode_key("after"), "failing")?;
                txn.commit().map(drop)
            }),
        );
        check_error("transact", store.transact(|txn| txn.put(rows, encode_key("after"), "failing")));
        check_error(
            "snapshot",
            store.snapshot().and_then(|snapshot| snapshot.get(rows, encode_key("after")).map(drop)),
        );
        check_error("sync", store.sync());
        check_error("keyspace", store.keyspace("after").map(drop));
    }
}

fn call_result(call: &str, outcome: Result<(), Error>) -> Call {
    let (kind, text) = match outcome {
        Ok(()) => ("Ok".into(), String::new()),
        Err(error) => {
            let kind = format!("{:?}", error.kind());
            let name = kind.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_owned();
            (name, error.to_string())
        }
    };
    Call { call: call.into(), kind, text }
}
