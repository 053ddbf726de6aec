//! One case from its first life to its verdict.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use percolite::crashtest::Mutant;

use super::Config;
use super::case::{Case, Protocol};
use super::judge::{judge, judge_kept};
use super::parent::live;
use super::scenario::{Step, steps};
use crate::dice::Dice;
use crate::doom::{Fatal, Visits};
use crate::examine::{Examined, MEMORY, engine, examine_restored};
use crate::interrupt;
use crate::ledger::Ledger;
use crate::life::Life;
use crate::mutex::after;
use crate::order::copy_folder;
use crate::outcome::{Failure, Outcome};
use crate::points::{Leaves, leaves};
use crate::report::{RECOVERY_LOCKS, RECOVERY_SECONDS};
use crate::restores::Restores;
use crate::violation::Broken;
use crate::workload;

/// Threads do as they like: a case whose point was not reached is tried again, with other choices, before that counts.
const ATTEMPTS: u64 = 5;

/// Runs a case. A failure keeps the folder with the store as it died and as it was judged, the history and a log.
///
/// # Errors
/// Those of the harness, not of the store.
pub fn run_case(config: &Config, case: &Case) -> anyhow::Result<Outcome> {
    let folder = config.folder.join(case.to_string().replace([':', '/'], "-"));
    let mut outcome = Outcome::of("kill");
    let (mut broken, mut missed) = (Vec::new(), Vec::new());
    for number in 0..ATTEMPTS {
        if folder.exists() {
            fs::remove_dir_all(&folder).context("an earlier run's folder")?;
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut this =
            Attempt { config, case, folder: &folder, number, outcome: &mut outcome, ledger: Ledger::default() };
        let verdict = match this.run() {
            Err(_) if interrupt::came() => {
                fs::remove_dir_all(&folder).context("the case's folder")?;
                return Ok(Outcome::of("kill"));
            }
            verdict => verdict?,
        };
        match verdict {
            Verdict::Missed(points) => missed = points,
            Verdict::Judged(found) => {
                broken = found;
                outcome.cases = 1;
                outcome.count("attempts", number + 1);
                break;
            }
        }
    }
    if outcome.cases == 0 {
        let how = format!("no life died at {} in {ATTEMPTS} attempts", missed.join(" or "));
        broken.push(Broken::new("harness: the table of points", how));
    }
    if broken.is_empty() {
        fs::remove_dir_all(&folder).context("the case's folder")?;
    } else {
        let mutant = config.mutant.map(|mutant| format!(" --mutant {}", mutant.name())).unwrap_or_default();
        let replay = format!("percolite-crashtest replay {case}{mutant}");
        for one in &broken {
            note_in(&folder.join("log.txt"), &one.to_string())?;
        }
        outcome.failures.push(Failure { replay, broken, kept: Some(folder) });
    }
    Ok(outcome)
}

enum Verdict {
    /// A life did not die at any of these.
    Missed(Vec<String>),
    /// What was found wrong.
    Judged(Vec<Broken>),
}

struct Attempt<'a> {
    config: &'a Config,
    case: &'a Case,
    folder: &'a Path,
    number: u64,
    outcome: &'a mut Outcome,
    ledger: Ledger,
}

impl Attempt<'_> {
    fn run(&mut self) -> anyhow::Result<Verdict> {
        let mut dice = Dice::new(self.case.seed ^ (self.number << 56));
        let (store, log) = (self.folder.join("store"), self.folder.join("log.txt"));
        let steps = steps(self.case, &store, self.config.mutant.map(Mutant::name), &mut dice)?;
        let lives = u32::try_from(steps.len()).unwrap_or_default();
        let mut name = "";
        let (mut copies, mut restores) = (Vec::new(), Restores::default());
        let mut notes = Vec::new();
        let (mut acknowledged, mut stated) = (0, Vec::new());
        for mut step in steps {
            if step.last && !self.find_last(&mut step, &log)? {
                return Ok(Verdict::Missed(vec![self.case.point.name().into()]));
            }
            let life = &step.life;
            let lived = live(&self.config.program, life, &mut self.ledger, &log)?;
            self.note(life, &lived.visits);
            acknowledged += lived.acknowledged;
            copies.extend(lived.copies.into_iter().map(|copy| (life.number, copy)));
            restores.goes_on_with(lived.restores);
            notes.extend(lived.notes);
            notes.extend(after::gone(&notes));
            let so_far = format!("{acknowledged} acknowledged of at least {}", step.least);
            note_in(&log, &format!("{life:?}: {:?}, {so_far}", lived.died))?;
            if !lived.broken.is_empty() {
                self.keep_history()?;
                return Ok(Verdict::Judged(lived.broken));
            }
            if !lived.died.is_some_and(|at| life.fatal.contains(&at) && acknowledged >= step.least) {
                return Ok(Verdict::Missed(life.fatal.iter().map(|at| at.point.clone()).collect()));
            }
            if step.wanted {
                stated.push((step.least, acknowledged));
            }
            name = workload::named(&life.workload).map_or("", |workload| workload.name());
        }
        let workload = workload::named(name).context("no such workload")?;
        copy_folder(&store, &self.folder.join("as-it-died")).context("the store as it died")?;
        let mut broken = Vec::new();
        if leaves(self.case.point)? == Leaves::Lease {
            broken.extend(lease_left(&self.folder.join("as-it-died"))?);
        }
        broken.extend(judge_kept(*self.case, workload, &store, copies, lives));
        if restores.were_made() {
            let copy = self.folder.join("restored");
            copy_folder(&store, &copy).context("the store with what was restored")?;
            let judged = examine_restored(&copy, &restores);
            broken.extend(judged.unwrap_or_else(|why| vec![Broken::new("opens again", why.to_string())]));
            fs::remove_dir_all(&copy).context("the store with what was restored")?;
        }
        let ledger = std::mem::take(&mut self.ledger);
        let Examined { broken: found, unanswered, locks, recovery, ledger, .. } =
            judge(store, *self.case, workload, (ledger, notes), lives);
        self.ledger = ledger;
        broken.extend(found);
        let outcome = &mut *self.outcome;
        for (least, acknowledged) in stated {
            outcome.hit(&self.case.protocol.place().to_string(), self.case.point.name());
            outcome.count("acknowledged before the kill", acknowledged);
            outcome.count("acknowledged before the kill, at least", least);
        }
        outcome.transactions += self.ledger.entries().count() as u64;
        outcome.acknowledged += acknowledged;
        outcome.unanswered += unanswered;
        outcome.count(RECOVERY_LOCKS, locks);
        outcome.figure(RECOVERY_SECONDS, recovery.as_secs_f64());
        if !broken.is_empty() {
            self.keep_history()?;
        }
        Ok(Verdict::Judged(broken))
    }

    /// Lives the life without a kill on a copy of the store, and says which visit was the last; the answer is whether there
    /// was any. Each further attempt asks for one half as late, since visits that depend on timing vary in number.
    fn find_last(&mut self, step: &mut Step, log: &Path) -> anyhow::Result<bool> {
        let folder = self.folder.join("dry");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        if step.life.folder.exists() {
            copy_folder(&step.life.folder, &folder).context("the store before its last life")?;
        }
        let life = Life { folder: folder.clone(), fatal: Vec::new(), ..step.life.clone() };
        let lived = live(&self.config.program, &life, &mut Ledger::default(), log)?;
        self.note(&life, &lived.visits);
        fs::remove_dir_all(&folder).context("the folder of a run without a kill")?;
        let visits = lived.visits.get(self.case.point.name()).copied().unwrap_or_default();
        let visit = (visits >> self.number).max(visits.min(1));
        note_in(log, &format!("{life:?}: without a kill, {visits} visits, {} acknowledged", lived.acknowledged))?;
        step.life.fatal = vec![Fatal { point: self.case.point.name().into(), visit }];
        Ok(visit > 0)
    }

    fn note(&mut self, life: &Life, visits: &Visits) {
        let place = Protocol::from(life).place().to_string();
        for (name, count) in visits {
            self.outcome.visit(&place, name, *count);
        }
    }

    fn keep_history(&self) -> anyhow::Result<()> {
        let mut file = BufWriter::new(File::create(self.folder.join("history.jsonl")).context("the history")?);
        self.ledger.lines().try_for_each(|line| line.write(&mut file)).context("the history")?;
        file.flush().context("the history")
    }
}

/// A process that was killed when the row of a lease was durable has left it.
fn lease_left(folder: &Path) -> anyhow::Result<Option<Broken>> {
    let copy = folder.with_file_name("leases");
    copy_folder(folder, &copy).context("the store as it died")?;
    let rows = after::rows_of_leases(engine(&copy, MEMORY)?.storage())?;
    fs::remove_dir_all(&copy).context("the store as it died")?;
    Ok(rows.is_empty().then(|| Broken::new("harness: the table of points", "no lease is left".to_owned())))
}

fn note_in(log: &Path, line: &str) -> anyhow::Result<()> {
    let mut log = File::options().create(true).append(true).open(log).context("the log")?;
    writeln!(log, "{line}").context("the log")
}
