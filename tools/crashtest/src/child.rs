//! The child process: one incarnation of a store.
//!
//! Clients run until their work is done or until the store fails. After a failure the child makes a
//! few more calls, because the store must keep refusing. The parent then kills the process, or the
//! process ends itself: at a configured crash point ([`KillAt`]), or by closing the store.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use percolite::crashtest::{Mutant, enable_mutant};
use percolite::engine::Engine;
use percolite::engine::folder::{FolderEngine, FolderOptions};
use percolite::env::Env;
use percolite::{CommitProtocol, Durability, Error, HistoryRetention, Keyspace, Store, TxnOptions};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::checkpoints;
use crate::client::{Client, ClientConfig, ClientId, ROWS, SECOND, with_retention};
use crate::event_pipe::{Call, Event, PipeRecorder};
use crate::fast_env::FastEnv;
use crate::key_encoding::encode_key;
use crate::layer_result::LayerResult;
use crate::lock_workload::event::{EventRecorder as _, LockEvent};
use crate::lock_workload::final_checks::logical_time;
use crate::lock_workload::{EventWriter, LOCK_KEYSPACE, LockClient, LockEnv, SharedLocks};
use crate::recorded_txn::RecordedTxn;
use crate::restores::{MANY_ROWS, restore};
use crate::rng::SeededRng;
use crate::self_kill::{KillAt, SelfKill};
use crate::verify_store::{SMALL_STORE, open_engine};
use crate::violation::Violation;
use crate::workload::{self, State, Workload};

/// An incarnation with buffered commits syncs once in this many transactions on average.
pub const SYNC_EVERY: usize = 24;
/// The longest pause under a lock, in milliseconds.
const PAUSE_MAX_MS: usize = 20;
/// Session numbers of one incarnation.
const SESSIONS: u64 = 1000;
/// A failed call has returned to its caller within this time after `strace` logged the fault.
const FAULT_LOG_DELAY: Duration = Duration::from_millis(100);
/// A child that ends by itself stops its clients after this time.
const RUN_TIME_MAX: Duration = Duration::from_secs(8);

/// The metric: commits of large transactions.
pub const LARGE_COMMITS: &str = "large commits";
/// The metric: runs whose transactions were to become large.
pub const RUNS_WITH_LARGE: &str = "runs with large transactions";
/// After this many such runs at least one large commit is expected.
const RUNS_WITH_LARGE_MIN: f64 = 8.0;

/// The workload of a seed and its `large_transaction_bytes`. Two of six seeds run large
/// transactions: one with many rows, one with a limit of 100 bytes.
pub fn workload_for(seed: u64, rng: &mut SeededRng) -> (&'static str, usize) {
    let small = rng.pick(workload::ALL).map_or("bank", |workload| workload.name());
    match seed % 6 {
        0 => (workload::LARGE.name(), 4000),
        3 => (small, 100),
        _ => (small, 16 << 20),
    }
}

/// Counts the large commits of one incarnation.
pub fn count_large_commits(outcome: &mut LayerResult, config: &ChildConfig, large_commits: u64) {
    outcome.count(RUNS_WITH_LARGE, u64::from(config.large_transaction_bytes < 16 << 20));
    outcome.count(LARGE_COMMITS, large_commits);
}

/// A violation if runs with large transactions never committed one.
pub fn check_large_commits(outcome: &LayerResult) -> Option<Violation> {
    let sum = |name: &str| outcome.metrics.get(name).into_iter().flatten().sum::<f64>();
    let missing = sum(RUNS_WITH_LARGE) >= RUNS_WITH_LARGE_MIN && sum(LARGE_COMMITS) <= 0.0;
    missing.then(|| {
        Violation::new("harness", format!("{} runs with large transactions, and no large commit", sum(RUNS_WITH_LARGE)))
    })
}

/// When commits are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DurabilityMode {
    /// When they are durable.
    Sync,
    /// When they are visible.
    Buffered,
    /// Each client chooses; the store shows snapshots of durable data only.
    Mixed,
}

/// The configuration of a child process. See the [module](self).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildConfig {
    /// The store's directory.
    pub store_dir: PathBuf,
    /// The number of the incarnation.
    pub incarnation: u32,
    /// The name of the workload.
    pub workload: String,
    /// Whether clients commit in two phases.
    pub two_phase: bool,
    /// When commits are acknowledged.
    pub durability_mode: DurabilityMode,
    /// The number of clients.
    pub clients: usize,
    /// Transactions a client; 0: until the process ends.
    pub transactions: usize,
    /// One value in this many is long; 0: none.
    pub long_value_every: usize,
    /// Memory for writes, in bytes; small values force frequent flushes.
    pub write_buffer_bytes: usize,
    /// Bytes of an extra row after each transaction; it fills disks and buffers.
    pub filler_bytes: usize,
    /// Buffered incarnations sync once in this many transactions on average; 0: never.
    pub sync_every: usize,
    /// Every other transaction waits up to this many milliseconds before its commit.
    pub think_ms: usize,
    /// Rows in the store's conflict set.
    pub conflict_cache_rows: usize,
    /// Transactions above this many bytes are large.
    pub large_transaction_bytes: usize,
    /// History retention in milliseconds; `None` leaves it unchanged.
    pub history_ms: Option<u64>,
    /// One step in this many drops and recreates the second keyspace; 0: never.
    pub drop_every: usize,
    /// One step of the first client in this many makes a checkpoint; 0: never.
    pub checkpoint_every: usize,
    /// One step of the first client in this many restores a dump; 0: never.
    pub restore_every: usize,
    /// The number of threads that take named locks.
    #[serde(default)]
    pub lock_clients: usize,
    /// The speed of the store's clock, in times of the real one.
    pub clock_speed: u32,
    /// The log of `strace`, if a fault is injected.
    #[serde(default)]
    pub strace_log: Option<PathBuf>,
    /// Whether orphan locks are resolved in the background.
    pub background_resolve: bool,
    /// The seed of all random choices.
    pub seed: u64,
    /// Whether the process keeps the store open when its work is done, until it is killed.
    /// Otherwise it closes the store.
    pub stay_open: bool,
    /// Without `stay_open`: the crash points at which the process kills itself.
    pub kill_at: Vec<KillAt>,
    /// Visits count for `kill_at` only after this many acknowledged commits.
    pub after_acks: u64,
    /// The enabled mutant.
    pub mutant: Option<String>,
}

impl Default for ChildConfig {
    fn default() -> Self {
        Self {
            store_dir: PathBuf::new(),
            incarnation: 0,
            workload: String::new(),
            two_phase: false,
            durability_mode: DurabilityMode::Sync,
            clients: 0,
            transactions: 0,
            long_value_every: 0,
            write_buffer_bytes: 4 << 20,
            filler_bytes: 0,
            sync_every: SYNC_EVERY,
            think_ms: 0,
            conflict_cache_rows: 64,
            large_transaction_bytes: 16 << 20,
            history_ms: None,
            drop_every: 0,
            checkpoint_every: 0,
            restore_every: 0,
            lock_clients: 0,
            clock_speed: 1,
            strace_log: None,
            background_resolve: true,
            seed: 0,
            stay_open: true,
            kill_at: Vec::new(),
            after_acks: 0,
            mutant: None,
        }
    }
}

impl ChildConfig {
    /// The command line of this child, run by this program.
    ///
    /// # Errors
    /// This program's path is unknown.
    pub fn arguments(&self) -> anyhow::Result<Vec<String>> {
        self.arguments_for(&std::env::current_exe().context("cannot find the path of this program")?)
    }

    /// The command line of this child, run by a program with the subcommand `child`.
    ///
    /// # Errors
    /// The configuration cannot be serialised.
    pub fn arguments_for(&self, program: &Path) -> anyhow::Result<Vec<String>> {
        Ok(vec![program.to_string_lossy().into_owned(), "child".into(), serde_json::to_string(self)?])
    }

    /// The command line as a [`Command`].
    ///
    /// # Errors
    /// This program's path is unknown.
    pub fn command(&self) -> anyhow::Result<Command> {
        let arguments = self.arguments()?;
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]);
        Ok(command)
    }

    /// The configuration of the clients.
    pub fn client_config(&self, durability: Durability) -> ClientConfig {
        ClientConfig { protocol: self.protocol(), durability, long_value_every: self.long_value_every }
    }

    fn protocol(&self) -> CommitProtocol {
        if self.two_phase { CommitProtocol::TwoPhase } else { CommitProtocol::Auto }
    }

    fn durability(&self) -> Durability {
        if self.durability_mode == DurabilityMode::Buffered { Durability::Buffered } else { Durability::Sync }
    }

    fn durability_of(&self, client: u64) -> Durability {
        match self.durability_mode {
            DurabilityMode::Mixed if client % 2 == 1 => Durability::Buffered,
            _ => self.durability(),
        }
    }
}

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
        Err(why) => {
            recorder.send(&Event::Failed(call_result("open", Err(why))));
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
    engine: Arc<FolderEngine>,
    rows: Keyspace,
    second: Keyspace,
}

fn open_store(config: &ChildConfig, recorder: &PipeRecorder) -> Result<OpenStore, Error> {
    let setup = FolderOptions { write_buffer_bytes: config.write_buffer_bytes, ..SMALL_STORE };
    let engine = open_engine(&config.store_dir, setup)?;
    let runtime = Arc::new(FastEnv::new(config.clock_speed));
    let (before, wall) = (logical_time(config.incarnation, runtime.elapsed(), recorder.tick()), runtime.unix_millis());
    let keep =
        config.history_ms.map_or(HistoryRetention::Unchanged, |ms| HistoryRetention::For(Duration::from_millis(ms)));
    let store = with_retention(Store::builder(), keep)
        .commit_protocol(config.protocol())
        .durability(config.durability())
        .env(Arc::clone(&runtime) as Arc<dyn Env>)
        .conflict_cache_rows(config.conflict_cache_rows)
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

/// Runs all clients; returns whether the store failed.
fn run_clients(
    config: &ChildConfig,
    workload: &'static dyn Workload,
    opened: &OpenStore,
    recorder: &PipeRecorder,
) -> bool {
    let mut rng = SeededRng::new(config.seed);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for lock_client in 0..config.lock_clients as u64 {
            let (rng, failed) = (rng.split(), &failed);
            scope.spawn(move || {
                if let Err(why) = run_lock_client(config, opened, recorder, lock_client, rng) {
                    failed.store(true, Ordering::SeqCst);
                    recorder.send(&Event::Failed(call_result("a lock", Err(why))));
                }
            });
        }
        for client in 0..config.clients as u64 {
            let (rng, failed) = (rng.split(), &failed);
            scope.spawn(move || {
                if let Err(why) = run_client(config, workload, opened, recorder, client, rng) {
                    failed.store(true, Ordering::SeqCst);
                    recorder.send(&Event::Failed(call_result("a transaction", Err(why))));
                }
            });
        }
    });
    failed.load(Ordering::SeqCst)
}

fn run_client(
    config: &ChildConfig,
    workload: &'static dyn Workload,
    opened: &OpenStore,
    recorder: &PipeRecorder,
    number: u64,
    mut rng: SeededRng,
) -> Result<(), Error> {
    let client_id = ClientId {
        session: u64::from(config.incarnation) * SESSIONS + number,
        incarnation: config.incarnation,
        config: config.client_config(config.durability_of(number)),
    };
    let keyspaces = (opened.rows.clone(), Some(opened.second.clone()));
    let mut client = Client::new((&opened.store, &*opened.engine), keyspaces, recorder, client_id, rng.split());
    if number == 0 {
        client.attempt(|txn| workload.load(txn))?;
    }
    let (mut done, began) = (0, Instant::now());
    while config.transactions == 0 || done < config.transactions {
        if config.drop_every > 0 && rng.one_in(config.drop_every) {
            client.drop_second()?;
            client.create_second()?;
        }
        if number == 0 {
            maintenance_step(config, opened, recorder, done as u64, &mut rng)?;
        }
        client.run(&ThinkTime { workload, think_ms: config.think_ms })?;
        done += 1;
        if config.filler_bytes > 0 {
            let key = encode_key(&format!("f{number}.{done}"));
            opened.store.transact(|txn| txn.put(&opened.second, &key, vec![7; config.filler_bytes]))?;
        }
        if config.durability_mode == DurabilityMode::Buffered && config.sync_every > 0 && rng.one_in(config.sync_every)
        {
            opened.store.sync()?;
        }
        let stats = opened.store.stats();
        recorder.send(&Event::Durable(stats.durable_ts.to_u64()));
        if config.large_transaction_bytes < 16 << 20 {
            recorder.send(&Event::LargeCommits(stats.commits_large));
        }
        if !config.stay_open && began.elapsed() > RUN_TIME_MAX {
            break;
        }
    }
    Ok(())
}

/// Takes locks for as long as the clients run, or for the configured number of steps.
fn run_lock_client(
    config: &ChildConfig,
    opened: &OpenStore,
    recorder: &PipeRecorder,
    number: u64,
    rng: SeededRng,
) -> Result<(), Error> {
    let Some(rows) = &opened.lock_rows else { return Ok(()) };
    let client_config = config.client_config(config.durability_of(number));
    let client_id = ClientId {
        session: u64::from(config.incarnation) * SESSIONS + SESSIONS / 2 + number,
        incarnation: config.incarnation,
        config: client_config,
    };
    let OpenStore { store, engine, runtime, shared_locks, .. } = opened;
    let env = LockEnv { store, engine: &**engine, rows, runtime: &**runtime, recorder, shared: shared_locks };
    let (mut lock_client, began) = (LockClient::new(env, client_id, rng, PAUSE_MAX_MS), Instant::now());
    let mut done = 0;
    while (config.transactions == 0 || done < config.transactions)
        && (config.stay_open || began.elapsed() < RUN_TIME_MAX)
    {
        lock_client.step()?;
        done += 1;
    }
    shared_locks.drop_guards(&EventWriter { env, incarnation: config.incarnation });
    Ok(())
}

/// What the first client does between its transactions: checkpoints and restores.
fn maintenance_step(
    config: &ChildConfig,
    opened: &OpenStore,
    recorder: &PipeRecorder,
    done: u64,
    rng: &mut SeededRng,
) -> Result<(), Error> {
    let number = u64::from(config.incarnation) * SESSIONS + done;
    if config.checkpoint_every > 0 && rng.one_in(config.checkpoint_every) {
        recorder.send(&Event::CheckpointStarted(number));
        opened.store.checkpoint(checkpoints::checkpoint_path(&config.store_dir, number))?;
        recorder.send(&Event::CheckpointDone(number));
    }
    if config.restore_every > 0 && rng.one_in(config.restore_every) {
        recorder.send(&Event::RestoreStarted(number));
        restore(&opened.store, Store::builder().commit_protocol(config.protocol()), number, MANY_ROWS)?;
        recorder.send(&Event::RestoreDone(number));
    }
    Ok(())
}

/// A workload whose transactions wait before they commit.
struct ThinkTime {
    workload: &'static dyn Workload,
    think_ms: usize,
}

impl Workload for ThinkTime {
    fn name(&self) -> &'static str {
        self.workload.name()
    }

    fn load(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        self.workload.load(txn)
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        self.workload.transaction(txn)?;
        if self.think_ms > 0 && txn.rng().one_in(2) {
            std::thread::sleep(Duration::from_millis(txn.rng().below(self.think_ms) as u64));
        }
        Ok(())
    }

    fn check(&self, state: &State) -> Result<(), String> {
        self.workload.check(state)
    }
}

/// Requests a last durable commit, which an earlier fault must make fail: a fault in the background
/// has no caller to return an error to. Returns whether the store failed.
fn final_durable_commit(config: &ChildConfig, opened: &OpenStore, recorder: &PipeRecorder) -> bool {
    let Some(strace_log) = &config.strace_log else { return false };
    let length = std::fs::read(strace_log).unwrap_or_default().len();
    // The fault is logged before the call returns to the store.
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

/// Calls everything that the API offers on a failed store.
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
        Err(why) => {
            let kind = format!("{:?}", why.kind());
            let name = kind.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_owned();
            (name, why.to_string())
        }
    };
    Call { call: call.into(), kind, text }
}
