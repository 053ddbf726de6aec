//! Rounds that interleave the stores, and the file of results.
//!
//! Every round has every measurement once. The stores of one setting are measured one after the
//! other, so a drift of the machine's speed affects all of them alike. Each round starts with a
//! different store. Every outcome is appended to the file of results immediately, as a line of
//! JSON.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::child::ScratchDir;
use crate::spec::{Conditions, Outcome, ResultLine, Spec};
use crate::statistics::{Entry, Outcomes};

/// The measurements of a run.
pub struct Plan {
    /// Without duplicates, in the order in which they were requested.
    pub entries: Vec<Entry>,
    pub conditions: Conditions,
    pub rounds: u64,
}

impl Plan {
    /// All measurements, in the order in which they run.
    pub fn specs(&self) -> Vec<Spec> {
        let mut specs = Vec::new();
        for round in 0..self.rounds {
            for group in self.entries.chunk_by(|one, next| one.setting == next.setting) {
                let first = usize::try_from(round).unwrap_or_default() % group.len();
                let (before, from) = group.split_at(first);
                specs.extend(from.iter().chain(before).map(|one| one.spec(&self.conditions, round)));
            }
        }
        specs
    }
}

/// The outcomes of a run, and the file in which they are saved, if any.
pub struct ResultsFile {
    file: Option<File>,
    pub outcomes: Outcomes,
}

impl ResultsFile {
    /// Opens the file. If the run does not resume, a file that is not empty is an error.
    pub fn open(path: Option<&Path>, resume: bool) -> Result<Self> {
        let mut outcomes = Outcomes::default();
        let Some(path) = path else { return Ok(Self { file: None, outcomes }) };
        let context = || format!("cannot open {}", path.display());
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).with_context(context)?;
        let length = file.metadata()?.len();
        ensure!(
            resume || length == 0,
            "{} already has results; continue with --resume, or name another file",
            path.display()
        );
        let mut reader = BufReader::new(&file);
        let (mut text, mut number, mut whole) = (String::new(), 0, 0);
        while reader.read_line(&mut text).with_context(context)? > 0 {
            number += 1;
            // If the last line has no line end, the run ended while the line was being written, so
            // the line is removed.
            if text.ends_with('\n') {
                let line = serde_json::from_str(&text);
                outcomes.add(line.with_context(|| format!("line {number} of {} is not a result", path.display()))?);
                whole += text.len() as u64;
            }
            text.clear();
        }
        file.set_len(whole)?;
        file.flush()?;
        Ok(Self { file: Some(file), outcomes })
    }

    fn append(&mut self, line: ResultLine) -> Result<()> {
        if let Some(file) = &mut self.file {
            let mut text = serde_json::to_string(&line)?;
            text.push('\n');
            file.write_all(text.as_bytes()).context("cannot write the results")?;
        }
        self.outcomes.add(line);
        Ok(())
    }
}

/// Runs the measurements that have no result yet, with progress on standard error. `false` if the
/// run was interrupted.
pub fn run(plan: &Plan, scratch: &ScratchDir, results: &mut ResultsFile) -> Result<bool> {
    let specs = plan.specs();
    for (place, spec) in specs.iter().enumerate() {
        if results.outcomes.has(spec) {
            continue;
        }
        let Some(outcome) = scratch.run(spec)? else { return Ok(false) };
        let what = match &outcome {
            Outcome::Measured(measured) => format!("{:.0} {} per second", measured.rate, spec.setting.work.unit()),
            Outcome::Failed(error) => format!("FAILED: {error}"),
        };
        let Spec { setting, store, round, .. } = spec;
        eprintln!("[{}/{}] round {}, {setting}: {}: {what}", place + 1, specs.len(), round + 1, store.name());
        results.append(ResultLine { spec: spec.clone(), outcome })?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::peer::StoreKind;

    fn plan() -> Plan {
        let entries = [StoreKind::Percolite, StoreKind::Redb, StoreKind::Lmdb].map(fixtures::entry).to_vec();
        Plan { entries, conditions: fixtures::conditions(), rounds: 3 }
    }

    #[test]
    fn every_round_starts_with_another_store() {
        let specs = plan().specs();
        let stores: Vec<_> =
            specs.chunks(3).map(|round| round.iter().map(|spec| spec.store).collect::<Vec<_>>()).collect();
        let [a, b, c] = [StoreKind::Percolite, StoreKind::Redb, StoreKind::Lmdb];
        assert_eq!(stores, [[a, b, c], [b, c, a], [c, a, b]]);
    }

    #[test]
    fn resume_repeats_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.jsonl");
        let mut results = ResultsFile::open(Some(&path), false).unwrap();
        let (done, unfinished) = (fixtures::entry(StoreKind::Percolite), fixtures::entry(StoreKind::Redb));
        results.append(fixtures::line(&done, 0, 1.0)).unwrap();
        results.append(fixtures::line(&unfinished, 0, 1.0)).unwrap();
        drop(results);
        // Truncates the second line.
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 10]).unwrap();

        let mut results = ResultsFile::open(Some(&path), true).unwrap();
        let left = |results: &ResultsFile| plan().specs().iter().filter(|spec| !results.outcomes.has(spec)).count();
        assert_eq!(left(&results), 8);
        assert!(results.outcomes.has(&done.spec(&fixtures::conditions(), 0)));
        results.append(fixtures::line(&unfinished, 0, 2.0)).unwrap();
        drop(results);
        assert_eq!(left(&ResultsFile::open(Some(&path), true).unwrap()), 7);
    }

    #[test]
    fn existing_results_require_resume() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.jsonl");
        ResultsFile::open(Some(&path), false)
            .unwrap()
            .append(fixtures::line(&fixtures::entry(StoreKind::Redb), 0, 1.0))
            .unwrap();
        assert!(ResultsFile::open(Some(&path), false).is_err());
        std::fs::write(&path, "{}\n").unwrap();
        assert!(ResultsFile::open(Some(&path), true).is_err());
    }

    #[test]
    fn conditions_are_part_of_the_key() {
        let mut results = ResultsFile::open(None, false).unwrap();
        results.append(fixtures::line(&fixtures::entry(StoreKind::Redb), 0, 1.0)).unwrap();
        let mut other = fixtures::entry(StoreKind::Redb).spec(&fixtures::conditions(), 0);
        assert!(results.outcomes.has(&other));
        other.conditions.millis += 1;
        assert!(!results.outcomes.has(&other));
    }
}
