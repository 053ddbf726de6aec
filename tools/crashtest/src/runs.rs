//! The runs `quick` (CI) and `soak` (hours).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use crate::interrupt;
use crate::layer_args::{LayerArgs, duration};
use crate::layer_result::LayerResult;
use crate::layers::Layer;
use crate::mutants;
use crate::points;
use crate::rng::SeededRng;
use crate::run_report::RunReport;

/// Run every layer, every expected crash point and five mutants, in a few minutes.
#[derive(Args, Clone, Debug)]
pub struct QuickArgs {
    /// Write the run report to this file, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Run all layers in turn with fresh seeds and varying CPU load, for a given time.
#[derive(Args, Clone, Debug)]
pub struct SoakArgs {
    /// The time, as in `90s`, `10m` or `4h`.
    #[arg(long = "for", value_parser = duration, default_value = "1h")]
    pub time: Duration,
    /// The seed of the whole run; default: from the time of day.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Write the run report to this file, as JSON, after every time slice.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// The time of a layer before the next one runs. `kill` has the longest case list and gets twice
/// the time, so that an hour covers it.
const TIME_SLICE: Duration = Duration::from_secs(60);

fn time_slice(layer: Layer) -> Duration {
    match layer {
        #[cfg(feature = "rocks")]
        Layer::Kill => 2 * TIME_SLICE,
        _ => TIME_SLICE,
    }
}

/// Runs `quick`.
///
/// # Errors
/// Errors of the harness, not of the store.
pub fn quick(progress: &dyn Fn(&str)) -> anyhow::Result<RunReport> {
    let mut report = RunReport::start("quick");
    for layer in Layer::ALL {
        if interrupt::is_requested() {
            return Ok(report);
        }
        progress(layer.name());
        report.add(layer.run(&LayerArgs::quick())?);
    }
    if interrupt::is_requested() {
        return Ok(report);
    }
    report.coverage_gaps = points::all_gaps(&report.layers)?;
    for mutant in mutants::QUICK_MUTANTS {
        progress(mutant);
        report.mutants.extend(mutants::try_one(mutants::named(mutant)?, false)?);
    }
    Ok(report)
}

/// Runs all layers in turn until the time has passed; calls `save` after every time slice.
///
/// # Errors
/// Errors of the harness, not of the store.
pub fn soak(args: &SoakArgs, save: &dyn Fn(&RunReport) -> anyhow::Result<()>) -> anyhow::Result<RunReport> {
    let seed = args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.as_secs() << 20
    });
    let mut report = RunReport::start(&format!("soak --seed {seed}"));
    let mut rng = SeededRng::new(seed);
    let began = Instant::now();
    for turn in 0_u64.. {
        let left = args.time.saturating_sub(began.elapsed());
        if left.is_zero() || interrupt::is_requested() {
            break;
        }
        let layer = Layer::ALL[usize::try_from(turn).unwrap_or_default() % Layer::ALL.len()];
        let _load = CpuLoad::random(&mut rng);
        // Continue the layer's case list where its last time slice ended.
        let layer_result = report.layers.iter().find(|layer_result| layer_result.layer == layer.name());
        let skip = layer_result.and_then(|layer_result| layer_result.progress).unwrap_or_default().done;
        // A layer derives the seeds of its cases from this one. It is random, so time slices hardly
        // ever repeat a seed.
        let args =
            LayerArgs { seed: rng.bits() >> 8, time: Some(time_slice(layer).min(left)), skip, ..LayerArgs::default() };
        report.add(layer.run(&args)?);
        report.seconds = began.elapsed().as_secs_f64();
        if !interrupt::is_requested() {
            report.coverage_gaps = points::all_gaps(&report.layers)?;
        }
        save(&report)?;
    }
    for layer in Layer::ALL {
        if !report.layers.iter().any(|layer_result| layer_result.layer == layer.name()) {
            let error = Some("not reached in this time".into());
            report.add(LayerResult { skipped: error, ..LayerResult::new(layer.name()) });
        }
    }
    save(&report)?;
    Ok(report)
}

/// Threads that only use CPU time.
struct CpuLoad {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl CpuLoad {
    fn random(rng: &mut SeededRng) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let busy = |_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..rng.below(4)).map(busy).collect();
        Self { stop, threads }
    }
}

impl Drop for CpuLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
