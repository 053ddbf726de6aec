//! Medians, and ratios taken within a round.
//!
//! A machine's speed drifts, so a figure by itself says little. What is quoted is the median of the rounds' ratios, with the
//! least and the greatest. Where there is more than one to be better than, each round has its own best: that can only be to
//! percolite's disadvantage.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::peer::Kind;
use crate::spec::{Conditions, Line, Measured, Outcome, Setting, Spec};

/// The middle of some figures, the least and the greatest.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
}

impl Spread {
    /// `None` of nothing. Of an even number the median is between the two in the middle.
    pub fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_by(f64::total_cmp);
        let (&least, &greatest) = (figures.first()?, figures.last()?);
        let (above, below) = (figures.get(figures.len() / 2)?, figures.get((figures.len() - 1) / 2)?);
        Some(Self { median: f64::midpoint(*above, *below), least, greatest })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}..{:.2})", self.median, self.least, self.greatest)
    }
}

/// The outcomes of a run, under what they are outcomes of.
#[derive(Default)]
pub struct Outcomes(HashMap<Spec, Outcome>);

impl Outcomes {
    pub fn add(&mut self, line: Line) {
        self.0.insert(line.spec, line.outcome);
    }

    pub fn has(&self, spec: &Spec) -> bool {
        self.0.contains_key(spec)
    }

    pub fn get(&self, contestant: &Contestant, conditions: &Conditions, round: u64) -> Option<&Outcome> {
        self.0.get(&contestant.spec(conditions, round))
    }

    /// Those that went well.
    pub fn measured<'a>(&'a self, contestant: &Contestant, conditions: &Conditions, rounds: u64) -> Vec<&'a Measured> {
        (0..rounds).filter_map(|round| self.get(contestant, conditions, round)?.measured()).collect()
    }

    /// The first way in which it failed.
    pub fn failure(&self, contestant: &Contestant, conditions: &Conditions, rounds: u64) -> Option<&str> {
        (0..rounds).find_map(|round| match self.get(contestant, conditions, round)? {
            Outcome::Failed(why) => Some(why.as_str()),
            Outcome::Measured(_) => None,
        })
    }

    /// Each round's rate of ours over the best of theirs, of the rounds in which there are both.
    pub fn ratios(&self, ours: &Contestant, theirs: &[Contestant], conditions: &Conditions, rounds: u64) -> Vec<f64> {
        self.ratios_of(ours, theirs, conditions, rounds, |measured| Some(measured.rate), f64::total_cmp)
    }

    /// The same of any figure, of which the best is the last in the order.
    pub fn ratios_of(
        &self,
        ours: &Contestant,
        theirs: &[Contestant],
        conditions: &Conditions,
        rounds: u64,
        figure: impl Fn(&Measured) -> Option<f64>,
        order: impl Fn(&f64, &f64) -> Ordering,
    ) -> Vec<f64> {
        let ratio = |round| {
            let figure = |one: &Contestant| figure(self.get(one, conditions, round)?.measured()?);
            let best = theirs.iter().filter_map(figure).max_by(&order)?;
            Some(figure(ours)? / best)
        };
        (0..rounds).filter_map(ratio).collect()
    }
}

/// A store at a setting.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contestant {
    pub setting: Setting,
    pub store: Kind,
}

impl Contestant {
    pub fn spec(&self, conditions: &Conditions, round: u64) -> Spec {
        Spec { setting: self.setting.clone(), store: self.store, conditions: conditions.clone(), round }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |figures: &[f64]| Spread::of(figures.to_vec()).map(|spread| spread.median);
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(of(&[]), None);
        let spread = Spread::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.least, spread.greatest), (1.0, 3.0));
    }

    /// The ratio of the medians would be 1 here; the stores are never alike.
    #[test]
    fn ratios_are_taken_within_a_round_and_against_its_best() {
        let mut outcomes = Outcomes::default();
        let (ours, one, other) =
            (testing::contestant(Kind::Percolite), testing::contestant(Kind::Redb), testing::contestant(Kind::Lmdb));
        let rates = [(100.0, 50.0, 25.0), (10.0, 2.0, 5.0), (1.0, 0.5, 0.25)];
        for (round, (a, b, c)) in rates.into_iter().enumerate() {
            for (contestant, rate) in [(&ours, a), (&one, b), (&other, c)] {
                outcomes.add(testing::line(contestant, round as u64, rate));
            }
        }
        let conditions = testing::conditions();
        assert_eq!(outcomes.ratios(&ours, &[one.clone(), other.clone()], &conditions, 3), [2.0, 2.0, 2.0]);
        assert_eq!(outcomes.ratios(&ours, std::slice::from_ref(&other), &conditions, 3), [4.0, 2.0, 4.0]);
        assert_eq!(outcomes.ratios(&other, &[one], &conditions, 3), [0.5, 2.5, 0.5]);
    }

    #[test]
    fn a_round_in_which_a_store_failed_has_no_ratio_with_it() {
        let mut outcomes = Outcomes::default();
        let (ours, theirs) = (testing::contestant(Kind::Percolite), testing::contestant(Kind::Redb));
        outcomes.add(testing::line(&ours, 0, 1.0));
        outcomes.add(testing::line(&ours, 1, 1.0));
        outcomes.add(testing::line(&theirs, 0, 2.0));
        let failed = Outcome::Failed("the sum is wrong".into());
        outcomes.add(Line { spec: theirs.spec(&testing::conditions(), 1), outcome: failed });
        let conditions = testing::conditions();
        assert_eq!(outcomes.ratios(&ours, std::slice::from_ref(&theirs), &conditions, 2), [0.5]);
        assert_eq!(outcomes.failure(&theirs, &conditions, 2), Some("the sum is wrong"));
    }
}
