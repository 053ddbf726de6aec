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

use crate::layer_result::LayerResult;
use crate::terminal_table;
use crate::violation::Violation;

const TABLE: &str = include_str!("../points.txt");

/// Where a point can occur: a layer, and how the store is used there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Environment {
    /// Simulated, one process.
    SimEmbedded,
    /// Simulated, several processes that share an engine.
    SimShared,
    /// Killed, with transactions that commit in one phase where they can.
    KillAuto,
    /// Killed, with transactions that commit in two phases.
    KillTwoPhase,
}

const SIMULATED: [Environment; 2] = [Environment::SimEmbedded, Environment::SimShared];
const KILLED: [Environment; 2] = [Environment::KillAuto, Environment::KillTwoPhase];

impl fmt::Display for Environment {
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
pub struct PointRow {
    /// The point.
    pub point: CrashPoint,
    /// Where it can occur.
    pub environments: Vec<Environment>,
    /// What a process that is killed there leaves.
    pub left_state: LeftState,
    /// Why not everywhere, or nothing.
    pub exclusion_reason: &'static str,
}

/// What is sure to be found by whoever opens a store that was killed at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftState {
    /// Nothing is sure.
    Nothing,
    /// What was there when the process began.
    Unchanged,
    /// Records of how transactions ended.
    TxnRecords,
    /// Locks.
    Locks,
    /// Locks of a transaction that is rolled back.
    RollBack,
    /// Locks of a transaction that is rolled forward.
    RollForward,
    /// The row of a lease.
    Lease,
}

impl LeftState {
    const ALL: [Self; 7] =
        [Self::Nothing, Self::Unchanged, Self::TxnRecords, Self::Locks, Self::RollBack, Self::RollForward, Self::Lease];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "-",
            Self::Unchanged => "unchanged",
            Self::TxnRecords => "records",
            Self::Locks => "locks",
            Self::RollBack => "back",
            Self::RollForward => "forward",
            Self::Lease => "lease",
        }
    }

    /// What is left by a life that began with `before`.
    #[must_use]
    pub fn after(self, before: Self) -> Self {
        if self == Self::Unchanged { before } else { self }
    }

    /// Whether recovery must come to the point. In between it may, but clients may have been quicker than the sweep.
    pub fn recovery_reaches(self, point: CrashPoint) -> bool {
        use CrashPoint as P;
        match point {
            P::WalResumed | P::OpenBefore | P::OpenReserved | P::OpenScanned | P::SweepDone | P::CloseSynced => true,
            P::SafePointBefore | P::SafePointDurable | P::TxnRecordGcBetween => {
                matches!(self, Self::TxnRecords | Self::Locks | Self::RollBack | Self::RollForward)
            }
            P::ResolveLockSeen | P::ResolveBeforeRollback | P::ResolveStatusKnown | P::ResolveDone => {
                matches!(self, Self::Locks | Self::RollBack | Self::RollForward)
            }
            P::ResolvePrimaryRolledBack => self == Self::RollBack,
            P::ResolveBeforeRollForward => self == Self::RollForward,
            _ => false,
        }
    }
}

/// What a process that is killed at the point leaves.
///
/// # Errors
/// Those of [`table`].
pub fn left_state_of(point: CrashPoint) -> anyhow::Result<LeftState> {
    let row = table()?.into_iter().find(|row| row.point == point);
    row.map(|row| row.left_state).context("there is no such point")
}

/// What a run has missed, and where it should not have been.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Expected, and not hit.
    pub missed: Vec<(Environment, CrashPoint)>,
    /// Hit, and not expected.
    pub unexpected: Vec<(Environment, CrashPoint)>,
}

impl Gaps {
    /// The same, as broken promises of the harness.
    pub fn violations(&self) -> Vec<Violation> {
        let missed =
            self.missed.iter().map(|(environment, point)| format!("{} was never hit ({environment})", point.name()));
        let unexpected = self
            .unexpected
            .iter()
            .map(|(environment, point)| format!("{} cannot be hit ({environment})", point.name()));
        missed.chain(unexpected).map(|how| Violation::new("harness: crash point table", how)).collect()
    }
}

/// The table, in the order of its lines.
///
/// # Errors
/// A line that makes no sense, a point that is missing, unknown or there twice.
pub fn table() -> anyhow::Result<Vec<PointRow>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let entries =
        lines.map(|line| parse_row(line).with_context(|| line.to_owned())).collect::<anyhow::Result<Vec<_>>>()?;
    for point in CrashPoint::ALL {
        let count = entries.iter().filter(|row| row.point == *point).count();
        if count != 1 {
            bail!("points.txt has {} {count} times", point.name());
        }
    }
    Ok(entries)
}

fn parse_row(line: &'static str) -> anyhow::Result<PointRow> {
    let (name, rest) = next_word(line);
    let point = CrashPoint::from_name(name).context("there is no such point")?;
    let ((embedded, rest), mut environments) = (next_word(rest), Vec::new());
    let (shared, rest) = next_word(rest);
    let (kill, rest) = next_word(rest);
    let (left, exclusion_reason) = next_word(rest);
    let left_state = LeftState::named(left).with_context(|| format!("nothing that can be left: {left}"))?;
    for (word, environment) in [(embedded, Environment::SimEmbedded), (shared, Environment::SimShared)] {
        match word {
            "yes" => environments.push(environment),
            "-" => {}
            _ => bail!("neither `yes` nor `-`: {word}"),
        }
    }
    for word in kill.split(',').filter(|word| *word != "-") {
        environments.push(match word {
            "auto" => Environment::KillAuto,
            "two-phase" => Environment::KillTwoPhase,
            _ => bail!("no protocol: {word}"),
        });
    }
    if environments.len() < 4 && exclusion_reason.trim().is_empty() {
        bail!("it does not say why not");
    }
    Ok(PointRow { point, environments, left_state, exclusion_reason: exclusion_reason.trim() })
}

/// The first word, and what follows.
fn next_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_once(' ').unwrap_or((text, ""))
}

/// Holds a run against the table: `hits` says where it was, and how often at which point. Places that are not in it were not
/// tried, and nothing is expected there.
///
/// # Errors
/// Those of [`table`].
pub fn find_gaps(hits: &BTreeMap<Environment, BTreeMap<CrashPoint, u64>>) -> anyhow::Result<Gaps> {
    let mut gaps = Gaps::default();
    for PointRow { point, environments, .. } in table()? {
        for (environment, hits) in hits {
            let (expected, hit) =
                (environments.contains(environment), hits.get(&point).is_some_and(|count| *count > 0));
            match (expected, hit) {
                (true, false) => gaps.missed.push((*environment, point)),
                (false, true) => gaps.unexpected.push((*environment, point)),
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
pub fn all_gaps(layers: &[LayerResult]) -> anyhow::Result<Vec<String>> {
    let mut found = gap_texts(&find_gaps(&hits_by_environment(layers.iter().map(|layer| &layer.visits), SIMULATED))?);
    for layer in layers {
        found.extend(layer_gaps(layer)?);
    }
    Ok(found)
}

/// The same of a layer in which processes die or calls fail. Where it can be is held against the table by visits. What
/// it must have hit is asked of a run that had the time to come round.
///
/// # Errors
/// Those of the tables.
pub fn layer_gaps(layer: &LayerResult) -> anyhow::Result<Vec<String>> {
    let mut visits = find_gaps(&hits_by_environment([&layer.visits], KILLED))?;
    visits.missed.clear();
    let mut found = gap_texts(&visits);
    if !layer.is_complete() {
        return Ok(found);
    }
    match layer.layer.as_str() {
        "kill" => {
            let mut hits = hits_by_environment([&layer.hits], KILLED);
            KILLED.into_iter().for_each(|environment| _ = hits.entry(environment).or_default());
            found.extend(gap_texts(&find_gaps(&hits)?));
        }
        #[cfg(feature = "rocks")]
        "io-errors" => found.extend(crate::io_errors::sites::unhit(layer)?),
        _ => {}
    }
    Ok(found)
}

fn gap_texts(gaps: &Gaps) -> Vec<String> {
    gaps.violations().into_iter().map(|violation| violation.details).collect()
}

/// Counts by the names of place and point.
type Counts = BTreeMap<String, BTreeMap<String, u64>>;

fn hits_by_environment<'a>(
    counts: impl IntoIterator<Item = &'a Counts>,
    known: [Environment; 2],
) -> BTreeMap<Environment, BTreeMap<CrashPoint, u64>> {
    let mut hits: BTreeMap<Environment, BTreeMap<CrashPoint, u64>> = BTreeMap::new();
    for (environment, points) in counts.into_iter().flatten() {
        let Some(environment) = known.into_iter().find(|known| known.to_string() == *environment) else { continue };
        for (point, count) in points.iter().filter_map(|(name, count)| Some((CrashPoint::from_name(name)?, *count))) {
            *hits.entry(environment).or_default().entry(point).or_default() += count;
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
        match writeln!(io::stdout(), "{}", render(terminal_table::table(presets::UTF8_HORIZONTAL_ONLY))?) {
            // A reader that has seen enough, as `head` has.
            Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.context("cannot write to the terminal"),
        }
    }
}

fn render(mut output: Table) -> anyhow::Result<Table> {
    output.set_header(["point", "sim", "kill", "leaves", "promise (and why not everywhere)"]);
    for PointRow { point, environments, left_state, exclusion_reason, .. } in table()? {
        let of = |one: (Environment, &'static str), other: (Environment, &'static str)| match (
            environments.contains(&one.0),
            environments.contains(&other.0),
        ) {
            (true, true) => "both",
            (true, false) => one.1,
            (false, true) => other.1,
            (false, false) => "-",
        };
        let sim = of((Environment::SimEmbedded, "embedded"), (Environment::SimShared, "shared"));
        let kill = of((Environment::KillAuto, "auto"), (Environment::KillTwoPhase, "two-phase"));
        let exclusion_reason =
            if exclusion_reason.is_empty() { String::new() } else { format!("\n({exclusion_reason})") };
        let invariant = point.description().to_owned() + &exclusion_reason;
        output.add_row([point.name(), sim, kill, left_state.name(), &invariant]);
    }
    #[cfg(feature = "rocks")]
    for site in crate::io_errors::sites::table()? {
        let errnos: Vec<String> = site.errnos.iter().map(|errno| crate::io_errors::sites::errno_key(*errno)).collect();
        let invariant = format!("{}\n(a system call: {})", site.invariant, errnos.join("; "));
        output.add_row([&site.name(), "-", "-", "-", &invariant]);
    }
    // Names are to be found and copied: only what explains is wrapped.
    for column in output.column_iter_mut().take(4) {
        column.set_padding((0, 1)).set_constraint(ColumnConstraint::ContentWidth);
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use comfy_table::ContentArrangement;

    use super::*;
    use crate::layer_result::TableProgress;

    #[test]
    fn the_table_has_every_point_once_and_says_why_one_cannot_occur() {
        assert_eq!(table().unwrap().len(), CrashPoint::ALL.len());
    }

    #[test]
    fn a_point_that_was_missed_and_one_that_cannot_be_are_both_told() {
        let mut hits = BTreeMap::from([(Environment::KillAuto, BTreeMap::new())]);
        for row in table().unwrap() {
            if row.environments.contains(&Environment::KillAuto) {
                hits.get_mut(&Environment::KillAuto).unwrap().insert(row.point, 1);
            }
        }
        assert_eq!(find_gaps(&hits).unwrap(), Gaps::default());
        hits.get_mut(&Environment::KillAuto).unwrap().remove(&CrashPoint::GroupWritten);
        hits.get_mut(&Environment::KillAuto).unwrap().insert(CrashPoint::HeartbeatDone, 1);
        let found = find_gaps(&hits).unwrap();
        assert_eq!(found.missed, [(Environment::KillAuto, CrashPoint::GroupWritten)]);
        assert_eq!(found.unexpected, [(Environment::KillAuto, CrashPoint::HeartbeatDone)]);
        assert_eq!(found.violations().len(), 2);
    }

    /// Of the points that were asked for, by number, in the design's table.
    #[test]
    #[cfg(feature = "rocks")]
    fn every_point_that_was_asked_for_has_names_that_exist() {
        use crate::io_errors::fault::Fault;

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

        use crate::{mutants, sim::runner};

        let in_words = |document: &str| document.split_whitespace().collect::<Vec<_>>().join(" ");
        let killed = |row: &PointRow| KILLED.iter().any(|environment| row.environments.contains(environment));
        let killed = table().unwrap().into_iter().filter(killed).count();
        let (all, tried) = (Mutant::ALL.len(), Mutant::ALL.len() - mutants::UNIT_TEST_ONLY.len());
        let histories = runner::QUICK_HISTORIES;
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
            let text = render(wide).unwrap().to_string();
            assert!(text.lines().all(|line| line.chars().count() <= width.into()), "{width}: {text}");
            for point in CrashPoint::ALL {
                assert!(text.contains(point.name()), "{width}: {}", point.name());
            }
        }
    }

    #[test]
    fn a_layer_that_has_come_round_is_asked_for_every_point_in_every_protocol() {
        let mut layer = LayerResult { progress: Some(TableProgress { done: 1, total: 2 }), ..LayerResult::new("kill") };
        for row in table().unwrap() {
            for environment in row.environments.iter().filter(|environment| KILLED.contains(environment)) {
                layer.count_hit(&environment.to_string(), row.point.name());
            }
        }
        layer.hits.get_mut("kill, auto").unwrap().remove("commit.ts");
        assert_eq!(layer_gaps(&layer).unwrap(), Vec::<String>::new(), "it had no time");
        layer.add(LayerResult { progress: Some(TableProgress { done: 1, total: 2 }), ..LayerResult::new("kill") });
        assert_eq!(layer_gaps(&layer).unwrap(), ["commit.ts was never hit (kill, auto)"]);
        layer.hits.clear();
        assert!(layer_gaps(&layer).unwrap().len() > 80);
    }

    #[test]
    fn a_place_that_was_not_tried_expects_nothing() {
        assert_eq!(find_gaps(&BTreeMap::new()).unwrap(), Gaps::default());
    }
}
