//! Medians, and ratios within rounds.
//!
//! A machine's speed drifts, so an absolute figure says little. The result is the median of the
//! ratios within rounds, with the minimum and the maximum. With several baselines, percolite is
//! compared in each round with the best baseline of that round, which can only be to percolite's
//! disadvantage.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::peer::StoreKind;
use crate::spec::{Conditions, Metrics, Outcome, ResultLine, Setting, Spec};

/// Median, minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` without values. The median of an even number of values is the mean of the two in the
    /// middle.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let (above, below) = (values.get(values.len() / 2)?, values.get((values.len() - 1) / 2)?);
        Some(Self { median: f64::midpoint(*above, *below), min, max })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}..{:.2})", self.median, self.min, self.max)
    }
}

/// The outcomes of a run, by measurement.
#[derive(Default)]
pub struct Outcomes(HashMap<Spec, Outcome>);

impl Outcomes {
    pub fn add(&mut self, line: ResultLine) {
        self.0.insert(line.spec, line.outcome);
    }

    pub fn has(&self, spec: &Spec) -> bool {
        self.0.contains_key(spec)
    }

    pub fn get(&self, entry: &Entry, conditions: &Conditions, round: u64) -> Option<&Outcome> {
        self.0.get(&entry.spec(conditions, round))
    }

    /// The metrics of the successful rounds.
    pub fn metrics<'a>(&'a self, entry: &Entry, conditions: &Conditions, rounds: u64) -> Vec<&'a Metrics> {
        (0..rounds).filter_map(|round| self.get(entry, conditions, round)?.metrics()).collect()
    }

    /// The text of the first failure.
    pub fn failure(&self, entry: &Entry, conditions: &Conditions, rounds: u64) -> Option<&str> {
        (0..rounds).find_map(|round| match self.get(entry, conditions, round)? {
            Outcome::Failed(error) => Some(error.as_str()),
            Outcome::Measured(_) => None,
        })
    }

    /// The rate of the subject divided by that of the best baseline, for each round that has both.
    pub fn ratios(&self, subject: &Entry, baselines: &[Entry], conditions: &Conditions, rounds: u64) -> Vec<f64> {
        self.ratios_of(subject, baselines, conditions, rounds, |measured| Some(measured.rate), f64::total_cmp)
    }

    /// Like [`Self::ratios`], but of any metric. The best baseline is the greatest by `order`.
    pub fn ratios_of(
        &self,
        subject: &Entry,
        baselines: &[Entry],
        conditions: &Conditions,
        rounds: u64,
        metric: impl Fn(&Metrics) -> Option<f64>,
        order: impl Fn(&f64, &f64) -> Ordering,
    ) -> Vec<f64> {
        let ratio = |round| {
            let metric = |one: &Entry| metric(self.get(one, conditions, round)?.metrics()?);
            let best = baselines.iter().filter_map(metric).max_by(&order)?;
            Some(metric(subject)? / best)
        };
        (0..rounds).filter_map(ratio).collect()
    }
}

/// A store at a setting.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub setting: Setting,
    pub store: StoreKind,
}

impl Entry {
    pub fn spec(&self, conditions: &Conditions, round: u64) -> Spec {
        Spec { setting: self.setting.clone(), store: self.store, conditions: conditions.clone(), round }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |values: &[f64]| Spread::of(values.to_vec()).map(|spread| spread.median);
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(of(&[]), None);
        let spread = Spread::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.min, spread.max), (1.0, 3.0));
    }

    /// Each ratio compares two rates of the same round. To compare the median rates would mislead:
    /// the medians are 5 for `other` and 2 for `one`, but in two of the three rounds `other` is
    /// slower.
    #[test]
    fn ratios_are_within_rounds_against_the_best() {
        let mut outcomes = Outcomes::default();
        let (subject, one, other) =
            (fixtures::entry(StoreKind::Percolite), fixtures::entry(StoreKind::Redb), fixtures::entry(StoreKind::Lmdb));
        let rates = [(100.0, 50.0, 25.0), (10.0, 2.0, 5.0), (1.0, 0.5, 0.25)];
        for (round, (a, b, c)) in rates.into_iter().enumerate() {
            for (entry, rate) in [(&subject, a), (&one, b), (&other, c)] {
                outcomes.add(fixtures::line(entry, round as u64, rate));
            }
        }
        let conditions = fixtures::conditions();
        assert_eq!(outcomes.ratios(&subject, &[one.clone(), other.clone()], &conditions, 3), [2.0, 2.0, 2.0]);
        assert_eq!(outcomes.ratios(&subject, std::slice::from_ref(&other), &conditions, 3), [4.0, 2.0, 4.0]);
        assert_eq!(outcomes.ratios(&other, &[one], &conditions, 3), [0.5, 2.5, 0.5]);
    }

    #[test]
    fn a_failed_round_has_no_ratio() {
        let mut outcomes = Outcomes::default();
        let (subject, baselines) = (fixtures::entry(StoreKind::Percolite), fixtures::entry(StoreKind::Redb));
        outcomes.add(fixtures::line(&subject, 0, 1.0));
        outcomes.add(fixtures::line(&subject, 1, 1.0));
        outcomes.add(fixtures::line(&baselines, 0, 2.0));
        let failed = Outcome::Failed("wrong sum".into());
        outcomes.add(ResultLine { spec: baselines.spec(&fixtures::conditions(), 1), outcome: failed });
        let conditions = fixtures::conditions();
        assert_eq!(outcomes.ratios(&subject, std::slice::from_ref(&baselines), &conditions, 2), [0.5]);
        assert_eq!(outcomes.failure(&baselines, &conditions, 2), Some("wrong sum"));
    }
}
