//! Places inside RocksDB and the log: where processes are killed, and calls fail, without a point in the store.
//!
//! The table in `places.txt` is to them what `points.txt` is to the points: what it names and a run does not hit fails the run.

use anyhow::{Context as _, bail};

use super::fault::{Errno, Fault, File, Syscall};
use crate::layer_result::LayerResult;

const TABLE: &str = include_str!("../../fault_sites.txt");

/// Which stores come by a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreAge {
    /// One that is being created.
    New,
    /// One that is opened again.
    Old,
    /// Both.
    Any,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct FaultSite {
    /// Which calls.
    pub syscall: Syscall,
    /// On which files.
    pub file: File,
    /// What can happen there.
    pub errnos: Vec<Errno>,
    /// To which stores.
    pub store: StoreAge,
    /// At the first of how many such calls.
    pub first_calls: usize,
    /// What must hold if everything stops there.
    pub invariant: &'static str,
}

impl FaultSite {
    /// Its name, as in the names of cases.
    pub fn name(&self) -> String {
        name(self.syscall, self.file)
    }
}

/// The name of the place at which a fault happens.
pub fn name(syscall: Syscall, file: File) -> String {
    format!("{}.{}", syscall.name(), file.name())
}

/// What a hit is counted under.
pub fn errno_key(errno: Errno) -> String {
    format!("io-errors, {}", errno.name())
}

/// The table, in the order of its lines.
///
/// # Errors
/// A line that makes no sense.
pub fn table() -> anyhow::Result<Vec<FaultSite>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| parse_site(line).with_context(|| line.to_owned())).collect()
}

fn parse_site(line: &'static str) -> anyhow::Result<FaultSite> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.trim_start().split_once(' ').context("the line is too short")?;
        rest = after;
        anyhow::Ok(word)
    };
    let (syscall, file) = word()?.split_once('.').context("a place is a call on a file, as in write.log")?;
    let (errnos, store, first_calls) = (word()?, word()?, word()?);
    Ok(FaultSite {
        syscall: Syscall::from_name(syscall).with_context(|| format!("no call {syscall}"))?,
        file: File::from_name(file).with_context(|| format!("no file {file}"))?,
        errnos: errnos
            .split(',')
            .map(Errno::from_name)
            .collect::<Option<_>>()
            .with_context(|| format!("no such ways: {errnos}"))?,
        store: match store {
            "new" => StoreAge::New,
            "old" => StoreAge::Old,
            "any" => StoreAge::Any,
            _ => bail!("neither new nor old nor any: {store}"),
        },
        first_calls: first_calls.parse().context("within how many calls")?,
        invariant: rest.trim(),
    })
}

/// Every place in each of its ways, the places in turn.
///
/// # Errors
/// Those of the table.
pub fn all_cases() -> anyhow::Result<Vec<(FaultSite, Errno)>> {
    let table = table()?;
    let most = table.iter().map(|site| site.errnos.len()).max().unwrap_or_default();
    let pass = |rank: usize| table.iter().filter_map(move |site| Some((site.clone(), *site.errnos.get(rank)?)));
    Ok((0..most).flat_map(pass).collect())
}

/// The store that a fault needs.
///
/// # Errors
/// Those of the table.
pub fn store_for(fault: Fault) -> anyhow::Result<StoreAge> {
    let found = table()?.into_iter().find(|site| (site.syscall, site.file) == (fault.syscall, fault.file));
    Ok(found.map_or(StoreAge::Any, |site| site.store))
}

/// The fault, if its place is in the table.
///
/// # Errors
/// What there is instead.
pub fn check(fault: Fault) -> Result<Fault, String> {
    let table = table().map_err(|why| why.to_string())?;
    if table.iter().any(|site| (site.syscall, site.file) == (fault.syscall, fault.file)) {
        return Ok(fault);
    }
    let sites: Vec<String> = table.iter().map(FaultSite::name).collect();
    Err(format!("{fault} is no place for a fault; there are {}", sites.join(", ")))
}

/// What a run that has come round has missed.
///
/// # Errors
/// Those of the table.
pub fn unhit(outcome: &LayerResult) -> anyhow::Result<Vec<String>> {
    let is_hit = |(site, errno): &(FaultSite, Errno)| outcome.hits_at(&errno_key(*errno), &site.name()) > 0;
    let unhit = all_cases()?.into_iter().filter(|one| !is_hit(one));
    Ok(unhit.map(|(site, errno)| format!("{} was never hit ({})", site.name(), errno_key(errno))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_place_once_with_its_promise() {
        let mut names: Vec<String> = table().unwrap().iter().map(FaultSite::name).collect();
        assert!(table().unwrap().iter().all(|site| !site.invariant.is_empty() && site.first_calls > 0));
        let lines = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), lines);
    }

    #[test]
    fn a_place_that_was_missed_in_one_of_its_ways_is_told() {
        let mut outcome = LayerResult::new("io-errors");
        for (site, errno) in all_cases().unwrap() {
            outcome.count_hit(&errno_key(errno), &site.name());
        }
        assert_eq!(unhit(&outcome).unwrap(), Vec::<String>::new());
        outcome.hits.get_mut("io-errors, KILL").unwrap().remove("rename.current");
        assert_eq!(unhit(&outcome).unwrap(), ["rename.current was never hit (io-errors, KILL)"]);
    }
}
