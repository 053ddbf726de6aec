//! A small store whose log is truncated at every byte, has a flipped bit, or has files that were
//! removed, cut off or exchanged (see `whole_files`).
//!
//! Every other truncated log ends with zeros, as the store preallocates them. Half of the logs with
//! zeros also have every other page of the old content, as a power cut may leave it.
//!
//! A seed makes a store with one client and records the length of the log at every answer.
//! [`crate::log_parser`] decides what a replay of the damaged log must find: which frames are
//! readable, and whether a later valid frame or the sync record proves that acknowledged commits
//! are missing. With such a proof the store must refuse to open with a clear error, and must open
//! without these commits when the loss is accepted. Without a proof it must open. A log that ends
//! early, followed by zeros only, proves no loss if there is no sync record.
//!
//! A store that opens has every commit that was acknowledged before the log grew beyond the part
//! that is still readable. Of the later commits it has a prefix in commit order. Opening never
//! panics. A flipped bit in one of the two header copies loses nothing, because the other copy is
//! intact. A flipped bit in a frame is detected if a later frame proves that the damaged one was
//! durable.
//!
//! The store has a deterministic clock and random numbers, so a seed always makes a log of the same
//! shape, and a case names the same byte of the same frame each time.

mod damage;
mod deterministic_env;
mod quarantine;
mod sample_store;
mod whole_files;

use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use percolite::{Durability, ErrorKind, Timestamp};

use self::sample_store::{SampleStore, build};
use crate::child::LARGE_COMMITS;
use crate::client::ClientConfig;
use crate::client_log::ClientLog;
use crate::layer_args::{LayerArgs, RunClock, save_failure, scratch_dir};
use crate::layer_result::LayerResult;
use crate::log_parser::{self, HEADER_BYTES, ReplayResult};
use crate::report::{LOG_ACKNOWLEDGED, LOG_OFFSET, LOG_RECOVERED};
use crate::rng::SeededRng;
use crate::verify_store::{StoreReport, StoreUnderTest, verify};
use crate::violation::Violation;
use crate::workload;

const LAYER: &str = "log-damage";
/// The number of stores of a run without a time limit. One of them has large transactions.
const STORES: u64 = 3;
/// The number of positions of a quick run, in all stores together.
const QUICK_POSITIONS: usize = 300;
/// The number of positions in each store of a run with a time limit.
const TIMED_POSITIONS: usize = 200;
/// In one case of this many the store's directory is judged.
const CHECK_FILES_EVERY: u64 = 16;
/// The unit that a disk writes or loses.
const PAGE_BYTES: usize = 4096;
/// Zeros after a truncated log.
const ZEROS_BYTES: usize = 50_000;
/// The number of positions in the two headers, which come first. A full run flips each bit there.
const HEADER_POSITIONS: usize = 2 * HEADER_BYTES;
/// One position in this many of a quick run is in a header.
const QUICK_HEADERS: usize = 12;
/// Flipped bits for every hundred truncations.
const FLIPS: usize = 50;

/// Where a log is damaged, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The seed of the store.
    pub seed: u64,
    /// The position: a byte, counted as `sample_store` says.
    pub position: usize,
    /// The flipped bit; `None` truncates the log before the byte.
    pub bit: Option<u8>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LAYER}:{}/{}", self.seed, self.position)?;
        self.bit.map_or(Ok(()), |bit| write!(f, ".{bit}"))
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (seed, position) = text.strip_prefix(LAYER)?.strip_prefix(':')?.split_once('/')?;
            let (position, bit) = match position.split_once('.') {
                Some((position, bit)) => (position, Some(bit.parse().ok().filter(|bit| *bit < 8)?)),
                None => (position, None),
            };
            Some(Self { seed: seed.parse().ok()?, position: position.parse().ok()?, bit })
        };
        read().ok_or_else(|| {
            format!("invalid case {text:?}; expected {LAYER}:SEED/POSITION or {LAYER}:SEED/POSITION.BIT")
        })
    }
}

/// Runs the layer.
///
/// # Errors
/// An invalid case, and errors of the harness.
pub fn run(args: &LayerArgs) -> anyhow::Result<LayerResult> {
    percolite::mutants::enable_mutant(args.mutant);
    let mut outcome = LayerResult::new(LAYER);
    let clock = args.clock();
    if let Some(case) = &args.case {
        if whole_files::is_case(case) {
            whole_files::run_case(args, case, &mut outcome)?;
            outcome.seconds = clock.seconds();
            return Ok(outcome);
        }
        let case: Case = case.parse().map_err(anyhow::Error::msg)?;
        let sample = build(case.seed)?;
        let last = sample.log.len() - usize::from(case.bit.is_some());
        anyhow::ensure!(case.position <= last, "the log of seed {} has the positions 0 to {last}", case.seed);
        run_case(args, &sample, case, &mut outcome)?;
    } else {
        // There is one store for each protocol, and one with large transactions. With a time limit,
        // more follow.
        let mut seed = args.seed;
        while clock.allows(seed - args.seed, STORES) && !args.should_stop(&outcome) {
            let sample = build(seed)?;
            outcome.count(LARGE_COMMITS, sample.large_commits);
            run_store(args, &sample, seed, clock, &mut outcome)?;
            if !args.quick || seed == args.seed {
                whole_files::run(args, seed, clock, &mut outcome)?;
            }
            seed += 1;
        }
    }
    outcome.seconds = clock.seconds();
    Ok(outcome)
}

fn run_store(
    args: &LayerArgs,
    sample: &SampleStore,
    seed: u64,
    clock: RunClock,
    outcome: &mut LayerResult,
) -> anyhow::Result<()> {
    let mut rng = SeededRng::new(seed);
    let mut cases = if args.quick { quick_cases(sample, seed, &mut rng) } else { all_cases(sample, seed, &mut rng) };
    if args.time.is_some() {
        // A random sample of all kinds of positions leaves time for many stores.
        cases = (0..TIMED_POSITIONS).filter_map(|_| rng.pick(&cases).copied()).collect();
    }
    cases.sort_by_key(|case| (case.bit.is_some(), sample.offset(case.position)));
    for case in cases {
        if args.time.is_some() && !clock.allows(0, 0) || args.should_stop(outcome) {
            break;
        }
        run_case(args, sample, case, outcome)?;
    }
    Ok(())
}

/// Positions spread evenly over headers and frames, with a random offset. About two in three are
/// truncations.
fn quick_cases(sample: &SampleStore, seed: u64, rng: &mut SeededRng) -> Vec<Case> {
    let places = QUICK_POSITIONS / usize::try_from(STORES).unwrap_or(1);
    let frames = sample.content_bytes - HEADER_POSITIONS;
    let case = |at: usize| Case {
        seed,
        position: match at % QUICK_HEADERS {
            0 => rng.below(HEADER_POSITIONS),
            _ => (HEADER_POSITIONS + at * frames / places + rng.below(frames.div_ceil(places)))
                .min(sample.content_bytes - 1),
        },
        bit: (at % 3 == 2 || at.is_multiple_of(2 * QUICK_HEADERS)).then(|| bit(rng)),
    };
    (0..places).map(case).collect()
}

fn all_cases(sample: &SampleStore, seed: u64, rng: &mut SeededRng) -> Vec<Case> {
    let length = sample.log.len();
    let cuts = (0..=length).map(|position| Case { seed, position, bit: None });
    let header_flips =
        (0..HEADER_POSITIONS).flat_map(|position| (0..8).map(move |bit| Case { seed, position, bit: Some(bit) }));
    let flips = (0..length * FLIPS / 100).map(|_| Case { seed, position: rng.below(length), bit: Some(bit(rng)) });
    cuts.chain(header_flips).chain(flips).collect()
}

fn bit(rng: &mut SeededRng) -> u8 {
    u8::try_from(rng.below(8)).unwrap_or_default()
}

fn run_case(args: &LayerArgs, sample: &SampleStore, case: Case, outcome: &mut LayerResult) -> anyhow::Result<()> {
    let mut log = sample.log.clone();
    let offset = sample.offset(case.position);
    if let Some(bit) = case.bit {
        *log.get_mut(offset).ok_or_else(|| anyhow::anyhow!("the position is outside of the log"))? ^= 1 << bit;
    } else {
        cut(&mut log, offset);
    }
    let replayed = log_parser::replay(&[&log], sample.record);
    let dir = scratch_dir()?;
    sample.write(dir.path(), &log)?;
    let (mut client_log, acknowledged) = sample.log_at(replayed.map_or(0, |replayed| replayed.end));
    let acknowledged_commits = sample.acknowledged_commits();
    // The acknowledged commits with writes: a commit without writes leaves nothing to find.
    let writers = committed(&client_log);
    client_log.allow_loss(0, Timestamp::from_u64(acknowledged.newest));
    let target = StoreUnderTest {
        store_dir: dir.path(),
        workload: workload::named(sample.workload).ok_or_else(|| anyhow::anyhow!("unknown workload"))?,
        config: ClientConfig { protocol: sample.protocol, durability: Durability::Sync, long_value_every: 0 },
        incarnation: 1,
        acknowledged: &acknowledged_commits,
        lock_events: &[],
        reopen: true,
        check_files: outcome.cases.is_multiple_of(CHECK_FILES_EVERY),
        is_checkpoint: false,
        accept_loss: None,
    };
    let mut report = verify_no_panic(&target, client_log.clone());
    outcome.cases += 1;
    outcome.acknowledged += writers;
    outcome.transactions += sample.transactions();
    outcome.unsynced_lost += if case.bit.is_some() { 1 } else { (sample.log.len() - offset) as u64 };
    record_metrics(outcome, case, offset, writers, &report);
    let mut violations = check_opening(replayed, &report);
    if let (Some(error), true) = (&report.open_error, violations.is_empty()) {
        let accept_loss = fingerprint(&error.to_string());
        let accepted = verify_no_panic(&StoreUnderTest { accept_loss, ..target }, client_log);
        violations = check_accepted(&accepted);
        if let (Some(loss), true) = (accept_loss, violations.is_empty()) {
            let before = [(sample.log_name.clone(), log.clone())];
            violations.extend(quarantine::check(dir.path(), loss, &before).err());
        }
        report = accepted;
    }
    outcome.unacknowledged_commits += report.unacknowledged_commits;
    if !violations.is_empty() {
        fs::remove_dir_all(dir.path())?;
        sample.write(dir.path(), &log)?;
        outcome.failures.push(save_failure(args, &case.to_string(), dir.path(), Some(&report.client_log), violations));
    }
    Ok(())
}

fn verify_no_panic(target: &StoreUnderTest<'_>, client_log: ClientLog) -> StoreReport {
    catch_unwind(AssertUnwindSafe(|| verify(target, client_log))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "no text".into());
        StoreReport { violations: vec![Violation::new("no panic", text)], ..StoreReport::default() }
    })
}

/// Truncates the log. After an odd offset zeros follow, and after every second odd offset also some
/// old pages.
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

/// Checks that the store opens if it must, and refuses to open if it must.
fn check_opening(replayed: Option<ReplayResult>, report: &StoreReport) -> Vec<Violation> {
    let mut violations = report.violations.clone();
    match (&report.open_error, replayed) {
        (None, Some(replayed)) if replayed.is_loss() => violations.push(Violation::new(
            "a damaged log is detected",
            format!("the store opens without an error, and a durable commit is missing: {replayed:?}"),
        )),
        (None, _) => {}
        (Some(error), replayed) => {
            let is_clear = matches!(error.kind(), ErrorKind::Corruption(text)
                if fingerprint(text).is_some() && text.contains("Builder::accept_data_loss"));
            // A refusal is right if the log has lost commits. If no header is valid (`replayed` is
            // `None`) nothing is known of the log, and a refusal is right, too.
            if !is_clear || replayed.is_some_and(|replayed| !replayed.is_loss()) {
                violations
                    .push(Violation::new("the store opens", format!("{:?}: {error}; {replayed:?}", error.kind())));
            }
        }
    }
    violations
}

/// Checks a store that was opened with an accepted loss.
fn check_accepted(report: &StoreReport) -> Vec<Violation> {
    let mut violations = report.violations.clone();
    if let Some(error) = &report.open_error {
        violations.push(Violation::new("an accepted loss opens", format!("{:?}: {error}", error.kind())));
    } else if !report.lists_loss {
        violations
            .push(Violation::new("a damaged log is detected", "a loss was accepted, and the store does not list it"));
    }
    violations
}

/// The fingerprint of the loss, from the error text of a refused opening.
pub fn fingerprint(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("(loss ")?;
    rest.split_once(')').filter(|(name, _)| name.len() == 16).and_then(|(name, _)| u64::from_str_radix(name, 16).ok())
}

/// Records how many commits were acknowledged below an offset, and how many were recovered.
fn record_metrics(outcome: &mut LayerResult, case: Case, offset: usize, acknowledged: u64, report: &StoreReport) {
    let there = committed(&report.resolved_log);
    let values: &[(&str, u64)] = match (case.bit, &report.open_error) {
        (None, None) => &[(LOG_OFFSET, offset as u64), (LOG_ACKNOWLEDGED, acknowledged), (LOG_RECOVERED, there)],
        (None, Some(_)) => &[("truncated and refused at", offset as u64)],
        (Some(_), None) => &[("flipped at", offset as u64), ("recovered after the flip", there)],
        (Some(_), Some(_)) => &[("flipped and refused at", offset as u64)],
    };
    for (name, value) in values {
        outcome.count(name, *value);
    }
}

fn committed(client_log: &ClientLog) -> u64 {
    client_log.entries().filter(|entry| entry.txn.commit_ts.is_some()).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_round_trip() {
        for case in [Case { seed: 1, position: 77, bit: None }, Case { seed: 2, position: 0, bit: Some(7) }] {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert!("log-damage:1/2.8".parse::<Case>().is_err());
    }

    #[test]
    fn every_byte_of_the_log_is_a_position() {
        let sample = build(1).unwrap();
        let mut offsets: Vec<usize> = (0..=sample.log.len()).map(|position| sample.offset(position)).collect();
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq(0..=sample.log.len()));
    }

    #[test]
    fn a_seed_makes_logs_of_the_same_shape() {
        for seed in [2, 3, 6] {
            let (one, other) = (build(seed).unwrap(), build(seed).unwrap());
            assert_eq!(one.content_bytes, other.content_bytes, "seed {seed}");
            for position in (0..one.content_bytes).step_by(61) {
                let count = |sample: &SampleStore| sample.log_at(sample.offset(position)).1.count;
                assert_eq!(count(&one), count(&other), "seed {seed} at {position}");
            }
        }
    }
}
