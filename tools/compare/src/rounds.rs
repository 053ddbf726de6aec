//! Rounds that interleave the stores, and the file that a long run goes on from.
//!
//! Every round has every cell once, and stores that are held against each other stand next to each other in it, so that what
//! the machine does in between meets all alike. Who is first in a setting changes from round to round. An outcome is a line
//! of JSON that is written as soon as it is there.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::child::Scratch;
use crate::spec::{Conditions, Line, Outcome, Spec};
use crate::statistics::{Contestant, Outcomes};

/// What is to be measured.
pub struct Plan {
    /// In the order in which they were asked for, each once.
    pub contestants: Vec<Contestant>,
    pub conditions: Conditions,
    pub rounds: u64,
}

impl Plan {
    /// All cells, in the order in which they are measured.
    pub fn cells(&self) -> Vec<Spec> {
        let mut cells = Vec::new();
        for round in 0..self.rounds {
            for group in self.contestants.chunk_by(|one, next| one.setting == next.setting) {
                let first = usize::try_from(round).unwrap_or_default() % group.len();
                let (before, from) = group.split_at(first);
                cells.extend(from.iter().chain(before).map(|one| one.spec(&self.conditions, round)));
            }
        }
        cells
    }
}

/// Where outcomes are kept, if anywhere.
pub struct Journal {
    file: Option<File>,
    pub outcomes: Outcomes,
}

impl Journal {
    /// Keeps them in this file. One that has something in it is only gone on with if that is wanted.
    pub fn open(path: Option<&Path>, resume: bool) -> Result<Self> {
        let mut outcomes = Outcomes::default();
        let Some(path) = path else { return Ok(Self { file: None, outcomes }) };
        let context = || format!("cannot open {}", path.display());
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).with_context(context)?;
        let length = file.metadata()?.len();
        ensure!(
            resume || length == 0,
            "{} has results already: go on with --resume, or name another file",
            path.display()
        );
        let mut reader = BufReader::new(&file);
        let (mut text, mut number, mut whole) = (String::new(), 0, 0);
        while reader.read_line(&mut text).with_context(context)? > 0 {
            number += 1;
            // What has no end was cut off with the run that wrote it.
            if text.ends_with('\n') {
                let line = serde_json::from_str(&text);
                outcomes.add(line.with_context(|| format!("line {number} of {} is no result", path.display()))?);
                whole += text.len() as u64;
            }
            text.clear();
        }
        file.set_len(whole)?;
        file.flush()?;
        Ok(Self { file: Some(file), outcomes })
    }

    fn keep(&mut self, line: Line) -> Result<()> {
        if let Some(file) = &mut self.file {
            let mut text = serde_json::to_string(&line)?;
            text.push('\n');
            file.write_all(text.as_bytes()).context("cannot write the results")?;
        }
        self.outcomes.add(line);
        Ok(())
    }
}

/// Measures what is not there yet, and tells how far it is on standard error. Whether everything is there then, and not the
/// run interrupted.
pub fn run(plan: &Plan, scratch: &Scratch, journal: &mut Journal) -> Result<bool> {
    let cells = plan.cells();
    for (place, spec) in cells.iter().enumerate() {
        if journal.outcomes.has(spec) {
            continue;
        }
        let Some(outcome) = scratch.run(spec)? else { return Ok(false) };
        let what = match &outcome {
            Outcome::Measured(measured) => format!("{:.0} {} a second", measured.rate, spec.setting.work.unit()),
            Outcome::Failed(why) => format!("FAILED: {why}"),
        };
        let Spec { setting, store, round, .. } = spec;
        eprintln!("[{}/{}] round {}, {setting}: {}: {what}", place + 1, cells.len(), round + 1, store.name());
        journal.keep(Line { spec: spec.clone(), outcome })?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Kind;
    use crate::testing;

    fn plan() -> Plan {
        let contestants = [Kind::Percolite, Kind::Redb, Kind::Lmdb].map(testing::contestant).to_vec();
        Plan { contestants, conditions: testing::conditions(), rounds: 3 }
    }

    #[test]
    fn every_round_has_every_store_and_begins_with_another() {
        let cells = plan().cells();
        let stores: Vec<_> =
            cells.chunks(3).map(|round| round.iter().map(|cell| cell.store).collect::<Vec<_>>()).collect();
        let [a, b, c] = [Kind::Percolite, Kind::Redb, Kind::Lmdb];
        assert_eq!(stores, [[a, b, c], [b, c, a], [c, a, b]]);
    }

    #[test]
    fn a_run_goes_on_where_it_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let mut journal = Journal::open(Some(&path), false).unwrap();
        let (done, begun) = (testing::contestant(Kind::Percolite), testing::contestant(Kind::Redb));
        journal.keep(testing::line(&done, 0, 1.0)).unwrap();
        journal.keep(testing::line(&begun, 0, 1.0)).unwrap();
        drop(journal);
        // The second line was not written to its end.
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 10]).unwrap();

        let mut journal = Journal::open(Some(&path), true).unwrap();
        let left = |journal: &Journal| plan().cells().iter().filter(|cell| !journal.outcomes.has(cell)).count();
        assert_eq!(left(&journal), 8);
        assert!(journal.outcomes.has(&done.spec(&testing::conditions(), 0)));
        journal.keep(testing::line(&begun, 0, 2.0)).unwrap();
        drop(journal);
        assert_eq!(left(&Journal::open(Some(&path), true).unwrap()), 7);
    }

    #[test]
    fn results_are_not_added_to_by_mistake() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        Journal::open(Some(&path), false)
            .unwrap()
            .keep(testing::line(&testing::contestant(Kind::Redb), 0, 1.0))
            .unwrap();
        assert!(Journal::open(Some(&path), false).is_err());
        std::fs::write(&path, "{}\n").unwrap();
        assert!(Journal::open(Some(&path), true).is_err());
    }

    #[test]
    fn other_conditions_are_another_result() {
        let mut journal = Journal::open(None, false).unwrap();
        journal.keep(testing::line(&testing::contestant(Kind::Redb), 0, 1.0)).unwrap();
        let mut other = testing::contestant(Kind::Redb).spec(&testing::conditions(), 0);
        assert!(journal.outcomes.has(&other));
        other.conditions.millis += 1;
        assert!(!journal.outcomes.has(&other));
    }
}
