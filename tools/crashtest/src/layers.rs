//! The layers of the harness: the ways in which a store is crashed, cheapest first.

use crate::layer_args::LayerArgs;
use crate::layer_result::LayerResult;
use crate::{interleavings, sequences, sim};
#[cfg(feature = "rocks")]
use crate::{io_errors, kill, log_damage, powercut};

/// One layer. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// Seeded simulation in memory.
    Sim,
    /// Every interleaving of two threads in a few situations.
    Interleavings,
    /// Every short sequence of operations, with every loss.
    Sequences,
    /// SIGKILL at named crash points.
    #[cfg(feature = "rocks")]
    Kill,
    /// A truncated or damaged log.
    #[cfg(feature = "rocks")]
    LogDamage,
    /// Injected I/O errors and full disks.
    #[cfg(feature = "rocks")]
    IoErrors,
    /// Power cuts.
    #[cfg(feature = "rocks")]
    Powercut,
}

impl Layer {
    /// All layers, cheapest first.
    pub const ALL: &'static [Self] = &[
        Self::Sim,
        Self::Interleavings,
        Self::Sequences,
        #[cfg(feature = "rocks")]
        Self::Kill,
        #[cfg(feature = "rocks")]
        Self::LogDamage,
        #[cfg(feature = "rocks")]
        Self::IoErrors,
        #[cfg(feature = "rocks")]
        Self::Powercut,
    ];

    /// The name of the layer: its subcommand, and the prefix of its case names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Interleavings => "interleavings",
            Self::Sequences => "sequences",
            #[cfg(feature = "rocks")]
            Self::Kill => "kill",
            #[cfg(feature = "rocks")]
            Self::LogDamage => "log-damage",
            #[cfg(feature = "rocks")]
            Self::IoErrors => "io-errors",
            #[cfg(feature = "rocks")]
            Self::Powercut => "powercut",
        }
    }

    /// An example of a case name.
    pub fn example(self) -> &'static str {
        match self {
            Self::Sim => "sim:embedded/17",
            Self::Interleavings => "interleavings:cancel-beside-wait",
            Self::Sequences => "sequences:put.flush.power-cut",
            #[cfg(feature = "rocks")]
            Self::Kill => "kill:group.written/2/two-phase/sync/17",
            #[cfg(feature = "rocks")]
            Self::LogDamage => "log-damage:1/5000",
            #[cfg(feature = "rocks")]
            Self::IoErrors => "io-errors:1/write.log.EIO.3",
            #[cfg(feature = "rocks")]
            Self::Powercut => "powercut:17",
        }
    }

    /// The layer that a case belongs to.
    pub fn of_case(case: &str) -> Option<Self> {
        let (name, _) = case.split_once(':')?;
        Self::ALL.iter().copied().find(|layer| layer.name() == name)
    }

    /// How often `replay` runs a case that does not fail. With real threads and processes a case
    /// determines the situation but not the schedule, so one run proves little.
    pub fn tries_of_a_replay(self) -> usize {
        match self {
            Self::Sim | Self::Interleavings | Self::Sequences => 1,
            #[cfg(feature = "rocks")]
            Self::LogDamage => 1,
            #[cfg(feature = "rocks")]
            Self::Kill | Self::IoErrors | Self::Powercut => 20,
        }
    }

    /// Runs the layer.
    ///
    /// # Errors
    /// Errors of the harness, not of the store.
    pub fn run(self, args: &LayerArgs) -> anyhow::Result<LayerResult> {
        match self {
            Self::Sim => sim::runner::run(args),
            Self::Interleavings => interleavings::run(args),
            Self::Sequences => sequences::run(args),
            #[cfg(feature = "rocks")]
            Self::Kill => kill::run(args),
            #[cfg(feature = "rocks")]
            Self::LogDamage => log_damage::run(args),
            #[cfg(feature = "rocks")]
            Self::IoErrors => io_errors::run(args),
            #[cfg(feature = "rocks")]
            Self::Powercut => powercut::run(args),
        }
    }
}
