//! Cases: at which point a store is killed, at which visit, and how it is used; and which cases a run has.
//!
//! A case has a name that says all of it, `kill:group.written/2/two-phase/sync/17`, and the name is all that `replay` needs.
//! The number at its end is the seed of every other choice. Threads and the disk are not in its hands, so a replay repeats
//! the situation, not every step.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use percolite::crashtest::CrashPoint;

use crate::child::ChildConfig;
use crate::points::{self, Environment};

/// How transactions commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// In one phase where they can.
    Auto,
    /// In two.
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

    /// The place in the table of points.
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
    /// When they would survive a power cut.
    Sync,
    /// When they would survive what happens here.
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

/// At which visit of its point a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The first after the stated number of acknowledgements.
    First,
    /// The one after it.
    Second,
    /// The last one before the store is closed, as far as a run without a kill can tell.
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

/// A process killed at one visit of one point, as a name that can be read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Where it dies.
    pub point: CrashPoint,
    /// At which visit.
    pub visit: Visit,
    /// How transactions commit.
    pub protocol: Protocol,
    /// When they are acknowledged.
    pub durability: Durability,
    /// Everything else.
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
            bail!("a case looks like kill:group.written/2/two-phase/sync/17, not like {text}");
        };
        let find = |name: &str, what: &str| format!("no {what}: {name}");
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

/// Visits and durabilities, each with each.
const COMBINATIONS: usize = 6;

/// Every case of the table, in laps: a lap has each point in each protocol in which it can occur, once. Visits and durabilities
/// take turns from lap to lap.
///
/// # Errors
/// Those of the table.
pub fn all_cases(seed: u64) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for pass_number in 0..COMBINATIONS {
        cases.extend(pass(pass_number)?);
    }
    Ok(with_seeds(cases, seed))
}

/// One lap. Other seeds have others.
///
/// # Errors
/// Those of the table.
pub fn quick_cases(seed: u64) -> anyhow::Result<Vec<Case>> {
    Ok(with_seeds(pass(usize::try_from(seed % COMBINATIONS as u64)?)?, seed))
}

fn pass(pass_number: usize) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (index, (point, protocols)) in expected()?.into_iter().enumerate() {
        for protocol in protocols {
            // No number below six has both remainders in common with another.
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

/// The seed of the case that is run as the `index`-th.
pub fn seed_of(seed: u64, index: u64) -> u64 {
    seed.wrapping_mul(1000).wrapping_add(index)
}

/// The points that can be killed at, and in which protocols.
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
    fn a_case_is_found_again_by_its_name() {
        for case in all_cases(3).unwrap() {
            assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
        }
        assert!("kill:group.written/3/auto/sync/1".parse::<Case>().is_err());
        assert!("kill:group.written".parse::<Case>().is_err());
        let why = "kill:prewrite.all/1/auto/sync/1".parse::<Case>().unwrap_err().to_string();
        assert!(why.contains("only in: sim, embedded; sim, shared; kill, two-phase"), "{why}");
    }

    #[test]
    fn a_quick_run_has_every_point_in_every_protocol_and_every_way_of_use_whatever_its_seed() {
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
    fn no_two_cases_of_a_run_are_the_same() {
        let numbers_apart = |case: Case| Case { seed: 0, ..case }.to_string();
        let cases = all_cases(1).unwrap();
        let names: std::collections::HashSet<String> = cases.iter().copied().map(numbers_apart).collect();
        let expected: usize = expected().unwrap().iter().map(|(_, protocols)| protocols.len()).sum();
        assert_eq!((names.len(), cases.len()), (expected * COMBINATIONS, expected * COMBINATIONS));
    }
}
