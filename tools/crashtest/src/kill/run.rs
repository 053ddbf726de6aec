//! One case from its first life to its verdict.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use percolite::crashtest::{Mutant, Point};

use super::Config;
use super::case::{Case, Protocol};
use super::judge::judge;
use super::parent::live;
use super::scenario::{Step, steps};
use crate::dice::Dice;
use crate::doom::{Fatal, Visits};
use crate::examine::Examined;
use crate::interrupt;
use crate::ledger::Ledger;
use crate::life::Life;
use crate::order::copy_folder;
use crate::outcome::{Failure, Outcome};
use crate::points::Place;
use crate::report::{RECOVERY_LOCKS, RECOVERY_SECONDS};
use crate::violation::Broken;
use crate::workload;

/// Threads do as they like: a case whose point was not reached is tried again, with other choices, before that counts.
const ATTEMPTS: u64 = 5;

/// How often each point was met, by place.
pub type Hits = BTreeMap<Place, BTreeMap<Point, u64>>;

/// What came of a case.
#[derive(Debug, Default)]
pub struct Ran {
    /// Its figures.
    pub outcome: Outcome,
    /// Where it died.
    pub deaths: Hits,
    /// Where it was.
    pub visits: Hits,
}

/// Runs a case. A failure keeps the folder with the store as it died and as it was judged, the history and a log.
///
/// # Errors
/// Those of the harness, not of the store.
pub fn run_case(config: &Config, case: &Case) -> anyhow::Result<Ran> {
    let folder = config.folder.join(case.to_string().replace([':', '/'], "-"));
    let mut ran = Ran { outcome: Outcome::of("kill"), ..Ran::default() };
    let (mut broken, mut missed) = (Vec::new(), Vec::new());
    for number in 0..ATTEMPTS {
        if folder.exists() {
            fs::remove_dir_all(&folder).context("an earlier run's folder")?;
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut this = Attempt { config, case, folder: &folder, number, ran: &mut ran, ledger: Ledger::default() };
        let verdict = match this.run() {
            Err(_) if interrupt::came() => {
                fs::remove_dir_all(&folder).context("the case's folder")?;
                return Ok(Ran { outcome: Outcome::of("kill"), ..Ran::default() });
            }
            verdict => verdict?,
        };
        match verdict {
            Verdict::Missed(points) => missed = points,
            Verdict::Judged(found) => {
                broken = found;
                ran.outcome.cases = 1;
                ran.outcome.count("attempts", number + 1);
                break;
            }
        }
    }
    if ran.outcome.cases == 0 {
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
        ran.outcome.failures.push(Failure { replay, broken, kept: Some(folder) });
    }
    Ok(ran)
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
    ran: &'a mut Ran,
    ledger: Ledger,
}

impl Attempt<'_> {
    fn run(&mut self) -> anyhow::Result<Verdict> {
        let mut dice = Dice::new(self.case.seed ^ (self.number << 56));
        let (store, log) = (self.folder.join("store"), self.folder.join("log.txt"));
        let steps = steps(self.case, &store, self.config.mutant.map(Mutant::name), &mut dice)?;
        let lives = u32::try_from(steps.len()).unwrap_or_default();
        let mut name = "";
        let mut acknowledged = 0;
        for mut step in steps {
            if step.last && !self.find_last(&mut step, &log)? {
                return Ok(Verdict::Missed(vec![self.case.point.name().into()]));
            }
            let life = &step.life;
            let lived = live(&self.config.program, life, &mut self.ledger, &log)?;
            self.note(life, &lived.visits);
            note_in(&log, &format!("{life:?}: {:?} after {}", lived.died, lived.acknowledged))?;
            if !lived.broken.is_empty() {
                self.keep_history()?;
                return Ok(Verdict::Judged(lived.broken));
            }
            let Some(at) = lived.died.filter(|at| life.fatal.contains(at) && lived.acknowledged >= step.least) else {
                return Ok(Verdict::Missed(life.fatal.iter().map(|at| at.point.clone()).collect()));
            };
            if step.wanted {
                self.ran.outcome.count("acknowledged before the kill", lived.acknowledged);
            }
            let place = Protocol::from(life).place();
            self.ran.outcome.death(&place.to_string(), &at.point, 1);
            if let Some(point) = Point::named(&at.point) {
                *self.ran.deaths.entry(place).or_default().entry(point).or_default() += 1;
            }
            acknowledged += lived.acknowledged;
            name = workload::named(&life.workload).map_or("", |workload| workload.name());
        }
        let workload = workload::named(name).context("no such workload")?;
        copy_folder(&store, &self.folder.join("as-it-died")).context("the store as it died")?;
        let ledger = std::mem::take(&mut self.ledger);
        let Examined { broken, unanswered, locks, recovery, ledger, .. } =
            judge(store, *self.case, workload, ledger, lives);
        self.ledger = ledger;
        let outcome = &mut self.ran.outcome;
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
    /// was any. The next attempt is content with an earlier one.
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
        let visit = visits.saturating_sub(visits * self.number / ATTEMPTS);
        step.life.fatal = vec![Fatal { point: self.case.point.name().into(), visit }];
        Ok(visit > 0)
    }

    fn note(&mut self, life: &Life, visits: &Visits) {
        let place = Protocol::from(life).place();
        for (name, count) in visits {
            self.ran.outcome.visit(&place.to_string(), name, *count);
            if let Some(point) = Point::named(name) {
                *self.ran.visits.entry(place).or_default().entry(point).or_default() += count;
            }
        }
    }

    fn keep_history(&self) -> anyhow::Result<()> {
        let mut file = BufWriter::new(File::create(self.folder.join("history.jsonl")).context("the history")?);
        self.ledger.lines().try_for_each(|line| line.write(&mut file)).context("the history")?;
        file.flush().context("the history")
    }
}

fn note_in(log: &Path, line: &str) -> anyhow::Result<()> {
    let mut log = File::options().create(true).append(true).open(log).context("the log")?;
    writeln!(log, "{line}").context("the log")
}
