//! Failing disks: a write, a sync, a rename or the creation of a file fails below the store, or there is no room left.
//!
//! The store must say so, and from then on refuse everything until it is opened again: what a failed sync has left on the disk
//! nobody knows, and a later one that succeeds says nothing about it. It must not hang, and once it is opened again, without
//! the fault, everything acknowledged must be there. Or the process dies at that call: so it is killed at places inside RocksDB
//! and the log that have no name in the store, between the next segment and the table, or before the manifest.
//!
//! A case has two lives: in the first, of every other seed, nothing fails, so that faults meet a store that is opened
//! again as well as one that is created. Which call of many it is, the case says; where there are not so many an earlier one
//! has to do, so that every case meets its place. One that does not is a failure, as with the points of the store.

pub mod fault;
pub mod places;

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::str::FromStr;
use std::time::Duration;

use percolite::Durability;
use rustix::process::Signal;

use self::fault::{Act, Errno, Fault, File};
use self::places::{Age, Place};
use crate::dice::Dice;
use crate::disk::Disk;
use crate::examine::{Subject, examine};
use crate::interrupt;
use crate::ledger::Ledger;
use crate::life::{Life, Promise, count_streamed, load_of, none_streamed};
use crate::order::{Order, copy_folder, keep, scratch};
use crate::outcome::{Failure, Outcome, Rotation};
use crate::pipe::{Call, CrashHook, Heard};
use crate::violation::Broken;
use crate::workload;

const LAYER: &str = "ioerr";
/// A process that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(30);
const QUICK_SILENCE: Duration = Duration::from_secs(10);
/// How often a whole run that is not a quick one comes round.
const ROUNDS: u64 = 7;
/// After so many faults comes a full disk.
const FULL: usize = 5;
/// How often a case looks for a call to meet.
const ATTEMPTS: u32 = 8;
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
            _ => Trouble::Fault(places::check(trouble.parse()?)?),
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
    if let Some(case) = &order.case {
        let case: Case = case.parse().map_err(anyhow::Error::msg)?;
        let lacking = match case.trouble {
            Trouble::Fault(_) => without_strace(),
            Trouble::Full(_) | Trouble::Room(_) => without_disks(),
        };
        match lacking {
            Some(why) => outcome.skipped = Some(why),
            None => run_case(order, case, &mut outcome)?,
        }
    } else {
        let all = rotation()?;
        let possible = possible(&all, &mut outcome);
        let of = possible.len() as u64;
        let enough = if order.quick { of } else { ROUNDS * of };
        let mut done = 0;
        while of > 0 && clock.allows(done, enough) && !order.is_enough(&outcome) {
            let next = &possible[usize::try_from((order.skip + done) % of)?];
            run_case(order, plan(next.as_ref(), order.seed.wrapping_add(done)), &mut outcome)?;
            done += 1;
        }
        if let Some(broken) = none_streamed(&outcome) {
            outcome.failures.push(Failure { replay: order.replay(LAYER), broken: vec![broken], kept: None });
        }
        // What cannot be injected is not expected either, and that is said.
        outcome.rotation = (possible.len() == all.len()).then_some(Rotation { done, of });
    }
    outcome.seconds = clock.seconds();
    Ok(outcome)
}

/// Every place of the table in each of its ways, with a full disk now and then.
fn rotation() -> anyhow::Result<Vec<Option<(Place, Errno)>>> {
    let faults = places::all()?;
    Ok(faults.chunks(FULL).flat_map(|some| some.iter().cloned().map(Some).chain([None])).collect())
}

/// What of it this machine can do; the rest is said to be left out.
fn possible(all: &[Option<(Place, Errno)>], outcome: &mut Outcome) -> Vec<Option<(Place, Errno)>> {
    let mut possible = all.to_vec();
    if let Some(why) = without_strace() {
        possible.retain(Option::is_none);
        outcome.left_out.push(format!("SKIPPED injected faults: {why}"));
    }
    if let Some(why) = without_disks() {
        possible.retain(Option::is_some);
        outcome.left_out.push(format!("SKIPPED full disks: {why}"));
    }
    if possible.is_empty() {
        outcome.skipped = Some(std::mem::take(&mut outcome.left_out).join("; "));
    }
    possible
}

/// Why no fault can be injected here.
fn without_strace() -> Option<String> {
    Command::new("strace").arg("--version").output().err().map(|why| format!("strace: {why}"))
}

/// Why no disk can be filled here.
fn without_disks() -> Option<String> {
    Disk::tmpfs(1000).err()
}

/// A case of the rotation.
fn plan(next: Option<&(Place, Errno)>, seed: u64) -> Case {
    let mut dice = Dice::new(seed);
    let Some((place, errno)) = next else {
        let kib = 1000 + dice.below(9000) as u64;
        return Case { seed, trouble: if dice.one_in(2) { Trouble::Full(kib) } else { Trouble::Room(kib) } };
    };
    let (nth, onwards) = (1 + dice.below(place.within), *errno != Errno::Kill && dice.one_in(2));
    let fault = Fault { act: place.act, file: place.file, errno: *errno, nth, onwards };
    Case { seed, trouble: Trouble::Fault(fault) }
}

/// The life in which it goes wrong.
fn life(order: &Order, case: Case, folder: PathBuf, dice: &mut Dice) -> Life {
    // Only a store that writes much writes tables.
    let (is_full, writes_tables) = match case.trouble {
        Trouble::Fault(fault) => (false, fault.file != File::Log || matches!(fault.act, Act::Create | Act::Delete)),
        Trouble::Full(_) | Trouble::Room(_) => (true, true),
    };
    let (workload, stream_at_bytes) = load_of(case.seed, dice);
    let is_large = workload == workload::LARGE.name();
    let promises = [Promise::Sync, Promise::Sync, Promise::Buffered, Promise::Mixed];
    Life {
        folder,
        number: 1,
        workload: workload.into(),
        stream_at_bytes,
        two_phase: dice.one_in(2),
        promise: *dice.pick(&promises).unwrap_or(&Promise::Sync),
        clients: 3,
        transactions: match (is_full, is_large) {
            (true, _) => 0,
            (false, true) => 8,
            (false, false) => 40,
        },
        long_values: [0, 2, 8][dice.below(3)],
        history_ms: [None, Some(20)][dice.below(2)],
        // Enough for a few tables.
        write_buffers: if is_full { 4 << 20 } else { 1 << 20 },
        filler: if writes_tables { [40 << 10, 20 << 10][dice.below(2)] } else { 0 },
        seed: dice.bits(),
        mutant: order.mutant.map(|mutant| mutant.name().into()),
        ..Life::default()
    }
}

/// Runs a case at an earlier call each time, until one meets it.
fn run_case(order: &Order, case: Case, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut tried = case;
    for _ in 0..ATTEMPTS {
        if attempt(order, tried, outcome)? {
            if let Trouble::Fault(fault) = tried.trouble {
                outcome.hit(&places::way(fault.errno), &places::name(fault.act, fault.file));
            }
            return Ok(());
        }
        if interrupt::came() {
            return Ok(());
        }
        if let Trouble::Fault(fault) = &mut tried.trouble {
            fault.nth = (fault.nth / 2).max(1);
        }
    }
    let how = format!("no call met {case} in {ATTEMPTS} attempts");
    let broken = vec![Broken::new("harness: the table of places", how)];
    outcome.failures.push(Failure { replay: order.replay(&case.to_string()), broken, kept: None });
    Ok(())
}

/// Whether something went wrong as it should; then the store is judged.
fn attempt(order: &Order, case: Case, outcome: &mut Outcome) -> anyhow::Result<bool> {
    let mut dice = Dice::new(case.seed);
    let place = scratch()?;
    let folder = place.path().join("store");
    let mut life = life(order, case, folder.clone(), &mut dice);
    let mut ledger = Ledger::default();
    let notes = place.path().join("notes");
    let disk = match case.trouble {
        Trouble::Fault(_) => None,
        Trouble::Full(kib) => Some(Disk::tmpfs(kib)),
        Trouble::Room(kib) => Some(Disk::tmpfs(kib + BALLAST_KIB)),
    };
    let disk = disk.transpose().map_err(|why| anyhow::anyhow!("a small disk: {why}"))?;
    let command = match (case.trouble, &disk) {
        (Trouble::Fault(fault), _) => {
            let is_old = match places::store_for(fault)? {
                Age::New => false,
                Age::Old => true,
                Age::Any => !case.seed.is_multiple_of(2),
            };
            if is_old {
                ledger = quiet_life(&life, fault)?;
            }
            life.notes = Some(notes.clone());
            fault.command(&life.arguments()?, &folder, &notes)
        }
        (trouble, Some(disk)) => {
            if matches!(trouble, Trouble::Room(_)) {
                std::fs::write(disk.window().join(BALLAST), vec![1; usize::try_from(BALLAST_KIB << 10)?])?;
            }
            life.folder = disk.place().join("store");
            disk.command(&life.arguments()?)
        }
        (_, None) => return Ok(false),
    };
    let silence = if order.quick { QUICK_SILENCE } else { SILENCE };
    let mut child = CrashHook::start(command, ledger)?;
    let is_over = |heard: &Heard| heard.done || matches!(case.trouble, Trouble::Room(_)) && !heard.failed.is_empty();
    let spoke = child.wait(silence, is_over);
    let noted = || std::fs::read_to_string(&notes).unwrap_or_default();
    // RocksDB may try to mend itself meanwhile, and die in the middle of that.
    if let (Trouble::Room(_), Some(disk)) = (case.trouble, &disk) {
        std::fs::remove_file(disk.window().join(BALLAST))?;
    }
    let patience = [2_000, 30_000, 300_000][dice.below(3)];
    std::thread::sleep(Duration::from_micros(dice.below(patience) as u64));
    let (heard, status) = child.end();
    // A later one, in the background, met no call that could return it.
    let early = noted().get(..heard.noted).map(str::to_owned).unwrap_or_default();
    let in_time = matches!(case.trouble, Trouble::Fault(fault) if fault.happened(&early));
    if interrupt::came() {
        return Ok(false);
    }
    if let Some(disk) = disk {
        copy_folder(&disk.window().join("store"), &folder)?;
    }
    let happened = match case.trouble {
        Trouble::Fault(fault) if fault.errno == Errno::Kill => !heard.done && fault.happened(&noted()),
        Trouble::Fault(fault) => fault.happened(&noted()),
        Trouble::Full(_) | Trouble::Room(_) => !heard.failed.is_empty() || !spoke,
    };
    // It ended by itself, and nobody has killed it.
    let crashed = status.filter(|status| spoke && !heard.done && status.signal() != Some(Signal::KILL.as_raw()));
    if happened || crashed.is_some() {
        judge(order, case, &life, heard, in_time, spoke, crashed, &folder, outcome)?;
    } else {
        outcome.count("faults that no call met", 1);
    }
    Ok(happened)
}

/// A life before, in which nothing goes wrong.
fn quiet_life(life: &Life, fault: Fault) -> anyhow::Result<Ledger> {
    let mut quiet = Life { number: 0, ..life.clone() };
    // Tables are deleted once there are enough of them to be compacted.
    if (fault.act, fault.file) != (Act::Delete, File::Table) {
        (quiet.transactions, quiet.filler) = (10.min(life.transactions), 0);
    }
    // The file that is opened first is to be a new one.
    if fault.act == Act::Create {
        quiet.write_buffers = 128 << 20;
    }
    let mut child = CrashHook::start(quiet.command()?, Ledger::default())?;
    child.wait(SILENCE, |heard| heard.done);
    Ok(child.end().0.ledger)
}

#[allow(clippy::too_many_arguments, reason = "each is something else that is known of the one life")]
fn judge(
    order: &Order,
    case: Case,
    life: &Life,
    heard: Heard,
    in_time: bool,
    spoke: bool,
    crashed: Option<ExitStatus>,
    folder: &Path,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let dies = matches!(case.trouble, Trouble::Fault(Fault { errno: Errno::Kill, .. }));
    let mut broken = if dies { Vec::new() } else { fails_stop(case, &heard, in_time) };
    if let Some(status) = crashed {
        broken.push(Broken::new("stays alive", format!("the process ended with {status}")));
    }
    if !spoke {
        let after = heard.failed.first().map_or("nobody was told of an error", |_| "after an error");
        broken.push(Broken::new("I12 progress", format!("the store hangs: {after}")));
    }
    outcome.cases += 1;
    outcome.acknowledged += heard.ledger.acknowledged() as u64;
    outcome.transactions += heard.ledger.entries().count() as u64;
    count_streamed(outcome, life, heard.streamed);
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
        notes: &[],
        again: true,
        accepts: None,
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
fn fails_stop(case: Case, heard: &Heard, in_time: bool) -> Vec<Broken> {
    const PROMISE: &str = "fails stop";
    let mut broken = Vec::new();
    let is_fatal = matches!(case.trouble, Trouble::Fault(fault) if fault.is_fatal());
    if is_fatal && in_time && heard.failed.is_empty() && heard.done {
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
        for (seed, next) in (1..).zip(rotation().unwrap()) {
            let case = plan(next.as_ref(), seed);
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
