//! Places inside RocksDB and the log: where processes are killed, and calls fail, without a point in the store.
//!
//! The table in `places.txt` is to them what `points.txt` is to the points: what it names and a run does not hit fails the run.

use anyhow::{Context as _, bail};

use super::fault::{Act, Errno, Fault, File};
use crate::outcome::Outcome;

const TABLE: &str = include_str!("../../places.txt");

/// Which stores come by a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// One that is being created.
    New,
    /// One that is opened again.
    Old,
    /// Both.
    Any,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Place {
    /// Which calls.
    pub act: Act,
    /// On which files.
    pub file: File,
    /// What can happen there.
    pub ways: Vec<Errno>,
    /// To which stores.
    pub store: Age,
    /// At the first of how many such calls.
    pub within: usize,
    /// What must hold if everything stops there.
    pub promise: &'static str,
}

impl Place {
    /// Its name, as in the names of cases.
    pub fn name(&self) -> String {
        name(self.act, self.file)
    }
}

/// The name of the place at which a fault happens.
pub fn name(act: Act, file: File) -> String {
    format!("{}.{}", act.word(), file.word())
}

/// What a hit is counted under.
pub fn way(errno: Errno) -> String {
    format!("ioerr, {}", errno.word())
}

/// The table, in the order of its lines.
///
/// # Errors
/// A line that makes no sense.
pub fn table() -> anyhow::Result<Vec<Place>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| place(line).with_context(|| line.to_owned())).collect()
}

fn place(line: &'static str) -> anyhow::Result<Place> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.trim_start().split_once(' ').context("the line is too short")?;
        rest = after;
        anyhow::Ok(word)
    };
    let (act, file) = word()?.split_once('.').context("a place is a call on a file, as in write.log")?;
    let (ways, store, within) = (word()?, word()?, word()?);
    Ok(Place {
        act: Act::of(act).with_context(|| format!("no call {act}"))?,
        file: File::of(file).with_context(|| format!("no file {file}"))?,
        ways: ways.split(',').map(Errno::of).collect::<Option<_>>().with_context(|| format!("no such ways: {ways}"))?,
        store: match store {
            "new" => Age::New,
            "old" => Age::Old,
            "any" => Age::Any,
            _ => bail!("neither new nor old nor any: {store}"),
        },
        within: within.parse().context("within how many calls")?,
        promise: rest.trim(),
    })
}

/// Every place in each of its ways, the places in turn.
///
/// # Errors
/// Those of the table.
pub fn all() -> anyhow::Result<Vec<(Place, Errno)>> {
    let table = table()?;
    let most = table.iter().map(|place| place.ways.len()).max().unwrap_or_default();
    let lap = |rank: usize| table.iter().filter_map(move |place| Some((place.clone(), *place.ways.get(rank)?)));
    Ok((0..most).flat_map(lap).collect())
}

/// The store that a fault needs.
///
/// # Errors
/// Those of the table.
pub fn store_for(fault: Fault) -> anyhow::Result<Age> {
    let found = table()?.into_iter().find(|place| (place.act, place.file) == (fault.act, fault.file));
    Ok(found.map_or(Age::Any, |place| place.store))
}

/// The fault, if its place is in the table.
///
/// # Errors
/// What there is instead.
pub fn check(fault: Fault) -> Result<Fault, String> {
    let table = table().map_err(|why| why.to_string())?;
    if table.iter().any(|place| (place.act, place.file) == (fault.act, fault.file)) {
        return Ok(fault);
    }
    let places: Vec<String> = table.iter().map(Place::name).collect();
    Err(format!("{fault} is no place for a fault; there are {}", places.join(", ")))
}

/// What a run that has come round has missed.
///
/// # Errors
/// Those of the table.
pub fn missed(outcome: &Outcome) -> anyhow::Result<Vec<String>> {
    let is_hit = |(place, errno): &(Place, Errno)| outcome.hits_at(&way(*errno), &place.name()) > 0;
    let missed = all()?.into_iter().filter(|one| !is_hit(one));
    Ok(missed.map(|(place, errno)| format!("{} was never hit ({})", place.name(), way(errno))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_place_once_with_its_promise() {
        let mut names: Vec<String> = table().unwrap().iter().map(Place::name).collect();
        assert!(table().unwrap().iter().all(|place| !place.promise.is_empty() && place.within > 0));
        let lines = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), lines);
    }

    #[test]
    fn a_place_that_was_missed_in_one_of_its_ways_is_told() {
        let mut outcome = Outcome::of("ioerr");
        for (place, errno) in all().unwrap() {
            outcome.hit(&way(errno), &place.name());
        }
        assert_eq!(missed(&outcome).unwrap(), Vec::<String>::new());
        outcome.hits.get_mut("ioerr, KILL").unwrap().remove("rename.current");
        assert_eq!(missed(&outcome).unwrap(), ["rename.current was never hit (ioerr, KILL)"]);
    }
}
