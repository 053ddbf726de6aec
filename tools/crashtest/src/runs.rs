//! What CI runs, and what goes on for hours.

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

/// Everything once, in a few minutes: every layer, every expected point, five mutants.
#[derive(Args, Clone, Debug)]
pub struct QuickArgs {
    /// Write the evidence to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// All layers in turn, with fresh seeds and under changing load, for as long as asked.
#[derive(Args, Clone, Debug)]
pub struct SoakArgs {
    /// For how long, as in `90s`, `10m` or `4h`.
    #[arg(long = "for", value_parser = duration, default_value = "1h")]
    pub time: Duration,
    /// The seed of everything; otherwise the time of day.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Write the evidence to this file, after every round.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// How long a layer has its turn in a soak. The one with the longest table has twice that, to come round within the hour.
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
/// When a layer cannot be run, for reasons that have nothing to do with the store.
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
        progress(mutant.name());
        report.mutants.extend(mutants::try_one(*mutant, false)?);
    }
    Ok(report)
}

/// Runs all layers in turn until the time is over; `kept` hears of the evidence after every turn.
///
/// # Errors
/// When a layer cannot be run, for reasons that have nothing to do with the store.
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
        // What its table asks for goes on where the last turn left off.
        let layer_result = report.layers.iter().find(|layer_result| layer_result.layer == layer.name());
        let skip = layer_result.and_then(|layer_result| layer_result.progress).unwrap_or_default().done;
        // Seeds of one turn follow each other; turns are far apart.
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
            let why = Some("its turn did not come in this time".into());
            report.add(LayerResult { skipped: why, ..LayerResult::new(layer.name()) });
        }
    }
    save(&report)?;
    Ok(report)
}

/// Threads that do nothing but take time away.
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
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}
