//! Power cuts: a store on a real file system that stops from one moment to the next, and forgets what was not synced.
//!
//! A store lives a few lives on one disk. In each, clients run in a process of their own until the power goes at a random
//! moment; the file system is shut down without writing its journal, the process is killed, and the file system mounted
//! again. Then a copy of the store is opened and judged: what was acknowledged as durable is there, and what was not is lost
//! from the end only. The next life goes on with the original.
//!
//! A cut that loses nothing proves nothing. So the harness itself writes, just before each cut, bytes behind what it has
//! synced in a file, and a new file that it does not sync, and counts how often they are gone. And the log of the store, too,
//! must have been longer before some cut than after it.
//!
//! [`logs`] does by hand what a cut does rarely: the last segment of the log but one loses its end and the last one does not.

mod control;
pub mod logs;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use percolite::Durability;

use crate::dice::Dice;
use crate::disk::Disk;
use crate::examine::{Examined, Subject, examine, examine_restored};
use crate::interrupt;
use crate::ledger::Ledger;
use crate::life::{Life, Promise, SYNCS, count_streamed, load_of, none_streamed};
use crate::mutex::after;
use crate::mutex::note::Note;
use crate::order::{Clock, Order, copy_folder, keep, scratch};
use crate::outcome::Outcome;
use crate::pipe::{CrashHook, Heard};
use crate::restores::Restores;
use crate::segments::{segments, written};
use crate::violation::Broken;
use crate::workload;

const LAYER: &str = "powercut";
const DISK_KIB: u64 = 96 << 10;
const QUICK_CUTS: u64 = 20;
const CUTS: u64 = 200;
/// Of five disks in a row the stores of these hand down all the time, and their clients sync nothing.
const HAND_DOWN: [u64; 2] = [2, 4];
/// Power cuts of one disk.
const LIVES: u32 = 4;
/// A process that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(30);

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A disk whose power is cut a few times.
    Disk(u64),
    /// A log that loses its end.
    Log(u64),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(seed) => write!(f, "{LAYER}:{seed}"),
            Self::Log(seed) => write!(f, "{LAYER}:log-{seed}"),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no case of {LAYER}: write {LAYER}:SEED or {LAYER}:log-SEED");
        let case = text.strip_prefix(LAYER).and_then(|rest| rest.strip_prefix(':')).ok_or_else(wrong)?;
        match case.strip_prefix("log-") {
            Some(seed) => seed.parse().map(Self::Log).map_err(|_| wrong()),
            None => case.parse().map(Self::Disk).map_err(|_| wrong()),
        }
    }
}

/// Runs the layer.
///
/// # Errors
/// Where the order makes no sense.
pub fn run(order: &Order) -> anyhow::Result<Outcome> {
    percolite::crashtest::enable_mutant(order.mutant);
    let mut outcome = Outcome::of(LAYER);
    let clock = order.clock();
    match order.case.as_deref().map(str::parse).transpose().map_err(anyhow::Error::msg)? {
        Some(Case::Disk(seed)) => run_disk(order, seed, LIVES, &mut outcome),
        Some(Case::Log(seed)) => logs::run_log(order, seed, &mut outcome),
        None => {
            run_all(order, clock, &mut outcome);
            if outcome.skipped.is_none() && outcome.failures.is_empty() && !interrupt::came() {
                assert_lost(order, &mut outcome);
            }
        }
    }
    outcome.seconds = clock.seconds();
    Ok(outcome)
}

fn run_all(order: &Order, clock: Clock, outcome: &mut Outcome) {
    let enough = if order.quick { QUICK_CUTS } else { CUTS };
    let mut seed = order.seed;
    while clock.allows(outcome.cases, enough) && outcome.skipped.is_none() && !order.is_enough(outcome) {
        let left = if order.time.is_some() { u64::from(LIVES) } else { enough - outcome.cases };
        run_disk(order, seed, LIVES.min(u32::try_from(left).unwrap_or(LIVES)), outcome);
        seed += 1;
    }
    // These need no disk of their own.
    for seed in order.seed..order.seed + if order.quick { 1 } else { 4 } {
        if !order.is_enough(outcome) {
            logs::run_log(order, seed, outcome);
        }
    }
}

/// Power cuts that took nothing are no evidence.
fn assert_lost(order: &Order, outcome: &mut Outcome) {
    let replay = order.replay(&Case::Disk(order.seed).to_string());
    if let Some(broken) = none_streamed(outcome) {
        outcome.failures.push(crate::outcome::Failure { replay, broken: vec![broken], kept: None });
    }
    for figure in [control::TAILS, control::ENTRIES, LOG_BYTES] {
        if sum(outcome, figure) <= 0.0 {
            let what = format!("{} power cuts and {figure}: none", outcome.cases);
            let failure = crate::outcome::Failure {
                replay: order.replay(&Case::Disk(order.seed).to_string()),
                broken: vec![Broken::new("harness", what)],
                kept: None,
            };
            outcome.failures.push(failure);
        }
    }
}

const LOG_BYTES: &str = "lost bytes of the store's log";

fn sum(outcome: &Outcome, figure: &str) -> f64 {
    outcome.figures.get(figure).into_iter().flatten().sum()
}

/// What a seed decides; each life has a seed of its own.
fn plan(seed: u64, order: &Order, disk: &Disk, dice: &mut Dice) -> Life {
    let (workload, stream_at_bytes) = load_of(seed, dice);
    let promises = [Promise::Sync, Promise::Sync, Promise::Buffered, Promise::Mixed];
    let small = dice.one_in(3);
    // A hand-down whose segment nothing else syncs shows whether it syncs the segment first.
    let unsynced = HAND_DOWN.contains(&(seed % 5));
    Life {
        folder: disk.place().join("store"),
        number: 0,
        workload: workload.into(),
        stream_at_bytes,
        two_phase: seed.is_multiple_of(2),
        promise: dice
            .pick(&promises)
            .map_or(Promise::Sync, |promise| if unsynced { Promise::Buffered } else { *promise }),
        clients: 2 + dice.below(4),
        transactions: 0,
        long_values: [0, 2, 8][dice.below(3)],
        history_ms: [None, Some(20)][dice.below(2)],
        // Enough for generations to be handed down within a life.
        write_buffers: if unsynced { 1 << 20 } else { 4 << 20 },
        filler: if small || unsynced { 30 << 10 } else { 0 },
        syncs: if unsynced { 0 } else { SYNCS },
        seed: 0,
        mutant: order.mutant.map(|mutant| mutant.name().into()),
        restores: if dice.one_in(3) { 8 } else { 0 },
        lockers: [0, 3][dice.below(2)],
        ..Life::default()
    }
}

fn run_disk(order: &Order, seed: u64, lives: u32, outcome: &mut Outcome) {
    let mut disk = match Disk::ext4(DISK_KIB) {
        Ok(disk) => disk,
        Err(why) => {
            outcome.skipped = Some(why);
            return;
        }
    };
    let mut dice = Dice::new(seed);
    let mut life = plan(seed, order, &disk, &mut dice);
    let mut promised = Promised::default();
    for number in 0..lives {
        if interrupt::came() {
            break;
        }
        life.number = number;
        life.seed = dice.bits();
        let judged =
            cut_once(&mut disk, &life, &mut promised, &mut dice, outcome).and_then(|()| judge(&disk, &life, &promised));
        match judged {
            Ok(judged) => {
                outcome.cases += 1;
                outcome.unanswered += judged.examined.unanswered;
                promised.ledger = judged.examined.settled.clone();
                if !judged.examined.broken.is_empty() {
                    let Judged { examined, kept } = judged;
                    let case = Case::Disk(seed).to_string();
                    let failure = keep(order, &case, kept.path(), Some(&examined.ledger), examined.broken);
                    outcome.failures.push(failure);
                    return;
                }
            }
            Err(_) if interrupt::came() => return,
            Err(why) => {
                let broken = vec![Broken::new("harness", why)];
                let folder = disk.window();
                outcome.failures.push(keep(order, &Case::Disk(seed).to_string(), &folder, None, broken));
                return;
            }
        }
    }
    outcome.transactions += promised.ledger.entries().count() as u64;
}

/// What the clients of all lives were promised.
#[derive(Default)]
struct Promised {
    ledger: Ledger,
    told: BTreeMap<u64, u64>,
    restores: Restores,
    notes: Vec<Note>,
}

/// One life, up to the moment at which the disk is mounted again.
fn cut_once(
    disk: &mut Disk,
    life: &Life,
    promised: &mut Promised,
    dice: &mut Dice,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let arguments = life.arguments().map_err(|why| why.to_string())?;
    let ledger = std::mem::take(&mut promised.ledger);
    let acknowledged = ledger.acknowledged();
    let mut child = CrashHook::start(disk.command(&arguments), ledger).map_err(|why| format!("no process: {why}"))?;
    // Mostly while the clients run; now and then while the store opens.
    if !dice.one_in(6) {
        child.wait(SILENCE, |heard| heard.ready);
        if interrupt::came() {
            return Err("interrupted".into());
        }
    }
    let until = Duration::from_micros(dice.below(150_000) as u64);
    std::thread::sleep(until);
    let before = child.heard();
    if let Some(call) = before.failed.first() {
        return Err(format!("an error for no reason: {}: {}", call.call, call.text));
    }
    drop(before);

    control::write(&disk.window()).map_err(|why| format!("control files: {why}"))?;
    // Of a process that stands still it is known what the cut will take: nobody can read the files afterwards.
    if dice.one_in(2) {
        child.stop().map_err(|why| format!("the process does not stop: {why}"))?;
    }
    let long = log_bytes(&disk.window().join("store"));
    // A sync that is under way when ext4 goes down may succeed though its file's new length is lost: the kernel looks for the
    // shutdown when a sync begins. Real disks do not do that, so what is heard from here on is no promise.
    child.heard().deaf = true;
    disk.cut().map_err(|why| format!("the power stays on: {why}"))?;
    std::thread::sleep(Duration::from_micros(dice.below(10_000) as u64));
    let (heard, _) = child.end();
    disk.remount()?;
    let short = log_bytes(&disk.window().join("store"));

    let Heard { mut ledger, durable_ts, streamed, restores, notes, .. } = heard;
    promised.notes.extend(notes);
    promised.notes.extend(after::gone(&promised.notes));
    promised.restores.goes_on_with(restores);
    count_streamed(outcome, life, streamed);
    outcome.acknowledged += (ledger.acknowledged() - acknowledged) as u64;
    promised.told.extend(ledger.told());
    ledger.lose(life.number, percolite::Timestamp::from_u64(durable_ts));
    let lost = control::count(&disk.window()).map_err(|why| format!("control files: {why}"))?;
    outcome.lost += lost.tails + lost.entries;
    outcome.count(control::TAILS, lost.tails);
    outcome.count(control::ENTRIES, lost.entries);
    outcome.count(LOG_BYTES, long.saturating_sub(short));
    promised.ledger = ledger;
    Ok(())
}

struct Judged {
    examined: Examined,
    kept: tempfile::TempDir,
}

/// Judges a copy; a second copy is kept as it was found.
fn judge(disk: &Disk, life: &Life, promised: &Promised) -> Result<Judged, String> {
    let found = disk.window().join("store");
    let (kept, copy) = (scratch().map_err(text)?, scratch().map_err(text)?);
    if found.is_dir() {
        copy_folder(&found, kept.path()).map_err(text)?;
        copy_folder(&found, copy.path()).map_err(text)?;
    }
    let workload = workload::named(&life.workload).ok_or("no such workload")?;
    let subject = Subject {
        folder: copy.path(),
        workload,
        habits: life.habits(Durability::Sync),
        life: LIVES + 1,
        told: &promised.told,
        notes: &promised.notes,
        again: true,
        accepts: None,
    };
    let mut examined = examine(&subject, promised.ledger.clone());
    if let Some(why) = &examined.refused {
        examined.broken.push(Broken::new("opens again", why.to_string()));
    } else if promised.restores.were_made() {
        let judged = examine_restored(copy.path(), &promised.restores).map_err(|why| why.to_string())?;
        examined.broken.extend(judged);
    }
    Ok(Judged { examined, kept })
}

fn text(why: std::io::Error) -> String {
    why.to_string()
}

/// Bytes of frames in the log's segments.
fn log_bytes(folder: &Path) -> u64 {
    let files = segments(folder).unwrap_or_default().into_iter();
    files.filter_map(|file| std::fs::read(file).ok()).map(|file| written(&file) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_is_printed() {
        for case in [Case::Disk(7), Case::Log(3)] {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert!("powercut:7/8".parse::<Case>().is_err());
    }
}
