//! A case: the choice of a crash point, of its visit, of the commit protocol and of the durability.
//! This file also has the list of all cases.
//!
//! The name of a case contains all these choices, as in `kill:group.written/2/two-phase/sync/17`,
//! and is all that `replay` needs. The number at the end is the seed of all other choices. Threads
//! and the disk are not deterministic, so a replay repeats the situation, not every step.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use percolite::crashtest::CrashPoint;

use crate::child::ChildConfig;
use crate::points::{self, Environment};

/// How transactions commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// In one phase where possible.
    Auto,
    /// In two phases.
    TwoPhase,
}

impl Protocol {
    const ALL: [Self; 2] = [Self::Auto, Self::TwoPhase];

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::TwoPhase => "two-phase",
        }
    }

    /// The environment in the table of crash points.
    pub fn environment(self) -> Environment {
        match self {
            Self::Auto => Environment::KillAuto,
            Self::TwoPhase => Environment::KillTwoPhase,
        }
    }
}

impl From<&ChildConfig> for Protocol {
    fn from(config: &ChildConfig) -> Self {
        if config.two_phase { Self::TwoPhase } else { Self::Auto }
    }
}

impl From<Protocol> for percolite::CommitProtocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Auto => Self::Auto,
            Protocol::TwoPhase => Self::TwoPhase,
        }
    }
}

/// When commits are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When commits are durable.
    Sync,
    /// When commits survive a kill.
    Buffered,
}

impl Durability {
    const ALL: [Self; 2] = [Self::Sync, Self::Buffered];

    fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Buffered => "buffered",
        }
    }
}

impl From<Durability> for percolite::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Sync => Self::Sync,
            Durability::Buffered => Self::Buffered,
        }
    }
}

/// The visit of the crash point at which the process is killed. An incarnation visits some points,
/// such as those of opening, only once. For these several incarnations are killed instead: one for
/// `First`, two for `Second`, three for `Last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The first visit after [`ChildConfig::after_acks`] acknowledged commits.
    First,
    /// The second visit after them.
    Second,
    /// The last visit before the store is closed, found by a run without a kill.
    Last,
}

impl Visit {
    const ALL: [Self; 3] = [Self::First, Self::Second, Self::Last];

    fn name(self) -> &'static str {
        match self {
            Self::First => "1",
            Self::Second => "2",
            Self::Last => "last",
        }
    }
}

/// A process that is killed at one visit of one crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The crash point.
    pub point: CrashPoint,
    /// The visit.
    pub visit: Visit,
    /// How transactions commit.
    pub protocol: Protocol,
    /// When commits are acknowledged.
    pub durability: Durability,
    /// The seed of all other choices.
    pub seed: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, visit, protocol, durability, seed } = self;
        write!(f, "kill:{}/{}/{}/{}/{seed}", point.name(), visit.name(), protocol.name(), durability.name())
    }
}

impl FromStr for Case {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts: Vec<&str> = text.strip_prefix("kill:").unwrap_or(text).split('/').collect();
        let [point, visit, protocol, durability, seed] = parts[..] else {
            bail!("invalid case {text:?}; expected a case like kill:group.written/2/two-phase/sync/17");
        };
        let find = |name: &str, what: &str| format!("invalid {what}: {name}");
        let case = Self {
            point: CrashPoint::from_name(point).with_context(|| find(point, "point"))?,
            visit: Visit::ALL.into_iter().find(|one| one.name() == visit).with_context(|| find(visit, "visit"))?,
            protocol: Protocol::ALL
                .into_iter()
                .find(|one| one.name() == protocol)
                .with_context(|| find(protocol, "protocol"))?,
            durability: Durability::ALL
                .into_iter()
                .find(|one| one.name() == durability)
                .with_context(|| find(durability, "durability"))?,
            seed: seed.parse().with_context(|| find(seed, "seed"))?,
        };
        let possible = points::table()?.into_iter().find(|row| row.point == case.point);
        let environments = possible.map(|row| row.environments).unwrap_or_default();
        if !environments.contains(&case.protocol.environment()) {
            let possible: Vec<String> = environments.iter().map(Environment::to_string).collect();
            bail!("{point} cannot occur in {}, only in: {}", case.protocol.environment(), possible.join("; "));
        }
        Ok(case)
    }
}

/// Combinations of visits and durabilities.
const COMBINATIONS: usize = 6;

/// All cases, in passes: a pass has each point once in each protocol in which it can occur. Visits
/// and durabilities change from pass to pass.
///
/// # Errors
/// An invalid table.
pub fn all_cases(seed: u64) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for pass_number in 0..COMBINATIONS {
        cases.extend(pass(pass_number)?);
    }
    Ok(with_seeds(cases, seed))
}

/// One pass; the seed decides which.
///
/// # Errors
/// An invalid table.
pub fn quick_cases(seed: u64) -> anyhow::Result<Vec<Case>> {
    Ok(with_seeds(pass(usize::try_from(seed % COMBINATIONS as u64)?)?, seed))
}

fn pass(pass_number: usize) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (index, (point, protocols)) in expected()?.into_iter().enumerate() {
        for protocol in protocols {
            // The remainder by 3 decides the visit and the remainder by 2 the durability, so any
            // six consecutive numbers have all combinations.
            let combination = pass_number + index + if protocol == Protocol::Auto { 0 } else { COMBINATIONS / 2 };
            cases.push(Case {
                point,
                visit: Visit::ALL[combination % 3],
                protocol,
                durability: Durability::ALL[combination % 2],
                seed: 0,
            });
        }
    }
    Ok(cases)
}

fn with_seeds(cases: Vec<Case>, seed: u64) -> Vec<Case> {
    (0..).zip(cases).map(|(index, case)| Case { seed: seed_of(seed, index), ..case }).collect()
}

/// The seed of the case at an index of the list.
pub fn seed_of(seed: u64, index: u64) -> u64 {
    seed.wrapping_mul(1000).wrapping_add(index)
}

/// The crash points of this layer, with the protocols in which they occur.
fn expected() -> anyhow::Result<Vec<(CrashPoint, Vec<Protocol>)>> {
    let protocols = |environments: &[Environment]| {
        Protocol::ALL.into_iter().filter(|one| environments.contains(&one.environment())).collect()
    };
    let entries = points::table()?.into_iter().map(|row| (row.point, protocols(&row.environments)));
    Ok(entries.filter(|(_, protocols): &(_, Vec<_>)| !protocols.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_round_trip() {
        for case in all_cases(3).unwrap() {
            assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
        }
        assert!("kill:group.written/3/auto/sync/1".parse::<Case>().is_err());
        assert!("kill:group.written".parse::<Case>().is_err());
        let reason = "kill:prewrite.all/1/auto/sync/1".parse::<Case>().unwrap_err().to_string();
        assert!(reason.contains("only in: sim, embedded; sim, shared; kill, two-phase"), "{reason}");
    }

    #[test]
    fn a_quick_run_covers_points_protocols_and_combinations() {
        for seed in 0..24 {
            let cases = quick_cases(seed).unwrap();
            for (point, protocols) in expected().unwrap() {
                for protocol in protocols {
                    let count = cases.iter().filter(|case| (case.point, case.protocol) == (point, protocol)).count();
                    assert_eq!(count, 1, "{seed}: {point:?} {protocol:?}");
                }
            }
            for visit in Visit::ALL {
                for protocol in Protocol::ALL {
                    for durability in Durability::ALL {
                        let is_it = |case: &&Case| {
                            (case.visit, case.protocol, case.durability) == (visit, protocol, durability)
                        };
                        assert!(cases.iter().any(|case| is_it(&case)), "{seed}: {visit:?} {protocol:?} {durability:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn cases_are_unique() {
        let numbers_apart = |case: Case| Case { seed: 0, ..case }.to_string();
        let cases = all_cases(1).unwrap();
        let names: std::collections::HashSet<String> = cases.iter().copied().map(numbers_apart).collect();
        let expected: usize = expected().unwrap().iter().map(|(_, protocols)| protocols.len()).sum();
        assert_eq!((names.len(), cases.len()), (expected * COMBINATIONS, expected * COMBINATIONS));
    }
}
