//! The layers of the harness, cheapest first.

use crate::layer_args::LayerArgs;
use crate::layer_result::LayerResult;
use crate::sim;
#[cfg(feature = "rocks")]
use crate::{io_errors, kill, log_damage, powercut};

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// Seeded simulation in memory.
    Sim,
    /// SIGKILL at named points.
    #[cfg(feature = "rocks")]
    Kill,
    /// Logs cut at every byte.
    #[cfg(feature = "rocks")]
    LogDamage,
    /// Errors of the disk.
    #[cfg(feature = "rocks")]
    IoErrors,
    /// Power cuts.
    #[cfg(feature = "rocks")]
    Powercut,
}

impl Layer {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Sim,
        #[cfg(feature = "rocks")]
        Self::Kill,
        #[cfg(feature = "rocks")]
        Self::LogDamage,
        #[cfg(feature = "rocks")]
        Self::IoErrors,
        #[cfg(feature = "rocks")]
        Self::Powercut,
    ];

    /// Its name, which is also its command and begins the names of its cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
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

    /// A case of it.
    pub fn example(self) -> &'static str {
        match self {
            Self::Sim => "sim:embedded/17",
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

    /// How often a case is run before it is said to hold. Where real threads and processes run, a case fixes what they do and
    /// not when.
    pub fn tries_of_a_replay(self) -> usize {
        match self {
            Self::Sim => 1,
            #[cfg(feature = "rocks")]
            Self::LogDamage => 1,
            #[cfg(feature = "rocks")]
            Self::Kill | Self::IoErrors | Self::Powercut => 20,
        }
    }

    /// Does what it is asked to do.
    ///
    /// # Errors
    /// When it cannot, for reasons that have nothing to do with the store.
    pub fn run(self, args: &LayerArgs) -> anyhow::Result<LayerResult> {
        match self {
            Self::Sim => sim::runner::run(args),
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
