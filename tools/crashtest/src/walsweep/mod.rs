//! A small store whose log is cut at every byte, and damaged bit by bit. Every other cut leaves room behind it, as the store makes it
//! for its records: zeros, and in half of these cases every other page of what was there, as a power cut may leave them.
//!
//! A seed makes one store with one client, and the log's length is noted with everything that the client is told. Whatever
//! happens to the log from some byte on, all that was acknowledged while it was no longer than that must be there (for the
//! records before are whole), and of the rest a prefix in the order of commits. A damaged log may also be refused, with a clear
//! word; never may the store come up with something else, and never panic. Where a flipped bit in front of whole records costs commits
//! the store must tell of it.
//!
//! The store has a clock and dice of its own, so that a seed always makes a log of the same shape: an offset is the same place
//! in the same record each time.

mod frozen;
mod make;

use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use percolite::{Durability, ErrorKind, Timestamp};

use self::make::{Made, make};
use crate::client::Habits;
use crate::dice::Dice;
use crate::examine::{Examined, Subject, examine};
use crate::ledger::Ledger;
use crate::life::STREAMED;
use crate::order::{Clock, Order, keep, scratch};
use crate::outcome::Outcome;
use crate::report::{SWEEP_ACKNOWLEDGED, SWEEP_OFFSET, SWEEP_RECOVERED};
use crate::violation::Broken;
use crate::workload;

const LAYER: &str = "walsweep";
/// Stores of a run that has no time set; the log of the third is of transactions that stream.
const STORES: u64 = 3;
/// Places in a quick run, in all stores together.
const QUICK_PLACES: usize = 300;
/// Places in each store's log where time is short, of both sorts.
const TIMED_PLACES: usize = 200;
/// Every so many cases the store is opened a second time.
const AGAIN: u64 = 8;
/// What a disk writes or loses as a whole.
const PAGE_BYTES: usize = 4096;
/// Zeros behind every other cut.
const ROOM_BYTES: usize = 50_000;
/// Flipped bits, per hundred cuts.
const FLIPS: usize = 50;

/// Where a log is damaged, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Which store.
    pub seed: u64,
    /// Which byte.
    pub offset: usize,
    /// The bit that is flipped; without one the log's records end before the byte.
    pub bit: Option<u8>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LAYER}:{}/{}", self.seed, self.offset)?;
        self.bit.map_or(Ok(()), |bit| write!(f, ".{bit}"))
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (seed, place) = text.strip_prefix(LAYER)?.strip_prefix(':')?.split_once('/')?;
            let (offset, bit) = match place.split_once('.') {
                Some((offset, bit)) => (offset, Some(bit.parse().ok().filter(|bit| *bit < 8)?)),
                None => (place, None),
            };
            Some(Self { seed: seed.parse().ok()?, offset: offset.parse().ok()?, bit })
        };
        read().ok_or_else(|| {
            format!("{text:?} is no case of {LAYER}: write {LAYER}:SEED/OFFSET or {LAYER}:SEED/OFFSET.BIT")
        })
    }
}

/// Runs the layer.
///
/// # Errors
/// Where the order makes no sense, or no store can be made.
pub fn run(order: &Order) -> anyhow::Result<Outcome> {
    percolite::crashtest::mutate(order.mutant);
    let mut outcome = Outcome::of(LAYER);
    let clock = order.clock();
    if let Some(case) = &order.case {
        let case: Case = case.parse().map_err(anyhow::Error::msg)?;
        let made = make(case.seed)?;
        let last = made.log.len() - usize::from(case.bit.is_some());
        anyhow::ensure!(case.offset <= last, "the log of seed {} can be damaged at 0 to {last}", case.seed);
        run_case(order, &made, case, &mut outcome)?;
    } else {
        // One store of either protocol and one that streams, more while there is time.
        let mut seed = order.seed;
        while clock.allows(seed - order.seed, STORES) && !order.is_enough(&outcome) {
            let made = make(seed)?;
            outcome.count(STREAMED, made.streamed);
            sweep(order, &made, seed, clock, &mut outcome)?;
            seed += 1;
        }
    }
    outcome.seconds = clock.seconds();
    Ok(outcome)
}

fn sweep(order: &Order, made: &Made, seed: u64, clock: Clock, outcome: &mut Outcome) -> anyhow::Result<()> {
    let length = made.log.len();
    let mut dice = Dice::new(seed);
    let cases: Vec<Case> = if order.quick {
        // Evenly spread, each a random step on; two in three are cuts.
        let places = QUICK_PLACES / usize::try_from(STORES)?;
        let place = |at: usize, dice: &mut Dice| at * length / places + dice.below(length.div_ceil(places));
        let case = |at: usize, dice: &mut Dice| Case {
            seed,
            offset: place(at, dice).min(length - 1),
            bit: (at % 3 == 2).then(|| u8::try_from(dice.below(8)).unwrap_or_default()),
        };
        (0..places).map(|at| case(at, &mut dice)).collect()
    } else {
        let cuts = (0..=length).map(|offset| Case { seed, offset, bit: None });
        let flips = (0..length * FLIPS / 100).map(|_| Case {
            seed,
            offset: dice.below(length),
            bit: Some(u8::try_from(dice.below(8)).unwrap_or_default()),
        });
        let mut cases: Vec<Case> = cuts.chain(flips).collect();
        if order.time.is_some() {
            // There is no time for all of them: places of every sort, from many stores.
            cases = (0..TIMED_PLACES).filter_map(|_| dice.pick(&cases).copied()).collect();
        }
        cases
    };
    for case in cases {
        if order.time.is_some() && !clock.allows(0, 0) || order.is_enough(outcome) {
            break;
        }
        run_case(order, made, case, outcome)?;
    }
    Ok(())
}

fn run_case(order: &Order, made: &Made, case: Case, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut log = made.log.clone();
    if let Some(bit) = case.bit {
        *log.get_mut(case.offset).ok_or_else(|| anyhow::anyhow!("no such byte"))? ^= 1 << bit;
    } else {
        cut(&mut log, case.offset);
    }
    let copy = scratch()?;
    for (name, content) in &made.files {
        fs::write(copy.path().join(name), content)?;
    }
    fs::write(copy.path().join(&made.log_name), &log)?;
    let (mut ledger, acknowledged) = made.ledger_at(case.offset);
    let told = made.told();
    // Of those that wrote: the others leave nothing to be found.
    let writers = committed(&ledger);
    ledger.lose(0, Timestamp::from_u64(acknowledged.newest));
    let subject = Subject {
        folder: copy.path(),
        workload: workload::named(made.workload).ok_or_else(|| anyhow::anyhow!("no such workload"))?,
        habits: Habits { protocol: made.protocol, durability: Durability::Sync, long_values: 0 },
        life: 1,
        told: &told,
        notes: &[],
        again: outcome.cases.is_multiple_of(AGAIN),
    };
    let examined = catch_unwind(AssertUnwindSafe(|| examine(&subject, ledger))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "no text".into());
        Examined { broken: vec![Broken::new("never panics", text)], ..Examined::default() }
    });
    outcome.cases += 1;
    outcome.acknowledged += writers;
    outcome.transactions += made.transactions();
    outcome.unanswered += examined.unanswered;
    outcome.lost += if case.bit.is_some() { 1 } else { (made.log.len() - case.offset) as u64 };
    figures(outcome, case, writers, &examined);
    let broken = judge(made, case, &examined);
    if !broken.is_empty() {
        for (name, content) in &made.files {
            fs::write(copy.path().join(name), content)?;
        }
        fs::write(copy.path().join(&made.log_name), &log)?;
        outcome.failures.push(keep(order, &case.to_string(), copy.path(), Some(&examined.ledger), broken));
    }
    Ok(())
}

/// Behind an odd byte there is room then, and behind every other of these what a power cut may leave in it.
fn cut(log: &mut Vec<u8>, offset: usize) {
    let was = log.clone();
    log.truncate(offset);
    if offset % 2 == 1 {
        log.resize(offset + ROOM_BYTES, 0);
    }
    if offset % 4 == 3 {
        let pages = log.chunks_mut(PAGE_BYTES).zip(was.chunks(PAGE_BYTES)).skip(offset / PAGE_BYTES + 2).step_by(2);
        pages.for_each(|(page, was)| page.iter_mut().zip(was).for_each(|(byte, was)| *byte = *was));
    }
}

fn judge(made: &Made, case: Case, examined: &Examined) -> Vec<Broken> {
    let mut broken = examined.broken.clone();
    let Some(why) = &examined.refused else {
        let (all, there) = (committed(&made.ledger_at(usize::MAX).0), committed(&examined.settled));
        if case.bit.is_some() && there < all && made.goes_on_behind(case.offset) && !examined.told_lost {
            broken.push(Broken::new(
                "tells of a damaged log",
                format!("{there} of {all} commits are there, without a word"),
            ));
        }
        return broken;
    };
    let is_clear = matches!(why.kind(), ErrorKind::Corruption(text) if !text.is_empty());
    // A log may end anywhere after a crash, once the store is there.
    let may_refuse = case.bit.is_some() || case.offset < made.opened_at;
    if !(is_clear && may_refuse) {
        broken.push(Broken::new("opens again", format!("{:?}: {why}", why.kind())));
    }
    broken
}

/// The staircase: how much was acknowledged below an offset, and how much was there.
fn figures(outcome: &mut Outcome, case: Case, acknowledged: u64, examined: &Examined) {
    let there = committed(&examined.settled);
    let values: &[(&str, u64)] = match (case.bit, &examined.refused) {
        (None, None) => {
            &[(SWEEP_OFFSET, case.offset as u64), (SWEEP_ACKNOWLEDGED, acknowledged), (SWEEP_RECOVERED, there)]
        }
        (None, Some(_)) => &[("cut and refused at", case.offset as u64)],
        (Some(_), None) => &[("flipped at", case.offset as u64), ("there after the flip", there)],
        (Some(_), Some(_)) => &[("flipped and refused at", case.offset as u64)],
    };
    for (name, value) in values {
        outcome.count(name, *value);
    }
}

fn committed(ledger: &Ledger) -> u64 {
    ledger.entries().filter(|entry| entry.txn.commit_ts.is_some()).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_is_printed() {
        for case in [Case { seed: 1, offset: 77, bit: None }, Case { seed: 2, offset: 0, bit: Some(7) }] {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert!("walsweep:1/2.8".parse::<Case>().is_err());
    }

    #[test]
    fn a_seed_always_makes_a_log_of_the_same_shape() {
        for seed in [2, 3, 6] {
            let (one, other) = (make(seed).unwrap(), make(seed).unwrap());
            assert_eq!(one.log.len(), other.log.len(), "seed {seed}");
            for length in 0..=one.log.len() {
                assert_eq!(one.ledger_at(length).1.count, other.ledger_at(length).1.count, "seed {seed} at {length}");
            }
        }
    }
}
