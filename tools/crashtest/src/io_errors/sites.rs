//! Fault sites: system calls inside RocksDB and the log where a process is killed or a call fails.
//!
//! `fault_sites.txt` lists all sites, as `points.txt` lists all crash points. A run fails if it
//! goes through the whole case list and does not hit each site with each of its errors.

use anyhow::{Context as _, bail};

use super::fault::{Errno, Fault, File, Syscall};
use crate::layer_result::LayerResult;

const TABLE: &str = include_str!("../../fault_sites.txt");

/// Which stores reach a fault site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreAge {
    /// A new store.
    New,
    /// An existing store.
    Old,
    /// Any store.
    Any,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct FaultSite {
    /// The kind of system call.
    pub syscall: Syscall,
    /// The kind of file.
    pub file: File,
    /// The errors that can be injected.
    pub errnos: Vec<Errno>,
    /// Which stores reach the site.
    pub store: StoreAge,
    /// The fault is injected at a random one of this many first calls.
    pub first_calls: usize,
    /// The fact on which recovery relies if the process ends at this call.
    pub invariant: &'static str,
}

impl FaultSite {
    /// The name of the site in a case.
    pub fn name(&self) -> String {
        name(self.syscall, self.file)
    }
}

/// The name of a fault site.
pub fn name(syscall: Syscall, file: File) -> String {
    format!("{}.{}", syscall.name(), file.name())
}

/// The key under which hits of an error are counted.
pub fn errno_key(errno: Errno) -> String {
    format!("io-errors, {}", errno.name())
}

/// The table, in the order of its rows.
///
/// # Errors
/// An invalid row.
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
    let (syscall, file) = word()?.split_once('.').context("expected CALL.FILE, as in write.log")?;
    let (errnos, store, first_calls) = (word()?, word()?, word()?);
    Ok(FaultSite {
        syscall: Syscall::from_name(syscall).with_context(|| format!("unknown call {syscall}"))?,
        file: File::from_name(file).with_context(|| format!("unknown file {file}"))?,
        errnos: errnos
            .split(',')
            .map(Errno::from_name)
            .collect::<Option<_>>()
            .with_context(|| format!("unknown errors: {errnos}"))?,
        store: match store {
            "new" => StoreAge::New,
            "old" => StoreAge::Old,
            "any" => StoreAge::Any,
            _ => bail!("expected new, old or any, not {store}"),
        },
        first_calls: first_calls.parse().context("expected a number of calls")?,
        invariant: rest.trim(),
    })
}

/// Every fault site with each of its errors: first one error of every site, then the next error of
/// every site, and so on.
///
/// # Errors
/// An invalid table.
pub fn all_cases() -> anyhow::Result<Vec<(FaultSite, Errno)>> {
    let table = table()?;
    let most = table.iter().map(|site| site.errnos.len()).max().unwrap_or_default();
    let pass = |rank: usize| table.iter().filter_map(move |site| Some((site.clone(), *site.errnos.get(rank)?)));
    Ok((0..most).flat_map(pass).collect())
}

/// Which store a fault needs.
///
/// # Errors
/// An invalid table.
pub fn store_for(fault: Fault) -> anyhow::Result<StoreAge> {
    let found = table()?.into_iter().find(|site| (site.syscall, site.file) == (fault.syscall, fault.file));
    Ok(found.map_or(StoreAge::Any, |site| site.store))
}

/// The fault, if its site is in the table.
///
/// # Errors
/// A text that lists the existing fault sites, or says what is wrong with the table.
pub fn check(fault: Fault) -> Result<Fault, String> {
    let table = table().map_err(|error| error.to_string())?;
    if table.iter().any(|site| (site.syscall, site.file) == (fault.syscall, fault.file)) {
        return Ok(fault);
    }
    let sites: Vec<String> = table.iter().map(FaultSite::name).collect();
    Err(format!("unknown fault site {fault}; expected one of {}", sites.join(", ")))
}

/// The fault sites that a pass through the whole case list has not hit.
///
/// # Errors
/// An invalid table.
pub fn unhit(outcome: &LayerResult) -> anyhow::Result<Vec<String>> {
    let is_hit = |(site, errno): &(FaultSite, Errno)| outcome.hits_at(&errno_key(*errno), &site.name()) > 0;
    let unhit = all_cases()?.into_iter().filter(|one| !is_hit(one));
    Ok(unhit.map(|(site, errno)| format!("{} was never hit ({})", site.name(), errno_key(errno))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_site_once_with_its_invariant() {
        let mut names: Vec<String> = table().unwrap().iter().map(FaultSite::name).collect();
        assert!(table().unwrap().iter().all(|site| !site.invariant.is_empty() && site.first_calls > 0));
        let lines = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), lines);
    }

    #[test]
    fn a_site_missed_with_one_error_is_reported() {
        let mut outcome = LayerResult::new("io-errors");
        for (site, errno) in all_cases().unwrap() {
            outcome.count_hit(&errno_key(errno), &site.name());
        }
        assert_eq!(unhit(&outcome).unwrap(), Vec::<String>::new());
        outcome.hits.get_mut("io-errors, KILL").unwrap().remove("rename.current");
        assert_eq!(unhit(&outcome).unwrap(), ["rename.current was never hit (io-errors, KILL)"]);
    }
}
