//! The threads of a child: clients that run transactions, and clients that take named locks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use percolite::{Error, Store};

use super::{ChildConfig, DurabilityMode, OpenStore, call_result};
use crate::checkpoints;
use crate::client::{Client, ClientId};
use crate::event_pipe::{Event, PipeRecorder};
use crate::key_encoding::encode_key;
use crate::lock_workload::{EventWriter, LockClient, LockEnv};
use crate::restores::{MANY_ROWS, restore};
use crate::rng::SeededRng;
use crate::think_time::ThinkTime;
use crate::workload::Workload;

/// The longest pause under a lock, in milliseconds.
const PAUSE_MAX_MS: usize = 20;
/// Each incarnation has this many session numbers of its own.
const SESSIONS: u64 = 1000;
/// A child that ends by itself stops its clients after this time.
const RUN_TIME_MAX: Duration = Duration::from_secs(8);

/// Runs all clients; returns whether the store failed.
pub fn run_clients(
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
                if let Err(error) = run_lock_client(config, opened, recorder, lock_client, rng) {
                    failed.store(true, Ordering::SeqCst);
                    recorder.send(&Event::Failed(call_result("a lock", Err(error))));
                }
            });
        }
        for client in 0..config.clients as u64 {
            let (rng, failed) = (rng.split(), &failed);
            scope.spawn(move || {
                if let Err(error) = run_client(config, workload, opened, recorder, client, rng) {
                    failed.store(true, Ordering::SeqCst);
                    recorder.send(&Event::Failed(call_result("a transaction", Err(error))));
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
        let every = if config.think_ms > 0 { 2 } else { 0 };
        client.run(&ThinkTime { workload, every, most_ms: config.think_ms, sleep: std::thread::sleep })?;
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

/// Takes locks, for as many steps as the other clients have transactions. If the child is to end by
/// itself, the steps end after [`RUN_TIME_MAX`] at the latest.
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
    let env = LockEnv {
        store,
        engine: &**engine,
        rows,
        runtime: &**runtime,
        recorder,
        shared: shared_locks,
        is_simulated: false,
    };
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

/// What the first client does before each of its transactions: at random, it makes a checkpoint,
/// and at random, it restores a dump.
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
