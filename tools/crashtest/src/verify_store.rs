//! Opens a store after a crash and verifies it against the log of its clients.
//!
//! All locks are resolved, and unknown outcomes are looked up. Then the workload's invariant, the
//! structure of the columns and progress are checked. Opening the store a second time must change
//! nothing. The history of all incarnations together must be snapshot isolated.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use percolite::engine::Compression;
use percolite::engine::directory::{DirectoryEngine, DirectoryOptions, DirectoryStorage};
use percolite::engine::storage::{CellReader as _, Column};
use percolite::engine::{Engine, EngineError, RowRange};
use percolite::env::{Env, SystemEnv};
use percolite::{Builder, Durability, Error, Store};

use crate::checker::check;
use crate::client::{Client, ClientConfig, ClientId, ROWS, SECOND, TxnEnd};
use crate::client_log::ClientLog;
use crate::counter_check::check_counter;
use crate::fast_env::FastEnv;
use crate::invariants::{check_structure, digest, keyspace_ids};
use crate::left_files;
use crate::lock_checker::{self, replay};
use crate::lock_workload::event::{EventRecorder, LockEvent, LogicalTime};
use crate::lock_workload::final_checks::{self, logical_time};
use crate::lock_workload::{EventWriter, LOCK_KEYSPACE, LockEnv, SharedLocks};
use crate::memory_recorder::{MemoryRecorder, first_tick};
use crate::restores::{MANY_ROWS, Restores, keyspaces_without_name, orphaned_keyspaces};
use crate::rng::SeededRng;
use crate::violation::Violation;
use crate::workload::Workload;

/// Options of a small store; the harness opens thousands.
pub const SMALL_STORE: DirectoryOptions = DirectoryOptions {
    block_cache_bytes: 1 << 20,
    write_buffer_bytes: 4 << 20,
    compression: Compression::Lz4,
    accept_data_loss: None,
};

/// The store must delete what earlier restores have left within this real time. On the store's
/// clock this is [`CLOCK_SPEED`] times as long.
const DELETE_TIMEOUT: Duration = Duration::from_secs(20);
const CLOCK_SPEED: u32 = 50;

/// A forked process calls `exec` within this time, see [`reopen`].
const EXEC_TIMEOUT: Duration = Duration::from_secs(1);

/// What is verified.
pub struct StoreUnderTest<'a> {
    /// The store's directory; opening the store changes it.
    pub store_dir: &'a Path,
    /// The workload of its clients.
    pub workload: &'static dyn Workload,
    /// The configuration of its clients.
    pub config: ClientConfig,
    /// The number of the verification, which is an incarnation, too. It is above all earlier ones.
    pub incarnation: u32,
    /// Timestamps of acknowledged commits, including those that the crash may have lost.
    pub acknowledged: &'a BTreeMap<u64, u64>,
    /// The events of named locks.
    pub lock_events: &'a [LockEvent],
    /// Whether to open the store a second time.
    pub reopen: bool,
    /// Whether to judge then what is in its directory.
    pub check_files: bool,
    /// Whether the store is a checkpoint of another one, whose leases it must not have.
    pub is_checkpoint: bool,
    /// The fingerprint of a data loss to accept.
    pub accept_loss: Option<u64>,
}

/// The result of a verification.
#[derive(Debug, Default)]
pub struct StoreReport {
    /// The client log with all outcomes resolved, without the transactions of the verification.
    pub resolved_log: ClientLog,
    /// The client log with the transactions of the verification.
    pub client_log: ClientLog,
    /// How many commits were found whose client had no acknowledgement.
    pub unacknowledged_commits: u64,
    /// How many locks were left.
    pub locks: u64,
    /// The time to open the store and to resolve its locks.
    pub recovery_time: Duration,
    /// All violations.
    pub violations: Vec<Violation>,
    /// Whether the store lists an accepted loss.
    pub lists_loss: bool,
    /// The error, if the store did not open.
    pub open_error: Option<Error>,
}

/// Opens a directory as the engine of a store. `storage()` of this engine reads the columns.
///
/// # Errors
/// Errors of opening.
pub fn open_engine(store_dir: &Path, memory: DirectoryOptions) -> Result<Arc<DirectoryEngine>, EngineError> {
    Ok(Arc::new(DirectoryEngine::new(DirectoryStorage::open(store_dir, memory)?, true)))
}

/// Verifies a store. Every commit that `client_log` shows as acknowledged must be found. So the
/// caller first withdraws those that the crash may have lost: [`ClientLog::allow_loss`].
pub fn verify(target: &StoreUnderTest<'_>, client_log: ClientLog) -> StoreReport {
    let mut found = StoreReport::default();
    let recorder = MemoryRecorder::new(client_log, target.incarnation);
    match resolve_and_verify(target, &recorder, &mut found) {
        Ok(before) if target.reopen => match open_and_digest(target) {
            Ok(after) if after == before => {}
            Ok(_) => report(&mut found, "idempotent recovery", "a second opening changed the stored data"),
            Err(error) => report(&mut found, "the store opens", format!("the second opening failed: {error}")),
        },
        Ok(_) => {}
        Err(error) => found.open_error = Some(error),
    }
    if target.check_files && found.open_error.is_none() {
        match left_files::check(target.store_dir, found.lists_loss) {
            Ok(left) => found.violations.extend(left),
            Err(error) => report(&mut found, "the store opens", format!("a later opening failed: {error}")),
        }
    }
    found.client_log = recorder.into_log();
    if found.open_error.is_none() {
        found.violations.extend(check_counter(&found.client_log));
        match found.client_log.history() {
            Ok(history) => found.violations.extend(Violation::found_by_checker(&check(&history))),
            Err(error) => report(&mut found, "harness", error.to_string()),
        }
    }
    found
}

/// Opens the store, resolves and checks everything, and returns a digest of the store. An error
/// means that the store did not open or could not be read.
fn resolve_and_verify(
    target: &StoreUnderTest<'_>,
    recorder: &MemoryRecorder,
    found: &mut StoreReport,
) -> Result<u64, Error> {
    let started = Instant::now();
    let engine =
        open_engine(target.store_dir, DirectoryOptions { accept_data_loss: target.accept_loss, ..SMALL_STORE })?;
    found.lists_loss = !engine.data_losses().is_empty();
    found.locks = count_locks(&engine)?;
    let event_log = LockEventLog::new(target);
    let before = event_log.now();
    let store =
        store_builder(target).env(Arc::clone(&event_log.runtime)).open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    if target.is_checkpoint {
        found.violations.extend(final_checks::check_no_lease_rows(engine.storage())?);
    }
    verify_locks(target, &event_log, before, (&store, &*engine), found)?;
    let (second, rows) = (store.keyspace(SECOND)?, store.keyspace(ROWS)?);
    store.resolve_orphan_locks()?;
    found.recovery_time = started.elapsed();
    {
        let mut client_log = recorder.log();
        let resolved = client_log.resolve_unknown(&*engine, &rows)?;
        found.unacknowledged_commits = resolved.committed as u64;
        found.violations.extend(resolved.violations);
        if let Some(hole) = client_log.find_gap(target.acknowledged) {
            report(found, "surviving prefix", hole);
        }
        found.resolved_log = client_log.clone();
    }
    let client_id = ClientId {
        session: u64::from(target.incarnation) * 1000,
        incarnation: target.incarnation,
        config: ClientConfig { durability: Durability::Sync, ..target.config },
    };
    let (both, rng) = ((rows, Some(second)), SeededRng::new(u64::from(target.incarnation)));
    let mut client = Client::new((&store, &*engine), both, recorder, client_id, rng);
    let checked = client.check_snapshot(target.workload);
    let progress = client.lock_every_row();
    drop(client);
    if let Err(error) = checked {
        report(found, "workload", error.to_string());
    }
    match progress {
        Ok(TxnEnd::Committed) => {}
        other => report(found, "progress", format!("a transaction on every row: {other:?}")),
    }
    store.resolve_orphan_locks()?;
    let keyspaces = keyspace_ids(&store)?;
    if let Err(error) = store.close() {
        report(found, "the store closes", error.to_string());
    }
    found.violations.extend(check_structure(engine.storage())?);
    Ok(digest(engine.storage(), &keyspaces)?)
}

/// The lock events of the clients, to which the verification adds its own.
struct LockEventLog {
    runtime: Arc<dyn Env>,
    events: Mutex<Vec<LockEvent>>,
    ticks: AtomicU64,
    incarnation: u32,
}

impl LockEventLog {
    fn new(target: &StoreUnderTest<'_>) -> Self {
        let ticks = AtomicU64::new(first_tick(target.incarnation));
        Self {
            runtime: Arc::new(SystemEnv::default()),
            events: Mutex::new(target.lock_events.to_vec()),
            ticks,
            incarnation: target.incarnation,
        }
    }

    fn now(&self) -> (LogicalTime, u64) {
        (logical_time(self.incarnation, self.runtime.elapsed(), self.tick()), self.runtime.unix_millis())
    }
}

impl EventRecorder for LockEventLog {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn record(&self, event: LockEvent) {
        self.events.lock().push(event);
    }
}

/// Checks the leases that were left, looks up the commits of unknown outcome that were made under
/// locks, and checks the whole lock history. Afterwards no lock is held.
fn verify_locks(
    target: &StoreUnderTest<'_>,
    event_log: &LockEventLog,
    (before, wall): (LogicalTime, u64),
    (store, engine): (&Store, &DirectoryEngine),
    found: &mut StoreReport,
) -> Result<(), Error> {
    if !target.lock_events.iter().any(|event| matches!(event, LockEvent::Requested { .. })) {
        return Ok(());
    }
    let (now, wall_now) = event_log.now();
    event_log.record(LockEvent::StoreOpened(before, now, (wall, wall_now)));
    let (rows, shared) = (store.keyspace(LOCK_KEYSPACE)?, SharedLocks::default());
    let env = LockEnv {
        store,
        engine,
        rows: &rows,
        runtime: &*event_log.runtime,
        recorder: event_log,
        shared: &shared,
        is_simulated: false,
    };
    let events = event_log.events.lock().clone();
    let mut rng = SeededRng::new(u64::from(target.incarnation));
    found.violations.extend(final_checks::check_leases(
        &EventWriter { env, incarnation: event_log.incarnation },
        &events,
        &mut rng,
    )?);
    store.resolve_orphan_locks()?;
    let open = replay(&*event_log.events.lock()).undecided;
    event_log.events.lock().extend(final_checks::resolve_unknown(&open, engine, &rows));
    found.violations.extend(lock_checker::check(&replay(&*event_log.events.lock())));
    found.violations.extend(final_checks::check_nothing_left(store)?);
    found.violations.extend(final_checks::check_no_lease_rows(engine.storage())?);
    Ok(())
}

/// Checks the restored keyspaces of a killed store, from dumps of [`MANY_ROWS`] rows, and that
/// nothing of earlier restores is left.
///
/// # Errors
/// Errors of opening and reading the store.
pub fn verify_restored(store_dir: &Path, restores: &Restores) -> Result<Vec<Violation>, Error> {
    let engine = open_engine(store_dir, SMALL_STORE)?;
    let store = Store::builder()
        .disable_history()
        .env(Arc::new(FastEnv::new(CLOCK_SPEED)))
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let mut violations: Vec<Violation> = restores.check(&store, MANY_ROWS)?.into_iter().collect();
    let started = Instant::now();
    loop {
        let left = keyspaces_without_name(&store, engine.storage())?;
        if left.is_empty() {
            break;
        }
        if started.elapsed() > DELETE_TIMEOUT {
            violations.push(orphaned_keyspaces(&left));
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    store.close()?;
    Ok(violations)
}

fn count_locks(engine: &DirectoryEngine) -> Result<u64, EngineError> {
    let mut count = 0;
    engine.storage().scan(Column::Lock, &RowRange::all(), false, |_, _| {
        count += 1;
        true
    })?;
    Ok(count)
}

fn open_and_digest(target: &StoreUnderTest<'_>) -> Result<u64, Error> {
    let engine = reopen(target.store_dir)?;
    let store: Store = store_builder(target).open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    store.resolve_orphan_locks()?;
    let keyspaces = keyspace_ids(&store)?;
    store.close()?;
    Ok(digest(engine.storage(), &keyspaces)?)
}

/// Opens a store that this process has just closed. If another case has forked a process while the
/// store was open, this process holds the store's lock until it calls `exec`. So a held lock is
/// tolerated for a while. At the first opening it is an error: this process has not had the store
/// open before, so no fork can hold its lock.
///
/// # Errors
/// Errors of opening.
pub fn reopen(store_dir: &Path) -> Result<Arc<DirectoryEngine>, EngineError> {
    let started = Instant::now();
    loop {
        match open_engine(store_dir, SMALL_STORE) {
            Err(EngineError::AlreadyOpen(_)) if started.elapsed() < EXEC_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened,
        }
    }
}

fn store_builder(target: &StoreUnderTest<'_>) -> Builder {
    Store::builder().commit_protocol(target.config.protocol).durability(Durability::Sync).conflict_set_rows(64)
}

fn report(found: &mut StoreReport, invariant: &'static str, details: impl Into<String>) {
    found.violations.push(Violation::new(invariant, details));
}

#[cfg(test)]
mod tests {
    use percolite::{CommitProtocol, ErrorKind};

    use super::*;
    use crate::workload;

    #[test]
    fn a_locked_store_is_refused_until_it_is_released() {
        let store_dir = tempfile::tempdir().unwrap();
        let held = open_engine(store_dir.path(), SMALL_STORE).unwrap();
        let release = std::thread::spawn(move || {
            std::thread::sleep(EXEC_TIMEOUT / 4);
            drop(held);
        });
        let target = StoreUnderTest {
            store_dir: store_dir.path(),
            workload: workload::ALL[0],
            config: ClientConfig { protocol: CommitProtocol::Auto, durability: Durability::Sync, long_value_every: 0 },
            incarnation: 1,
            acknowledged: &BTreeMap::new(),
            lock_events: &[],
            reopen: true,
            check_files: true,
            is_checkpoint: false,
            accept_loss: None,
        };
        let error = verify(&target, ClientLog::default()).open_error.unwrap();
        assert!(matches!(error.kind(), ErrorKind::AlreadyOpen(_)), "{error:?}");
        release.join().unwrap();
        assert!(verify(&target, ClientLog::default()).open_error.is_none());
    }
}
