//! Failing disks: a write, a sync, a rename or the creation of a file fails below the store, or there is no room left.
//!
//! The store must say so, and from then on refuse everything until it is opened again: what a failed sync has left on the disk
//! nobody knows, and a later one that succeeds says nothing about it. It must not hang, and once it is opened again, without
//! the fault, everything acknowledged must be there. Or the process dies at that call: so it is killed at places inside RocksDB
//! that have no name in the store, between the switch of the log and the table, or before the manifest.
//!
//! A case has two lives: in the first, of every other seed, nothing fails, so that faults meet a store that is opened
//! again as well as one that is created.

pub mod fault;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use percolite::Durability;

use self::fault::{Errno, Fault};
use crate::dice::Dice;
use crate::disk::Disk;
use crate::examine::{Subject, examine};
use crate::interrupt;
use crate::ledger::Ledger;
use crate::life::{Life, Promise};
use crate::order::{Order, copy_folder, keep, scratch};
use crate::outcome::Outcome;
use crate::pipe::{Call, Heard, Listener};
use crate::violation::Broken;
use crate::workload;

const LAYER: &str = "ioerr";
/// A process that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(30);
const QUICK_SILENCE: Duration = Duration::from_secs(10);
/// Faults in a quick run, and in another.
const QUICK_CASES: u64 = 66;
const CASES: u64 = 400;
/// Of so many cases one has a full disk.
const FULL: u64 = 6;
/// What it is given when there is to be room.
const BALLAST_KIB: u64 = 64 << 10;
/// A disk in memory has no more: nothing would ever fill it.
const KIB_MAX: u64 = 64 << 10;
const BALLAST: &str = "ballast";
/// Errors that say what to do: open again.
const STOPPED: &[&str] = &["Closed", "Undetermined", "Io"];

/// What goes wrong in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// One kind of system call fails.
    Fault(Fault),
    /// The disk has so many KiB.
    Full(u64),
    /// The disk has so many KiB, and more once it has been full.
    Room(u64),
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What the clients do.
    pub seed: u64,
    /// What goes wrong.
    pub trouble: Trouble,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.trouble {
            Trouble::Fault(fault) => write!(f, "{LAYER}:{}/{fault}", self.seed),
            Trouble::Full(kib) => write!(f, "{LAYER}:{}/full.{kib}", self.seed),
            Trouble::Room(kib) => write!(f, "{LAYER}:{}/room.{kib}", self.seed),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no case of {LAYER}: write {LAYER}:SEED/CALL.FILE.ERROR.N, as in {LAYER}:1/write.log.EIO.3, \
                 {LAYER}:SEED/full.KIB or {LAYER}:SEED/room.KIB, of 1 to {KIB_MAX} KiB"
            )
        };
        let (seed, trouble) = text
            .strip_prefix(LAYER)
            .and_then(|rest| rest.strip_prefix(':'))
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(wrong)?;
        let kib = |kib: &str| kib.parse().ok().filter(|kib| (1..=KIB_MAX).contains(kib)).ok_or_else(wrong);
        let trouble = match trouble.split_once('.') {
            Some(("full", size)) => Trouble::Full(kib(size)?),
            Some(("room", size)) => Trouble::Room(kib(size)?),
            _ => Trouble::Fault(trouble.parse()?),
        };
        Ok(Self { seed: seed.parse().map_err(|_| wrong())?, trouble })
    }
}

/// Runs the layer.
///
/// # Errors
/// Where the order makes no sense.
pub fn run(order: &Order) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::of(LAYER);
    let clock = order.clock();
    let case: Option<Case> = order.case.as_deref().map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    let needs_strace = case.is_none_or(|case| matches!(case.trouble, Trouble::Fault(_)));
    if let (true, Err(why)) = (needs_strace, Command::new("strace").arg("--version").output()) {
        outcome.skipped = Some(format!("strace: {why}"));
    } else if let Some(case) = case {
        run_case(order, case, &mut outcome)?;
    } else {
        let enough = if order.quick { QUICK_CASES } else { CASES };
        let mut seed = order.seed;
        while clock.allows(seed - order.seed, enough) && !order.is_enough(&outcome) {
            run_case(order, plan(seed), &mut outcome)?;
            seed += 1;
        }
    }
    outcome.seconds = clock.seconds();
    Ok(outcome)
}

/// Every place in turn, either error, once or from then on.
fn plan(seed: u64) -> Case {
    let mut dice = Dice::new(seed);
    if seed.is_multiple_of(FULL) {
        let kib = 1000 + dice.below(9000) as u64;
        return Case { seed, trouble: if dice.one_in(2) { Trouble::Full(kib) } else { Trouble::Room(kib) } };
    }
    let places = Fault::PLACES;
    let (act, file) = places[usize::try_from(seed).unwrap_or_default() % places.len()];
    let errno = [Errno::Eio, Errno::Enospc, Errno::Kill][dice.below(3)];
    let most = match file {
        fault::File::Log if act != fault::Act::Create => 24,
        fault::File::Log | fault::File::Table | fault::File::Manifest | fault::File::Folder => 3,
        fault::File::Current | fault::File::Marker => 1,
    };
    let fault = Fault { act, file, errno, nth: 1 + dice.below(most), onwards: errno != Errno::Kill && dice.one_in(2) };
    Case { seed, trouble: Trouble::Fault(fault) }
}

/// The life in which it goes wrong.
fn life(order: &Order, case: Case, folder: PathBuf, dice: &mut Dice) -> Life {
    // Only a store that writes much writes tables.
    let (is_full, writes_tables) = match case.trouble {
        Trouble::Fault(fault) => (false, fault.file != fault::File::Log || fault.act == fault::Act::Create),
        Trouble::Full(_) | Trouble::Room(_) => (true, true),
    };
    let promises = [Promise::Sync, Promise::Sync, Promise::Buffered, Promise::Mixed];
    Life {
        folder,
        number: 1,
        workload: dice.pick(workload::ALL).map_or("bank", |workload| workload.name()).into(),
        two_phase: dice.one_in(2),
        promise: *dice.pick(&promises).unwrap_or(&Promise::Sync),
        clients: 3,
        transactions: if is_full { 0 } else { 40 },
        long_values: [0, 2, 8][dice.below(3)],
        write_buffers: 4 << 20,
        filler: if writes_tables { [40 << 10, 5000][dice.below(2)] } else { 0 },
        seed: dice.bits(),
        mutant: order.mutant.map(|mutant| mutant.name().into()),
        ..Life::default()
    }
}

fn run_case(order: &Order, case: Case, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut dice = Dice::new(case.seed);
    let place = scratch()?;
    let folder = place.path().join("store");
    let mut life = life(order, case, folder.clone(), &mut dice);
    let mut ledger = Ledger::default();
    let disk = match case.trouble {
        Trouble::Fault(_) => None,
        Trouble::Full(kib) => Some(Disk::tmpfs(kib)),
        Trouble::Room(kib) => Some(Disk::tmpfs(kib + BALLAST_KIB)),
    };
    let disk = match disk.transpose() {
        Ok(disk) => disk,
        Err(why) => {
            outcome.skipped.get_or_insert(format!("the small disks: {why}"));
            return Ok(());
        }
    };
    let notes = place.path().join("notes");
    let command = match (case.trouble, &disk) {
        (Trouble::Fault(fault), _) => {
            if !case.seed.is_multiple_of(2) {
                let quiet = Life { number: 0, transactions: 10, filler: 0, ..life.clone() };
                let mut child = Listener::start(quiet.command()?, ledger)?;
                child.wait(SILENCE, |heard| heard.done);
                ledger = child.end().0.ledger;
            }
            fault.command(&life.arguments()?, &folder, &notes)
        }
        (trouble, Some(disk)) => {
            if matches!(trouble, Trouble::Room(_)) {
                std::fs::write(disk.window().join(BALLAST), vec![1; usize::try_from(BALLAST_KIB << 10)?])?;
            }
            life.folder = disk.place().join("store");
            disk.command(&life.arguments()?)
        }
        (_, None) => return Ok(()),
    };
    let silence = if order.quick { QUICK_SILENCE } else { SILENCE };
    let mut child = Listener::start(command, ledger)?;
    let is_over = |heard: &Heard| heard.done || matches!(case.trouble, Trouble::Room(_)) && !heard.failed.is_empty();
    let spoke = child.wait(silence, is_over);
    // RocksDB may try to mend itself meanwhile, and die in the middle of that.
    if let (Trouble::Room(_), Some(disk)) = (case.trouble, &disk) {
        std::fs::remove_file(disk.window().join(BALLAST))?;
    }
    let patience = [2_000, 30_000, 300_000][dice.below(3)];
    std::thread::sleep(Duration::from_micros(dice.below(patience) as u64));
    let (heard, _) = child.end();
    if interrupt::came() {
        return Ok(());
    }
    if let Some(disk) = disk {
        copy_folder(&disk.window().join("store"), &folder)?;
    }
    let happened = match case.trouble {
        Trouble::Fault(Fault { errno: Errno::Kill, act, file, .. }) => {
            let died = spoke && !heard.done;
            if died {
                outcome.count(&format!("killed at {} of {}", act.word(), file.word()), 1);
            }
            died
        }
        Trouble::Fault(_) => std::fs::read_to_string(&notes).unwrap_or_default().matches("(INJECTED)").count() > 0,
        Trouble::Full(_) | Trouble::Room(_) => !heard.failed.is_empty() || !spoke,
    };
    if happened {
        judge(order, case, &life, heard, spoke, &folder, outcome)?;
    } else {
        outcome.count("faults that no call met", 1);
    }
    Ok(())
}

fn judge(
    order: &Order,
    case: Case,
    life: &Life,
    heard: Heard,
    spoke: bool,
    folder: &Path,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let dies = matches!(case.trouble, Trouble::Fault(Fault { errno: Errno::Kill, .. }));
    let mut broken = if dies { Vec::new() } else { fails_stop(case, &heard) };
    if !spoke {
        let after = heard.failed.first().map_or("nobody was told of an error", |_| "after an error");
        broken.push(Broken::new("I12 progress", format!("the store hangs: {after}")));
    }
    outcome.cases += 1;
    outcome.acknowledged += heard.ledger.acknowledged() as u64;
    outcome.transactions += heard.ledger.entries().count() as u64;
    outcome.count("calls refused after an error", heard.called.len() as u64);
    let kept = scratch()?;
    if folder.is_dir() {
        copy_folder(folder, kept.path())?;
    }
    let told: BTreeMap<u64, u64> = heard.ledger.told();
    let subject = Subject {
        folder,
        workload: workload::named(&life.workload).ok_or_else(|| anyhow::anyhow!("no such workload"))?,
        habits: life.habits(Durability::Sync),
        life: 2,
        told: &told,
        again: true,
    };
    let examined = examine(&subject, heard.ledger);
    outcome.unanswered += examined.unanswered;
    broken.extend(examined.broken);
    if let Some(why) = examined.refused {
        broken.push(Broken::new("opens again", why.to_string()));
    }
    if !broken.is_empty() {
        outcome.failures.push(keep(order, &case.to_string(), kept.path(), Some(&examined.ledger), broken));
    }
    Ok(())
}

/// Everything that was said after the fault was a refusal, with its cause.
fn fails_stop(case: Case, heard: &Heard) -> Vec<Broken> {
    const PROMISE: &str = "fails stop";
    let mut broken = Vec::new();
    let is_fatal = matches!(case.trouble, Trouble::Fault(fault) if fault.is_fatal());
    if is_fatal && heard.failed.is_empty() && heard.done {
        broken.push(Broken::new(PROMISE, "the log failed and nobody was told"));
    }
    for Call { call, kind, text } in heard.failed.iter().chain(&heard.called) {
        if !STOPPED.contains(&kind.as_str()) {
            broken.push(Broken::new(PROMISE, format!("{call} answered {kind} after an error: {text}")));
        }
    }
    // Two threads may fail at once, and then one of them is told of a previous error. But somebody must have heard which.
    let mut told = heard.failed.iter().chain(&heard.called).peekable();
    if matches!(case.trouble, Trouble::Fault(_))
        && told.peek().is_some()
        && !told.any(|call| names_the_cause(&call.text))
    {
        broken.push(Broken::new(
            PROMISE,
            format!("nobody was told why: {}", heard.failed.first().map_or("", |call| &call.text)),
        ));
    }
    broken
}

fn names_the_cause(text: &str) -> bool {
    ["Input/output error", "No space left"].iter().any(|cause| text.contains(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_is_printed() {
        for case in (1..60).map(plan) {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        for text in [
            "write.log.EIO",
            "write.log.EIO.0",
            "write.log.EIO.65536",
            "write.log.EIO.3++",
            "write.folder.EIO.1",
            "full.0",
            "room.0",
            "full.99999999999",
            "full",
            "",
        ] {
            assert!(format!("ioerr:1/{text}").parse::<Case>().is_err(), "{text}");
        }
    }
}
