//! The layers of the harness, cheapest first.

use crate::order::Order;
use crate::outcome::Outcome;
use crate::sim;
#[cfg(feature = "rocks")]
use crate::{ioerr, kill, powercut, walsweep};

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
    Walsweep,
    /// Errors of the disk.
    #[cfg(feature = "rocks")]
    Ioerr,
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
        Self::Walsweep,
        #[cfg(feature = "rocks")]
        Self::Ioerr,
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
            Self::Walsweep => "walsweep",
            #[cfg(feature = "rocks")]
            Self::Ioerr => "ioerr",
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
            Self::Walsweep => "walsweep:1/5000",
            #[cfg(feature = "rocks")]
            Self::Ioerr => "ioerr:1/write.log.EIO.3",
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
            Self::Walsweep => 1,
            #[cfg(feature = "rocks")]
            Self::Kill | Self::Ioerr | Self::Powercut => 20,
        }
    }

    /// Does what it is asked to do.
    ///
    /// # Errors
    /// When it cannot, for reasons that have nothing to do with the store.
    pub fn run(self, order: &Order) -> anyhow::Result<Outcome> {
        match self {
            Self::Sim => sim::campaign::run(order),
            #[cfg(feature = "rocks")]
            Self::Kill => kill::run(order),
            #[cfg(feature = "rocks")]
            Self::Walsweep => walsweep::run(order),
            #[cfg(feature = "rocks")]
            Self::Ioerr => ioerr::run(order),
            #[cfg(feature = "rocks")]
            Self::Powercut => powercut::run(order),
        }
    }
}
