//! What CI runs, and what goes on for hours.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use crate::dice::Dice;
use crate::evidence::Evidence;
use crate::interrupt;
use crate::layers::Layer;
use crate::mutants;
use crate::order::{Order, duration};
use crate::outcome::Outcome;
use crate::points;

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
const TURN: Duration = Duration::from_secs(60);

fn turn_of(layer: Layer) -> Duration {
    match layer {
        #[cfg(feature = "rocks")]
        Layer::Kill => 2 * TURN,
        _ => TURN,
    }
}

/// Runs `quick`.
///
/// # Errors
/// When a layer cannot be run, for reasons that have nothing to do with the store.
pub fn quick(told: &dyn Fn(&str)) -> anyhow::Result<Evidence> {
    let mut evidence = Evidence::begin("quick");
    for layer in Layer::ALL {
        if interrupt::came() {
            return Ok(evidence);
        }
        told(layer.name());
        evidence.add(layer.run(&Order::quick())?);
    }
    if interrupt::came() {
        return Ok(evidence);
    }
    evidence.gaps = points::gaps_of(&evidence.layers)?;
    for mutant in mutants::QUICK {
        told(mutant.name());
        evidence.mutants.extend(mutants::try_one(*mutant, false)?);
    }
    Ok(evidence)
}

/// Runs all layers in turn until the time is over; `kept` hears of the evidence after every turn.
///
/// # Errors
/// When a layer cannot be run, for reasons that have nothing to do with the store.
pub fn soak(args: &SoakArgs, kept: &dyn Fn(&Evidence) -> anyhow::Result<()>) -> anyhow::Result<Evidence> {
    let seed = args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.as_secs() << 20
    });
    let mut evidence = Evidence::begin(&format!("soak --seed {seed}"));
    let mut dice = Dice::new(seed);
    let began = Instant::now();
    for turn in 0_u64.. {
        let left = args.time.saturating_sub(began.elapsed());
        if left.is_zero() || interrupt::came() {
            break;
        }
        let layer = Layer::ALL[usize::try_from(turn).unwrap_or_default() % Layer::ALL.len()];
        let _load = Load::random(&mut dice);
        // What its table asks for goes on where the last turn left off.
        let known = evidence.layers.iter().find(|known| known.layer == layer.name());
        let skip = known.and_then(|known| known.rotation).unwrap_or_default().done;
        // Seeds of one turn follow each other; turns are far apart.
        let order = Order { seed: dice.bits() >> 8, time: Some(turn_of(layer).min(left)), skip, ..Order::default() };
        evidence.add(layer.run(&order)?);
        evidence.seconds = began.elapsed().as_secs_f64();
        if !interrupt::came() {
            evidence.gaps = points::gaps_of(&evidence.layers)?;
        }
        kept(&evidence)?;
    }
    for layer in Layer::ALL {
        if !evidence.layers.iter().any(|known| known.layer == layer.name()) {
            let why = Some("its turn did not come in this time".into());
            evidence.add(Outcome { skipped: why, ..Outcome::of(layer.name()) });
        }
    }
    kept(&evidence)?;
    Ok(evidence)
}

/// Threads that do nothing but take time away.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn random(dice: &mut Dice) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let busy = |_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..dice.below(4)).map(busy).collect();
        Self { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}
