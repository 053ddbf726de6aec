//! Where each point of the store can occur, and whether a run was there.
//!
//! The table in `points.txt` is written by hand, because it is a claim: that the harness knows the store's code. A run is held
//! against it in both directions. A point that should have been hit and was not means that the run tried less than it
//! says; a point that was hit where the table says it cannot be means that somebody has misunderstood the store.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write as _};

use anyhow::{Context as _, bail};
use comfy_table::{ColumnConstraint, Table, presets};
use percolite::crashtest::CrashPoint;

use crate::outcome::Outcome;
use crate::screen;
use crate::violation::Broken;

const TABLE: &str = include_str!("../points.txt");

/// Where a point can occur: a layer, and how the store is used there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Simulated, one process.
    SimEmbedded,
    /// Simulated, several processes that share an engine.
    SimShared,
    /// Killed, with transactions that commit in one phase where they can.
    KillAuto,
    /// Killed, with transactions that commit in two phases.
    KillTwoPhase,
}

const SIMULATED: [Place; 2] = [Place::SimEmbedded, Place::SimShared];
const KILLED: [Place; 2] = [Place::KillAuto, Place::KillTwoPhase];

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SimEmbedded => "sim, embedded",
            Self::SimShared => "sim, shared",
            Self::KillAuto => "kill, auto",
            Self::KillTwoPhase => "kill, two-phase",
        })
    }
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The point.
    pub point: CrashPoint,
    /// Where it can occur.
    pub places: Vec<Place>,
    /// What a process that is killed there leaves.
    pub leaves: Leaves,
    /// Why not everywhere, or nothing.
    pub why_not: &'static str,
}

/// What is sure to be found by whoever opens a store that was killed at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Nothing is sure.
    Nothing,
    /// What was there when the process began.
    Same,
    /// Records of how transactions ended.
    Ended,
    /// Locks.
    Locks,
    /// Locks of a transaction that is rolled back.
    Back,
    /// Locks of a transaction that is rolled forward.
    Forward,
    /// The row of a lease.
    Lease,
}

impl Leaves {
    const ALL: [Self; 7] =
        [Self::Nothing, Self::Same, Self::Ended, Self::Locks, Self::Back, Self::Forward, Self::Lease];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "-",
            Self::Same => "same",
            Self::Ended => "ended",
            Self::Locks => "locks",
            Self::Back => "back",
            Self::Forward => "forward",
            Self::Lease => "lease",
        }
    }

    /// What is left by a life that began with `before`.
    #[must_use]
    pub fn after(self, before: Self) -> Self {
        if self == Self::Same { before } else { self }
    }

    /// Whether recovery must come to the point. In between it may, but clients may have been quicker than the sweep.
    pub fn leads_to(self, point: CrashPoint) -> bool {
        use CrashPoint as P;
        match point {
            P::WalResumed | P::OpenBefore | P::OpenReserved | P::OpenScanned | P::SweepDone | P::CloseSynced => true,
            P::SafePointBefore | P::SafePointDurable | P::TxnRecordGcBetween => {
                matches!(self, Self::Ended | Self::Locks | Self::Back | Self::Forward)
            }
            P::ResolveLockSeen | P::ResolveBeforeRollback | P::ResolveStatusKnown | P::ResolveDone => {
                matches!(self, Self::Locks | Self::Back | Self::Forward)
            }
            P::ResolvePrimaryRolledBack => self == Self::Back,
            P::ResolveBeforeRollForward => self == Self::Forward,
            _ => false,
        }
    }
}

/// What a process that is killed at the point leaves.
///
/// # Errors
/// Those of [`table`].
pub fn leaves(point: CrashPoint) -> anyhow::Result<Leaves> {
    let entry = table()?.into_iter().find(|entry| entry.point == point);
    entry.map(|entry| entry.leaves).context("there is no such point")
}

/// What a run has missed, and where it should not have been.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Expected, and not hit.
    pub missed: Vec<(Place, CrashPoint)>,
    /// Hit, and not expected.
    pub unexpected: Vec<(Place, CrashPoint)>,
}

impl Gaps {
    /// The same, as broken promises of the harness.
    pub fn broken(&self) -> Vec<Broken> {
        let missed = self.missed.iter().map(|(place, point)| format!("{} was never hit ({place})", point.name()));
        let unexpected =
            self.unexpected.iter().map(|(place, point)| format!("{} cannot be hit ({place})", point.name()));
        missed.chain(unexpected).map(|how| Broken::new("harness: the table of points", how)).collect()
    }
}

/// The table, in the order of its lines.
///
/// # Errors
/// A line that makes no sense, a point that is missing, unknown or there twice.
pub fn table() -> anyhow::Result<Vec<Entry>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let entries = lines.map(|line| entry(line).with_context(|| line.to_owned())).collect::<anyhow::Result<Vec<_>>>()?;
    for point in CrashPoint::ALL {
        let count = entries.iter().filter(|entry| entry.point == *point).count();
        if count != 1 {
            bail!("points.txt has {} {count} times", point.name());
        }
    }
    Ok(entries)
}

fn entry(line: &'static str) -> anyhow::Result<Entry> {
    let (name, rest) = word(line);
    let point = CrashPoint::from_name(name).context("there is no such point")?;
    let ((embedded, rest), mut places) = (word(rest), Vec::new());
    let (shared, rest) = word(rest);
    let (kill, rest) = word(rest);
    let (left, why_not) = word(rest);
    let leaves = Leaves::named(left).with_context(|| format!("nothing that can be left: {left}"))?;
    for (told, place) in [(embedded, Place::SimEmbedded), (shared, Place::SimShared)] {
        match told {
            "yes" => places.push(place),
            "-" => {}
            _ => bail!("neither `yes` nor `-`: {told}"),
        }
    }
    for told in kill.split(',').filter(|told| *told != "-") {
        places.push(match told {
            "auto" => Place::KillAuto,
            "two-phase" => Place::KillTwoPhase,
            _ => bail!("no protocol: {told}"),
        });
    }
    if places.len() < 4 && why_not.trim().is_empty() {
        bail!("it does not say why not");
    }
    Ok(Entry { point, places, leaves, why_not: why_not.trim() })
}

/// The first word, and what follows.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_once(' ').unwrap_or((text, ""))
}

/// Holds a run against the table: `hits` says where it was, and how often at which point. Places that are not in it were not
/// tried, and nothing is expected there.
///
/// # Errors
/// Those of [`table`].
pub fn gaps(hits: &BTreeMap<Place, BTreeMap<CrashPoint, u64>>) -> anyhow::Result<Gaps> {
    let mut gaps = Gaps::default();
    for Entry { point, places, .. } in table()? {
        for (place, hits) in hits {
            let (expected, hit) = (places.contains(place), hits.get(&point).is_some_and(|count| *count > 0));
            match (expected, hit) {
                (true, false) => gaps.missed.push((*place, point)),
                (false, true) => gaps.unexpected.push((*place, point)),
                _ => {}
            }
        }
    }
    Ok(gaps)
}

/// Holds what was visited and hit against the tables, layer by layer.
///
/// # Errors
/// Those of the tables.
pub fn gaps_of(layers: &[Outcome]) -> anyhow::Result<Vec<String>> {
    let mut found = told(&gaps(&places_in(layers.iter().map(|layer| &layer.visits), SIMULATED))?);
    for layer in layers {
        found.extend(gaps_in(layer)?);
    }
    Ok(found)
}

/// The same of a layer in which processes die or calls fail. Where it can be is held against the table by visits. What
/// it must have hit is asked of a run that had the time to come round.
///
/// # Errors
/// Those of the tables.
pub fn gaps_in(layer: &Outcome) -> anyhow::Result<Vec<String>> {
    let mut visits = gaps(&places_in([&layer.visits], KILLED))?;
    visits.missed.clear();
    let mut found = told(&visits);
    if !layer.has_come_round() {
        return Ok(found);
    }
    match layer.layer.as_str() {
        "kill" => {
            let mut hits = places_in([&layer.hits], KILLED);
            KILLED.into_iter().for_each(|place| _ = hits.entry(place).or_default());
            found.extend(told(&gaps(&hits)?));
        }
        #[cfg(feature = "rocks")]
        "ioerr" => found.extend(crate::ioerr::places::missed(layer)?),
        _ => {}
    }
    Ok(found)
}

fn told(gaps: &Gaps) -> Vec<String> {
    gaps.broken().into_iter().map(|broken| broken.how).collect()
}

/// Counts by the names of place and point.
type Counts = BTreeMap<String, BTreeMap<String, u64>>;

fn places_in<'a>(
    counts: impl IntoIterator<Item = &'a Counts>,
    known: [Place; 2],
) -> BTreeMap<Place, BTreeMap<CrashPoint, u64>> {
    let mut hits: BTreeMap<Place, BTreeMap<CrashPoint, u64>> = BTreeMap::new();
    for (place, points) in counts.into_iter().flatten() {
        let Some(place) = known.into_iter().find(|known| known.to_string() == *place) else { continue };
        for (point, count) in points.iter().filter_map(|(name, count)| Some((CrashPoint::from_name(name)?, *count))) {
            *hits.entry(place).or_default().entry(point).or_default() += count;
        }
    }
    hits
}

/// `percolite-crashtest points`: every point and every system call that fails, its promise, and where it can occur.
#[derive(Debug, clap::Args)]
pub struct PointsArgs {}

impl PointsArgs {
    /// Prints the table.
    ///
    /// # Errors
    /// Those of [`table`].
    pub fn run(&self) -> anyhow::Result<()> {
        match writeln!(io::stdout(), "{}", shown(screen::table(presets::UTF8_HORIZONTAL_ONLY))?) {
            // A reader that has seen enough, as `head` has.
            Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            told => told.context("the terminal"),
        }
    }
}

fn shown(mut shown: Table) -> anyhow::Result<Table> {
    shown.set_header(["point", "sim", "kill", "leaves", "promise (and why not everywhere)"]);
    for Entry { point, places, leaves, why_not, .. } in table()? {
        let of = |one: (Place, &'static str), other: (Place, &'static str)| match (
            places.contains(&one.0),
            places.contains(&other.0),
        ) {
            (true, true) => "both",
            (true, false) => one.1,
            (false, true) => other.1,
            (false, false) => "-",
        };
        let sim = of((Place::SimEmbedded, "embedded"), (Place::SimShared, "shared"));
        let kill = of((Place::KillAuto, "auto"), (Place::KillTwoPhase, "two-phase"));
        let why_not = if why_not.is_empty() { String::new() } else { format!("\n({why_not})") };
        let promise = point.description().to_owned() + &why_not;
        shown.add_row([point.name(), sim, kill, leaves.name(), &promise]);
    }
    #[cfg(feature = "rocks")]
    for place in crate::ioerr::places::table()? {
        let ways: Vec<String> = place.ways.iter().map(|way| crate::ioerr::places::way(*way)).collect();
        let promise = format!("{}\n(a system call: {})", place.promise, ways.join("; "));
        shown.add_row([&place.name(), "-", "-", "-", &promise]);
    }
    // Names are to be found and copied: only what explains is wrapped.
    for column in shown.column_iter_mut().take(4) {
        column.set_padding((0, 1)).set_constraint(ColumnConstraint::ContentWidth);
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use comfy_table::ContentArrangement;

    use super::*;
    use crate::outcome::Rotation;

    #[test]
    fn the_table_has_every_point_once_and_says_why_one_cannot_occur() {
        assert_eq!(table().unwrap().len(), CrashPoint::ALL.len());
    }

    #[test]
    fn a_point_that_was_missed_and_one_that_cannot_be_are_both_told() {
        let mut hits = BTreeMap::from([(Place::KillAuto, BTreeMap::new())]);
        for entry in table().unwrap() {
            if entry.places.contains(&Place::KillAuto) {
                hits.get_mut(&Place::KillAuto).unwrap().insert(entry.point, 1);
            }
        }
        assert_eq!(gaps(&hits).unwrap(), Gaps::default());
        hits.get_mut(&Place::KillAuto).unwrap().remove(&CrashPoint::GroupWritten);
        hits.get_mut(&Place::KillAuto).unwrap().insert(CrashPoint::HeartbeatDone, 1);
        let found = gaps(&hits).unwrap();
        assert_eq!(found.missed, [(Place::KillAuto, CrashPoint::GroupWritten)]);
        assert_eq!(found.unexpected, [(Place::KillAuto, CrashPoint::HeartbeatDone)]);
        assert_eq!(found.broken().len(), 2);
    }

    /// Of the points that were asked for, by number, in the design's table.
    #[test]
    #[cfg(feature = "rocks")]
    fn every_point_that_was_asked_for_has_names_that_exist() {
        use crate::ioerr::fault::Fault;

        let design = include_str!("../../../DESIGN.md");
        let section = design.split("### The kill points that were asked for").nth(1).unwrap();
        let section = section.split("###").next().unwrap();
        let rows = section.lines().filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            Some((cells.get(1)?.parse::<usize>().ok()?, *cells.get(3)?))
        });
        let rows: Vec<(usize, &str)> = rows.collect();
        assert!(rows.iter().map(|(number, _)| *number).eq(1..=46), "{rows:?}");
        for (number, names) in rows {
            let names: Vec<&str> = names.split(", ").map(|name| name.trim_matches('`')).collect();
            for name in names {
                let is_call = name.split('.').nth(2) == Some("KILL") && format!("{name}.1").parse::<Fault>().is_ok();
                assert!(is_call || CrashPoint::from_name(name).is_some(), "{number}: {name}");
            }
        }
    }

    #[test]
    #[cfg(feature = "rocks")]
    fn the_documents_give_the_numbers_of_points_mutants_and_histories() {
        use percolite::crashtest::Mutant;

        use crate::{mutants, sim::campaign};

        let in_words = |document: &str| document.split_whitespace().collect::<Vec<_>>().join(" ");
        let killed = |entry: &Entry| KILLED.iter().any(|place| entry.places.contains(place));
        let killed = table().unwrap().into_iter().filter(killed).count();
        let (all, tried) = (Mutant::ALL.len(), Mutant::ALL.len() - mutants::ELSEWHERE.len());
        let histories = campaign::QUICK_HISTORIES;
        let readme = in_words(include_str!("../../../README.md"));
        for said in [
            format!("{},{:03} seeded histories", histories / 1_000, histories % 1_000),
            format!("a process killed at {killed} named points"),
            format!("`mutants` tries {tried} of {all} mistakes"),
        ] {
            assert!(readme.contains(&said), "{said}");
        }
        let said =
            format!("{} named points at which a run can be stopped, and {all} known mistakes", CrashPoint::ALL.len());
        assert!(in_words(include_str!("../../../DESIGN.md")).contains(&said), "{said}");
        let said = format!("{all} known mistakes that it must find");
        assert!(in_words(include_str!("../../../CHANGELOG.md")).contains(&said), "{said}");
    }

    #[test]
    fn the_table_fits_every_terminal_with_its_names_whole() {
        for width in [80, 100, 140] {
            let mut wide = Table::new();
            wide.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_width(width);
            wide.set_content_arrangement(ContentArrangement::Dynamic);
            let text = shown(wide).unwrap().to_string();
            assert!(text.lines().all(|line| line.chars().count() <= width.into()), "{width}: {text}");
            for point in CrashPoint::ALL {
                assert!(text.contains(point.name()), "{width}: {}", point.name());
            }
        }
    }

    #[test]
    fn a_layer_that_has_come_round_is_asked_for_every_point_in_every_protocol() {
        let mut layer = Outcome { rotation: Some(Rotation { done: 1, of: 2 }), ..Outcome::of("kill") };
        for entry in table().unwrap() {
            for place in entry.places.iter().filter(|place| KILLED.contains(place)) {
                layer.hit(&place.to_string(), entry.point.name());
            }
        }
        layer.hits.get_mut("kill, auto").unwrap().remove("commit.ts");
        assert_eq!(gaps_in(&layer).unwrap(), Vec::<String>::new(), "it had no time");
        layer.add(Outcome { rotation: Some(Rotation { done: 1, of: 2 }), ..Outcome::of("kill") });
        assert_eq!(gaps_in(&layer).unwrap(), ["commit.ts was never hit (kill, auto)"]);
        layer.hits.clear();
        assert!(gaps_in(&layer).unwrap().len() > 80);
    }

    #[test]
    fn a_place_that_was_not_tried_expects_nothing() {
        assert_eq!(gaps(&BTreeMap::new()).unwrap(), Gaps::default());
    }
}
