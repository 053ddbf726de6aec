//! Cases: at which point a store is killed, at which visit, and how it is used; and which cases a run has.
//!
//! A case has a name that says all of it, `kill:batch.written/2/two-phase/sync/17`, and the name is all that `replay` needs.
//! The number at its end is the seed of every other choice. Threads and the disk are not in its hands, so a replay repeats
//! the situation, not every step.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use percolite::crashtest::Point;

use crate::life::Life;
use crate::points::{self, Place};

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
    pub fn place(self) -> Place {
        match self {
            Self::Auto => Place::KillAuto,
            Self::TwoPhase => Place::KillTwoPhase,
        }
    }
}

impl From<&Life> for Protocol {
    fn from(life: &Life) -> Self {
        if life.two_phase { Self::TwoPhase } else { Self::Auto }
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
pub enum Nth {
    /// The first after the stated number of acknowledgements.
    First,
    /// The one after it.
    Second,
    /// The last one before the store is closed, as far as a run without a kill can tell.
    Last,
}

impl Nth {
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
    pub point: Point,
    /// At which visit.
    pub nth: Nth,
    /// How transactions commit.
    pub protocol: Protocol,
    /// When they are acknowledged.
    pub durability: Durability,
    /// Everything else.
    pub seed: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, nth, protocol, durability, seed } = self;
        write!(f, "kill:{}/{}/{}/{}/{seed}", point.name(), nth.name(), protocol.name(), durability.name())
    }
}

impl FromStr for Case {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts: Vec<&str> = text.strip_prefix("kill:").unwrap_or(text).split('/').collect();
        let [point, nth, protocol, durability, seed] = parts[..] else {
            bail!("a case looks like kill:batch.written/2/two-phase/sync/17, not like {text}");
        };
        let find = |name: &str, what: &str| format!("no {what}: {name}");
        let case = Self {
            point: Point::named(point).with_context(|| find(point, "point"))?,
            nth: Nth::ALL.into_iter().find(|one| one.name() == nth).with_context(|| find(nth, "visit"))?,
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
        let possible = points::table()?.into_iter().find(|entry| entry.point == case.point);
        let places = possible.map(|entry| entry.places).unwrap_or_default();
        if !places.contains(&case.protocol.place()) {
            let possible: Vec<String> = places.iter().map(Place::to_string).collect();
            bail!("{point} cannot occur in {}, only in: {}", case.protocol.place(), possible.join("; "));
        }
        Ok(case)
    }
}

/// Every case of the table: each point where it can occur, at each visit, in both durabilities.
///
/// # Errors
/// Those of the table.
pub fn all(seed: u64) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (point, protocols) in expected()? {
        for protocol in protocols {
            for nth in Nth::ALL {
                for durability in Durability::ALL {
                    let seed = seed.wrapping_mul(1000).wrapping_add(cases.len() as u64);
                    cases.push(Case { point, nth, protocol, durability, seed });
                }
            }
        }
    }
    Ok(cases)
}

/// One case for every point of the table. Visits, protocols and durabilities take turns, and other seeds begin elsewhere.
///
/// # Errors
/// Those of the table.
pub fn quick(seed: u64) -> anyhow::Result<Vec<Case>> {
    let points = expected()?.into_iter().enumerate();
    let turn = usize::try_from(seed % 12).unwrap_or_default();
    let case = |(index, (point, protocols)): (usize, (Point, Vec<Protocol>))| {
        let turn = index + turn;
        Case {
            point,
            nth: Nth::ALL[turn % 3],
            protocol: protocols[(turn / 3) % protocols.len()],
            durability: Durability::ALL[(turn / 2) % 2],
            seed: seed.wrapping_mul(1000).wrapping_add(index as u64),
        }
    };
    Ok(points.map(case).collect())
}

/// The points that can be killed at, and in which protocols.
fn expected() -> anyhow::Result<Vec<(Point, Vec<Protocol>)>> {
    let protocols = |places: &[Place]| Protocol::ALL.into_iter().filter(|one| places.contains(&one.place())).collect();
    let entries = points::table()?.into_iter().map(|entry| (entry.point, protocols(&entry.places)));
    Ok(entries.filter(|(_, protocols): &(_, Vec<_>)| !protocols.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_found_again_by_its_name() {
        for case in all(3).unwrap() {
            assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
        }
        assert!("kill:batch.written/3/auto/sync/1".parse::<Case>().is_err());
        assert!("kill:batch.written".parse::<Case>().is_err());
        let why = "kill:prewrite.all/1/auto/sync/1".parse::<Case>().unwrap_err().to_string();
        assert!(why.contains("only in: sim, embedded; sim, shared; kill, two-phase"), "{why}");
    }

    #[test]
    fn a_quick_run_has_every_point_and_every_way_of_use_whatever_its_seed() {
        for seed in 0..24 {
            let cases = quick(seed).unwrap();
            assert_eq!(cases.len(), expected().unwrap().len());
            for nth in Nth::ALL {
                for protocol in Protocol::ALL {
                    for durability in Durability::ALL {
                        let is_it =
                            |case: &&Case| (case.nth, case.protocol, case.durability) == (nth, protocol, durability);
                        assert!(cases.iter().any(|case| is_it(&case)), "{seed}: {nth:?} {protocol:?} {durability:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_two_cases_of_a_run_are_the_same() {
        let names: std::collections::HashSet<String> = all(1).unwrap().iter().map(Case::to_string).collect();
        assert_eq!(names.len(), all(1).unwrap().len());
    }
}
