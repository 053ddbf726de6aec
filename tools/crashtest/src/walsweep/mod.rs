//! A small store whose log is cut at every byte, and damaged bit by bit. Behind every other cut there are zeros, as the store fills
//! them in ahead of its frames, and in half of these cases every other page of what was there, as a power cut may leave them.
//!
//! A seed makes one store with one client, and the log's length is noted with everything that the client is told. What a reader
//! must make of the damaged log is what [`crate::segments`] says: which frames it can read, and whether anything whole
//! behind them shows that acknowledged commits are missing. If so the store must refuse to open, with a clear word, and open without
//! these commits once the loss is accepted; otherwise it must open. A log that ends early, with nothing behind its end but zeros,
//! never shows that. A store that opens has everything that was acknowledged while the log was no longer than what can be read of
//! it, and of the rest a prefix in the order of commits; and it never panics. So a flipped bit in one of a header's two copies
//! costs nothing, and one in a frame is told of as soon as a later frame is a witness.
//!
//! The store has a clock and dice of its own, so that a seed always makes a log of the same shape. Only the frames that mark an idle
//! log come when they like; so a case names a place that is counted without them, as `make` says, and is the same byte in the
//! same frame each time.

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
use crate::segments::{self, HEADER_BYTES, Reading};
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
const ZEROS_BYTES: usize = 50_000;
/// Places of the two headers, which come first; a sweep flips each of their bits.
const HEADER_PLACES: usize = 2 * HEADER_BYTES;
/// Of so many places in a quick run one is in a header.
const QUICK_HEADERS: usize = 12;
/// Flipped bits, per hundred cuts.
const FLIPS: usize = 50;

/// Where a log is damaged, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Which store.
    pub seed: u64,
    /// Which place: a byte, counted as `make` says.
    pub place: usize,
    /// The bit that is flipped; without one the log ends before the byte.
    pub bit: Option<u8>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LAYER}:{}/{}", self.seed, self.place)?;
        self.bit.map_or(Ok(()), |bit| write!(f, ".{bit}"))
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (seed, place) = text.strip_prefix(LAYER)?.strip_prefix(':')?.split_once('/')?;
            let (place, bit) = match place.split_once('.') {
                Some((place, bit)) => (place, Some(bit.parse().ok().filter(|bit| *bit < 8)?)),
                None => (place, None),
            };
            Some(Self { seed: seed.parse().ok()?, place: place.parse().ok()?, bit })
        };
        read().ok_or_else(|| {
            format!("{text:?} is no case of {LAYER}: write {LAYER}:SEED/PLACE or {LAYER}:SEED/PLACE.BIT")
        })
    }
}

/// Runs the layer.
///
/// # Errors
/// Where the order makes no sense, or no store can be made.
pub fn run(order: &Order) -> anyhow::Result<Outcome> {
    percolite::crashtest::enable_mutant(order.mutant);
    let mut outcome = Outcome::of(LAYER);
    let clock = order.clock();
    if let Some(case) = &order.case {
        let case: Case = case.parse().map_err(anyhow::Error::msg)?;
        let made = make(case.seed)?;
        let last = made.log.len() - usize::from(case.bit.is_some());
        anyhow::ensure!(case.place <= last, "the log of seed {} can be damaged at 0 to {last}", case.seed);
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
    let mut dice = Dice::new(seed);
    let mut cases = if order.quick { quick_cases(made, seed, &mut dice) } else { all_cases(made, seed, &mut dice) };
    if order.time.is_some() {
        // There is no time for all of them: places of every sort, from many stores.
        cases = (0..TIMED_PLACES).filter_map(|_| dice.pick(&cases).copied()).collect();
    }
    cases.sort_by_key(|case| (case.bit.is_some(), made.offset(case.place)));
    for case in cases {
        if order.time.is_some() && !clock.allows(0, 0) || order.is_enough(outcome) {
            break;
        }
        run_case(order, made, case, outcome)?;
    }
    Ok(())
}

/// Evenly spread over what is the same in every run, each a random step on; two in three are cuts.
fn quick_cases(made: &Made, seed: u64, dice: &mut Dice) -> Vec<Case> {
    let places = QUICK_PLACES / usize::try_from(STORES).unwrap_or(1);
    let frames = made.steady - HEADER_PLACES;
    let case = |at: usize| Case {
        seed,
        place: match at % QUICK_HEADERS {
            0 => dice.below(HEADER_PLACES),
            _ => (HEADER_PLACES + at * frames / places + dice.below(frames.div_ceil(places))).min(made.steady - 1),
        },
        bit: (at % 3 == 2 || at.is_multiple_of(2 * QUICK_HEADERS)).then(|| bit(dice)),
    };
    (0..places).map(case).collect()
}

fn all_cases(made: &Made, seed: u64, dice: &mut Dice) -> Vec<Case> {
    let length = made.log.len();
    let cuts = (0..=length).map(|place| Case { seed, place, bit: None });
    let of_headers = (0..HEADER_PLACES).flat_map(|place| (0..8).map(move |bit| Case { seed, place, bit: Some(bit) }));
    let flips = (0..length * FLIPS / 100).map(|_| Case { seed, place: dice.below(length), bit: Some(bit(dice)) });
    cuts.chain(of_headers).chain(flips).collect()
}

fn bit(dice: &mut Dice) -> u8 {
    u8::try_from(dice.below(8)).unwrap_or_default()
}

fn run_case(order: &Order, made: &Made, case: Case, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut log = made.log.clone();
    let offset = made.offset(case.place);
    if let Some(bit) = case.bit {
        *log.get_mut(offset).ok_or_else(|| anyhow::anyhow!("no such byte"))? ^= 1 << bit;
    } else {
        cut(&mut log, offset);
    }
    let reading = segments::read(&[&log]);
    let copy = scratch()?;
    made.write(copy.path(), &log)?;
    let (mut ledger, acknowledged) = made.ledger_at(reading.map_or(0, |reading| reading.end));
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
        accepts: None,
    };
    let mut examined = examine_safely(&subject, ledger.clone());
    outcome.cases += 1;
    outcome.acknowledged += writers;
    outcome.transactions += made.transactions();
    outcome.lost += if case.bit.is_some() { 1 } else { (made.log.len() - offset) as u64 };
    figures(outcome, case, offset, writers, &examined);
    let mut broken = judge(reading, &examined);
    if let (Some(why), true) = (&examined.refused, broken.is_empty()) {
        let accepts = fingerprint(&why.to_string());
        let accepted = examine_safely(&Subject { accepts, ..subject }, ledger);
        broken = judge_accepted(&accepted);
        examined = accepted;
    }
    outcome.unanswered += examined.unanswered;
    if !broken.is_empty() {
        fs::remove_dir_all(copy.path())?;
        made.write(copy.path(), &log)?;
        outcome.failures.push(keep(order, &case.to_string(), copy.path(), Some(&examined.ledger), broken));
    }
    Ok(())
}

fn examine_safely(subject: &Subject<'_>, ledger: Ledger) -> Examined {
    catch_unwind(AssertUnwindSafe(|| examine(subject, ledger))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "no text".into());
        Examined { broken: vec![Broken::new("never panics", text)], ..Examined::default() }
    })
}

/// Behind an odd byte there are zeros then, and behind every other of these what a power cut may leave in them.
fn cut(log: &mut Vec<u8>, offset: usize) {
    let was = log.clone();
    log.truncate(offset);
    if offset % 2 == 1 {
        log.resize(offset + ZEROS_BYTES, 0);
    }
    if offset % 4 == 3 {
        let pages = log.chunks_mut(PAGE_BYTES).zip(was.chunks(PAGE_BYTES)).skip(offset / PAGE_BYTES + 2).step_by(2);
        pages.for_each(|(page, was)| page.iter_mut().zip(was).for_each(|(byte, was)| *byte = *was));
    }
}

/// Whether the store opens where it must, and refuses where it must.
fn judge(reading: Option<Reading>, examined: &Examined) -> Vec<Broken> {
    let mut broken = examined.broken.clone();
    match (&examined.refused, reading) {
        (None, Some(reading)) if reading.is_loss() => broken.push(Broken::new(
            "tells of a damaged log",
            format!("it opens without a word, and what is there ends before a durable commit: {reading:?}"),
        )),
        (None, _) => {}
        // Without any header, whether there was a log is not known.
        (Some(why), reading) => {
            let is_clear = matches!(why.kind(), ErrorKind::Corruption(text)
                if fingerprint(text).is_some() && text.contains("Builder::accept_lost_commits"));
            if !is_clear || reading.is_some_and(|reading| !reading.is_loss()) {
                broken.push(Broken::new("opens again", format!("{:?}: {why}; {reading:?}", why.kind())));
            }
        }
    }
    broken
}

/// The same of a store that is opened though commits are lost.
fn judge_accepted(examined: &Examined) -> Vec<Broken> {
    let mut broken = examined.broken.clone();
    if let Some(why) = &examined.refused {
        broken.push(Broken::new("an accepted loss opens", format!("{:?}: {why}", why.kind())));
    } else if !examined.told_lost {
        broken.push(Broken::new("tells of a damaged log", "a loss was accepted, and the store does not list it"));
    }
    broken
}

/// By which name the loss in a refusal is accepted.
pub fn fingerprint(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("(loss ")?;
    rest.split_once(')').filter(|(name, _)| name.len() == 16).and_then(|(name, _)| u64::from_str_radix(name, 16).ok())
}

/// The staircase: how much was acknowledged below an offset, and how much was there.
fn figures(outcome: &mut Outcome, case: Case, offset: usize, acknowledged: u64, examined: &Examined) {
    let there = committed(&examined.settled);
    let values: &[(&str, u64)] = match (case.bit, &examined.refused) {
        (None, None) => &[(SWEEP_OFFSET, offset as u64), (SWEEP_ACKNOWLEDGED, acknowledged), (SWEEP_RECOVERED, there)],
        (None, Some(_)) => &[("cut and refused at", offset as u64)],
        (Some(_), None) => &[("flipped at", offset as u64), ("there after the flip", there)],
        (Some(_), Some(_)) => &[("flipped and refused at", offset as u64)],
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
        for case in [Case { seed: 1, place: 77, bit: None }, Case { seed: 2, place: 0, bit: Some(7) }] {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert!("walsweep:1/2.8".parse::<Case>().is_err());
    }

    #[test]
    fn every_byte_of_the_log_is_a_place() {
        let made = make(1).unwrap();
        let mut offsets: Vec<usize> = (0..=made.log.len()).map(|place| made.offset(place)).collect();
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq(0..=made.log.len()));
    }

    #[test]
    fn a_seed_always_makes_a_log_of_the_same_shape() {
        for seed in [2, 3, 6] {
            let (one, other) = (make(seed).unwrap(), make(seed).unwrap());
            assert_eq!(one.steady, other.steady, "seed {seed}");
            for place in (0..one.steady).step_by(61) {
                let count = |made: &Made| made.ledger_at(made.offset(place)).1.count;
                assert_eq!(count(&one), count(&other), "seed {seed} at {place}");
            }
        }
    }
}
