//! percolite with crash points, and with every mutant of `tools/crashtest/mutants` behind a switch.
//!
//! The sources are those of the library; `build.rs` adds the mutants.

#![allow(warnings, missing_docs, clippy::all, clippy::pedantic, reason = "the library itself is linted")]
#![deny(unsafe_code)]

/// Mutants: known mistakes that can be switched on.
pub mod mutants {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A known mistake.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Mutant(usize);

    include!(concat!(env!("OUT_DIR"), "/mutants.rs"));

    static ENABLED: AtomicUsize = AtomicUsize::new(usize::MAX);

    impl Mutant {
        /// All mutants, in the order of their names.
        pub fn all() -> impl Iterator<Item = Self> {
            (0..MUTANTS.len()).map(Self)
        }

        /// The mutant with this name.
        pub fn from_name(name: &str) -> Option<Self> {
            Self::all().find(|mutant| mutant.name() == name)
        }

        /// The name of its patch, without the ending.
        pub fn name(self) -> &'static str {
            MUTANTS[self.0].0
        }

        /// What the mutant does wrong.
        pub fn description(self) -> &'static str {
            MUTANTS[self.0].1
        }

        /// The layer of the harness that is tried first, if the patch names one.
        pub fn layer(self) -> Option<&'static str> {
            MUTANTS[self.0].2
        }
    }

    /// Switches one mutant on for the whole process, or all of them off.
    pub fn enable_mutant(mutant: Option<Mutant>) {
        ENABLED.store(mutant.map_or(usize::MAX, |mutant| mutant.0), Ordering::SeqCst);
    }

    /// What `mutated!()` in a patch becomes, with the mutant's number.
    pub(crate) fn is_enabled(number: usize) -> bool {
        ENABLED.load(Ordering::Relaxed) == number
    }
}

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
