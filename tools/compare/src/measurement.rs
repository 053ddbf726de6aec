//! One measurement, in the process that runs it.
//!
//! A measurement opens the store three times: to prepare it, to measure, and to verify. So the
//! measured operations start from the store's files, and the verification reads from the files what
//! the operations have written.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::client::{Client, Elapsed, Phases, Total};
use crate::generator::Rng;
use crate::peer::{
    Fjall, Lmdb, Optimistic, Peer, Percolite, Pessimistic, Plain, Redb, Sqlite, StoreConfig, StoreKind, SurrealKv,
};
use crate::process_usage::{self, BytesWritten};
use crate::spec::{Attempts, Metrics, Outcome, Spec};
use crate::workload::{RowGenerator, Work, with_work};

/// The number of the preparation's random generator, which differs from those of all clients.
const PREPARE_CLIENT: u64 = 1 << 19;
/// Stacks count towards the memory limit, so they are smaller than the default of 2 MiB.
const STACK_BYTES: usize = 512 << 10;

/// Runs a measurement in a directory that does not exist yet.
pub fn run(spec: &Spec, dir: &Path) -> Outcome {
    match measure(spec, dir) {
        Ok(metrics) => Outcome::Measured(metrics),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

fn measure(spec: &Spec, dir: &Path) -> Result<Metrics> {
    let config = StoreConfig {
        dir: dir.to_owned(),
        durable: spec.setting.durable,
        cache_bytes: spec.conditions.cache_bytes,
        write_buffer_bytes: spec.conditions.write_buffer_bytes,
        clients: usize::try_from(spec.setting.clients + spec.setting.work.background_clients())?,
        history: spec.setting.work.needs_history(),
    };
    with_work!(&spec.setting.work, work => match spec.store {
        StoreKind::Percolite => measure_on::<Percolite<false>>(spec, &config, work),
        StoreKind::PercoliteTwoPhase => measure_on::<Percolite<true>>(spec, &config, work),
        StoreKind::RocksOptimistic => measure_on::<Optimistic>(spec, &config, work),
        StoreKind::RocksTransaction => measure_on::<Pessimistic>(spec, &config, work),
        StoreKind::Rocks => measure_on::<Plain>(spec, &config, work),
        StoreKind::Fjall => measure_on::<Fjall>(spec, &config, work),
        StoreKind::Redb => measure_on::<Redb>(spec, &config, work),
        StoreKind::Lmdb => measure_on::<Lmdb>(spec, &config, work),
        StoreKind::Sqlite => measure_on::<Sqlite>(spec, &config, work),
        StoreKind::Surrealkv => measure_on::<SurrealKv>(spec, &config, work),
    })
}

fn measure_on<P: Peer>(spec: &Spec, config: &StoreConfig, work: &impl Work) -> Result<Metrics> {
    prepare::<P>(spec, config, work).context("preparation")?;
    process_usage::reset_peak()?;
    let before = process_usage::bytes_written(&config.dir)?;
    let peer = P::open(config).context("open")?;
    let (total, elapsed) = drive(spec, &peer, work)?;
    ensure!(total.operations > 0, "no operation was completed during the measurement");
    let peak_bytes = process_usage::peak_bytes()?;
    peer.close().context("close")?;
    let written = process_usage::bytes_written(&config.dir)?.since(before)?;

    let peer = P::open(config).context("reopen")?;
    work.verify(&mut peer.session()?, &total).context("verification")?;
    peer.close().context("close after the verification")?;
    Ok(metrics(&total, elapsed, written, peak_bytes))
}

/// Prepares the rows. For read-only workloads the commits of the preparation are buffered, which is
/// faster: the result of such a workload does not depend on their durability.
fn prepare<P: Peer>(spec: &Spec, config: &StoreConfig, work: &impl Work) -> Result<()> {
    let durable = config.durable && !spec.setting.work.is_read_only();
    let config = StoreConfig { dir: config.dir.clone(), durable, ..*config };
    let peer = P::open(&config)?;
    let mut values = RowGenerator { rng: Rng::new(spec.round, PREPARE_CLIENT), bytes: spec.conditions.value_bytes };
    work.prepare(&mut peer.session()?, &mut values)?;
    peer.close()
}

fn drive<P: Peer>(spec: &Spec, peer: &P, work: &impl Work) -> Result<(Total, Elapsed)> {
    let conditions = &spec.conditions;
    let is_background = |number| number >= spec.setting.clients;
    let all = spec.setting.clients + spec.setting.work.background_clients();
    let operations = if spec.setting.work.is_single_run() { Some(1) } else { conditions.operations };
    let phases = Phases::new(usize::try_from(all)?, operations);
    std::thread::scope(|scope| {
        let phases = &phases;
        let threads = (0..all).map(|number| {
            let run = move || {
                let mut client =
                    Client::new(number, is_background(number), spec.round, conditions.value_bytes, phases)?;
                let outcome = peer.session().and_then(|mut session| work.client(&mut session, &mut client));
                client.end(outcome)
            };
            std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run)
        });
        let threads: Vec<_> = threads.collect::<std::io::Result<_>>()?;
        let warm_up = Duration::from_millis(conditions.warm_up_millis);
        let (started, elapsed) = phases.run(warm_up, Duration::from_millis(conditions.millis));
        let mut total = Total::new()?;
        for thread in threads {
            total.add(&thread.join().map_err(|_| anyhow!("a client panicked"))??)?;
        }
        Ok((total, elapsed.unwrap_or_else(|| started.elapsed())))
    })
}

#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
fn metrics(total: &Total, elapsed: Elapsed, written: BytesWritten, peak_bytes: u64) -> Metrics {
    let micros = |quantile| total.latencies.value_at_quantile(quantile) as f64 / 1000.0;
    let per_byte = |written: u64| (total.bytes > 0).then(|| written as f64 / total.bytes as f64);
    let (write_amplification, dirtied_amplification) = match written {
        BytesWritten::ToDisk(bytes) => (per_byte(bytes), None),
        BytesWritten::Dirtied(bytes) => (None, per_byte(bytes)),
    };
    Metrics {
        rate: total.operations as f64 / elapsed.time.as_secs_f64(),
        cpu: elapsed.cpu.as_secs_f64() * 1e6 / total.operations as f64,
        operations: total.operations,
        commits: total.commits,
        aborts_per_commit: (total.measured_commits > 0).then(|| total.aborts as f64 / total.measured_commits as f64),
        p50: micros(0.5),
        p95: micros(0.95),
        p99: micros(0.99),
        p999: micros(0.999),
        write_amplification,
        dirtied_amplification,
        peak_bytes,
        concurrent_load: total.concurrent_load.map(|rows| rows as f64 / elapsed.time.as_secs_f64()),
        attempts: (!total.attempts.is_empty()).then(|| Attempts {
            p50: total.attempts.value_at_quantile(0.5),
            p99: total.attempts.value_at_quantile(0.99),
            max: total.attempts.max(),
        }),
        by_client: total.by_client.clone(),
    }
}
