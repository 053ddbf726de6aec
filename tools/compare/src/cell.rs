//! A cell, in the process that measures it: open, prepare, open again, measure, close, open again, verify.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::client::{Client, Course, Took, Total};
use crate::dice::Dice;
use crate::peer::{
    Fjall, Kind, Lmdb, Optimistic, Peer, Percolite, Pessimistic, Plain, Proof, Redb, Setup, Sqlite, SurrealKv,
};
use crate::spec::{Attempts, Measured, Outcome, Spec};
use crate::usage::{self, Written};
use crate::workload::{Values, Work, with_work};

/// Far from every seed of a client.
const PREPARING: u64 = 1 << 19;
/// Stacks count as memory; the default would be 2 MiB.
const STACK_BYTES: usize = 512 << 10;

/// Measures a cell in a folder that is not there yet.
pub fn run(spec: &Spec, folder: &Path) -> Outcome {
    match measure(spec, folder) {
        Ok(measured) => Outcome::Measured(measured),
        Err(why) => Outcome::Failed(format!("{why:#}")),
    }
}

fn measure(spec: &Spec, folder: &Path) -> Result<Measured> {
    let setup = Setup {
        folder: folder.to_owned(),
        durable: spec.setting.durable,
        cache_bytes: spec.conditions.cache_bytes,
        write_buffer_bytes: spec.conditions.write_buffer_bytes,
        clients: usize::try_from(spec.setting.clients + spec.setting.work.extras())?,
        history: spec.setting.work.needs_history(),
    };
    with_work!(&spec.setting.work, work => match spec.store {
        Kind::Percolite => measure_on::<Percolite<false>>(spec, &setup, work),
        Kind::PercoliteTwoPhase => measure_on::<Percolite<true>>(spec, &setup, work),
        Kind::Proof => measure_on::<Proof>(spec, &setup, work),
        Kind::RocksOptimistic => measure_on::<Optimistic>(spec, &setup, work),
        Kind::RocksTransaction => measure_on::<Pessimistic>(spec, &setup, work),
        Kind::Rocks => measure_on::<Plain>(spec, &setup, work),
        Kind::Fjall => measure_on::<Fjall>(spec, &setup, work),
        Kind::Redb => measure_on::<Redb>(spec, &setup, work),
        Kind::Lmdb => measure_on::<Lmdb>(spec, &setup, work),
        Kind::Sqlite => measure_on::<Sqlite>(spec, &setup, work),
        Kind::Surrealkv => measure_on::<SurrealKv>(spec, &setup, work),
    })
}

fn measure_on<P: Peer>(spec: &Spec, setup: &Setup, work: &impl Work) -> Result<Measured> {
    prepare::<P>(spec, setup, work).context("preparing")?;
    usage::reset_peak()?;
    let before = usage::written(&setup.folder)?;
    let peer = P::open(setup).context("opening")?;
    let (total, took) = drive(spec, &peer, work)?;
    ensure!(total.operations > 0, "no operation began and ended within the time");
    let peak_bytes = usage::peak_bytes()?;
    peer.close().context("closing")?;
    let written = usage::written(&setup.folder)?.since(before)?;

    let peer = P::open(setup).context("opening again")?;
    work.verify(&mut peer.session()?, &total).context("wrong at the end")?;
    peer.close().context("closing again")?;
    Ok(figures(&total, took, written, peak_bytes))
}

/// Buffered where the workload allows it, as what is prepared is not measured.
fn prepare<P: Peer>(spec: &Spec, setup: &Setup, work: &impl Work) -> Result<()> {
    let durable = setup.durable && !spec.setting.work.only_reads();
    let setup = Setup { folder: setup.folder.clone(), durable, ..*setup };
    let peer = P::open(&setup)?;
    let mut values = Values { dice: Dice::new(spec.round, PREPARING), bytes: spec.conditions.value_bytes };
    work.prepare(&mut peer.session()?, &mut values)?;
    peer.close()
}

fn drive<P: Peer>(spec: &Spec, peer: &P, work: &impl Work) -> Result<(Total, Took)> {
    let conditions = &spec.conditions;
    let is_extra = |number| number >= spec.setting.clients;
    let all = spec.setting.clients + spec.setting.work.extras();
    let operations = if spec.setting.work.is_one_piece() { Some(1) } else { conditions.operations };
    let course = Course::new(usize::try_from(all)?, operations);
    std::thread::scope(|scope| {
        let course = &course;
        let threads = (0..all).map(|number| {
            let run = move || {
                let mut client = Client::new(number, is_extra(number), spec.round, conditions.value_bytes, course)?;
                let outcome = peer.session().and_then(|mut session| work.client(&mut session, &mut client));
                client.end(outcome)
            };
            std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run)
        });
        let threads: Vec<_> = threads.collect::<std::io::Result<_>>()?;
        let warm_up = Duration::from_millis(conditions.warm_up_millis);
        let (began, took) = course.direct(warm_up, Duration::from_millis(conditions.millis));
        let mut total = Total::new()?;
        for thread in threads {
            total.add(&thread.join().map_err(|_| anyhow!("a client panicked"))??)?;
        }
        Ok((total, took.unwrap_or_else(|| began.took())))
    })
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn figures(total: &Total, took: Took, written: Written, peak_bytes: u64) -> Measured {
    let micros = |quantile| total.latencies.value_at_quantile(quantile) as f64 / 1000.0;
    let per_byte = |written: u64| (total.bytes > 0).then(|| written as f64 / total.bytes as f64);
    let (disk_per_byte, dirtied_per_byte) = match written {
        Written::ToDisk(bytes) => (per_byte(bytes), None),
        Written::Dirtied(bytes) => (None, per_byte(bytes)),
    };
    Measured {
        rate: total.operations as f64 / took.time.as_secs_f64(),
        processor: took.processor.as_secs_f64() * 1e6 / total.operations as f64,
        operations: total.operations,
        commits: total.commits,
        aborts_per_commit: (total.measured_commits > 0).then(|| total.aborts as f64 / total.measured_commits as f64),
        p50: micros(0.5),
        p95: micros(0.95),
        p99: micros(0.99),
        p999: micros(0.999),
        disk_per_byte,
        dirtied_per_byte,
        peak_bytes,
        loaded_beside: total.loaded_beside.map(|rows| rows as f64 / took.time.as_secs_f64()),
        attempts: (!total.attempts.is_empty()).then(|| Attempts {
            p50: total.attempts.value_at_quantile(0.5),
            p99: total.attempts.value_at_quantile(0.99),
            max: total.attempts.max(),
        }),
        by_client: total.by_client.clone(),
    }
}
