//! Where each crash point can occur, and whether a run hit it.
//!
//! The table in `points.txt` is written independently of the code, and states what the harness
//! expects. A run is compared with the table in both directions. An expected point that was not hit
//! means that the run tested less than it claims. A point that was hit against the table means that
//! the table is wrong.

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

/// An environment of crash points: a layer, and how the store is used in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Environment {
    /// Simulation, one process.
    SimEmbedded,
    /// Simulation, several processes on a shared engine.
    SimShared,
    /// Killed processes, transactions commit in one phase where they can.
    KillAuto,
    /// Killed processes, transactions commit in two phases.
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

/// One row of the table.
#[derive(Clone, Debug)]
pub struct PointRow {
    /// The crash point.
    pub point: CrashPoint,
    /// The environments in which the point can occur.
    pub environments: Vec<Environment>,
    /// What a process that is killed at the point certainly leaves.
    pub left_state: LeftState,
    /// Why the point cannot occur in the other environments.
    pub exclusion_reason: &'static str,
}

/// What a store that was killed at a point certainly contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftState {
    /// Nothing is certain.
    Nothing,
    /// What the store contained when the process began.
    Unchanged,
    /// Transaction records.
    TxnRecords,
    /// Locks.
    Locks,
    /// Locks of a transaction that recovery must roll back.
    RollBack,
    /// Locks of a transaction that recovery must roll forward.
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

    /// What a process certainly leaves if it is killed at a point that has this state in the table.
    /// `before` is what the store contained when the process began.
    #[must_use]
    pub fn after(self, before: Self) -> Self {
        if self == Self::Unchanged { before } else { self }
    }

    /// Whether recovery from this state certainly reaches the point. `sweep.between`, for example,
    /// is never certain, because clients may resolve all locks before the sweep does.
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

/// What a process that is killed at the point certainly leaves.
///
/// # Errors
/// As [`table`].
pub fn left_state_of(point: CrashPoint) -> anyhow::Result<LeftState> {
    let row = table()?.into_iter().find(|row| row.point == point);
    row.map(|row| row.left_state).context("unknown crash point")
}

/// How a run differs from the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Expected and not hit.
    pub missed: Vec<(Environment, CrashPoint)>,
    /// Hit and not expected.
    pub unexpected: Vec<(Environment, CrashPoint)>,
}

impl Gaps {
    /// The gaps as violations.
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

/// The table, in the order of its rows.
///
/// # Errors
/// An invalid row, or a crash point that is missing, unknown or repeated.
pub fn table() -> anyhow::Result<Vec<PointRow>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let entries =
        lines.map(|line| parse_row(line).with_context(|| line.to_owned())).collect::<anyhow::Result<Vec<_>>>()?;
    for point in CrashPoint::ALL {
        let count = entries.iter().filter(|row| row.point == *point).count();
        if count != 1 {
            bail!("points.txt contains {} {count} times", point.name());
        }
    }
    Ok(entries)
}

fn parse_row(line: &'static str) -> anyhow::Result<PointRow> {
    let (name, rest) = next_word(line);
    let point = CrashPoint::from_name(name).context("unknown crash point")?;
    let ((embedded, rest), mut environments) = (next_word(rest), Vec::new());
    let (shared, rest) = next_word(rest);
    let (kill, rest) = next_word(rest);
    let (left, exclusion_reason) = next_word(rest);
    let left_state = LeftState::named(left).with_context(|| format!("unknown state: {left}"))?;
    for (word, environment) in [(embedded, Environment::SimEmbedded), (shared, Environment::SimShared)] {
        match word {
            "yes" => environments.push(environment),
            "-" => {}
            _ => bail!("expected `yes` or `-`, not {word}"),
        }
    }
    for word in kill.split(',').filter(|word| *word != "-") {
        environments.push(match word {
            "auto" => Environment::KillAuto,
            "two-phase" => Environment::KillTwoPhase,
            _ => bail!("unknown protocol: {word}"),
        });
    }
    if environments.len() < 4 && exclusion_reason.trim().is_empty() {
        bail!("the reason of the missing environments is missing");
    }
    Ok(PointRow { point, environments, left_state, exclusion_reason: exclusion_reason.trim() })
}

/// The first word, and the rest.
fn next_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_once(' ').unwrap_or((text, ""))
}

/// Compares a run with the table. `hits` counts the hits, or the visits, of points by environment.
/// Nothing is expected of an environment without an entry.
///
/// # Errors
/// As [`table`].
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

/// Compares the visits and hits of all layers with the tables of crash points and fault sites.
///
/// # Errors
/// An invalid table.
pub fn all_gaps(layers: &[LayerResult]) -> anyhow::Result<Vec<String>> {
    let mut found = gap_texts(&find_gaps(&hits_by_environment(layers.iter().map(|layer| &layer.visits), SIMULATED))?);
    for layer in layers {
        found.extend(layer_gaps(layer)?);
    }
    Ok(found)
}

/// Compares one layer, except the simulation, with the tables. A visit that the table excludes is
/// always a gap. A point without a hit is a gap only after a complete pass through the case list.
///
/// # Errors
/// An invalid table.
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

/// Counts by the names of environment and crash point.
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

/// List all crash points and fault sites, with their invariants and where they can occur.
#[derive(Debug, clap::Args)]
pub struct PointsArgs {}

impl PointsArgs {
    /// Prints the table.
    ///
    /// # Errors
    /// As [`table`].
    pub fn run(&self) -> anyhow::Result<()> {
        match writeln!(io::stdout(), "{}", render(terminal_table::table(presets::UTF8_HORIZONTAL_ONLY))?) {
            // A reader such as `head` may close the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.context("cannot write to the terminal"),
        }
    }
}

fn render(mut output: Table) -> anyhow::Result<Table> {
    output.set_header(["point", "sim", "kill", "leaves", "invariant (and why not everywhere)"]);
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
    // Names must stay whole so that they can be copied: only the last column is wrapped.
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
    fn the_table_has_every_point_once() {
        assert_eq!(table().unwrap().len(), CrashPoint::ALL.len());
    }

    #[test]
    fn missed_and_unexpected_points_are_reported() {
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

    #[test]
    #[cfg(feature = "rocks")]
    fn requested_kill_points_have_existing_names() {
        use crate::io_errors::fault::Fault;

        let section = include_str!("../README.md").split("## Coverage of points").nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
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
    fn readme_states_the_current_counts() {
        use percolite::mutants::Mutant;

        use crate::{mutants, sim::runner};

        let in_words = |document: &str| document.split_whitespace().collect::<Vec<_>>().join(" ");
        let killed = |row: &PointRow| KILLED.iter().any(|environment| row.environments.contains(environment));
        let killed = table().unwrap().into_iter().filter(killed).count();
        let (all, tried) = (Mutant::all().count(), Mutant::all().count() - mutants::UNIT_TEST_ONLY.len());
        let histories = runner::QUICK_HISTORIES;
        let readme = in_words(include_str!("../README.md"));
        for said in [
            format!("{},{:03} seeded histories", histories / 1_000, histories % 1_000),
            format!("a process killed at {killed} named points"),
            format!("`mutants` tries {tried} of {all} mistakes"),
            format!("{} named points at which a run can be stopped, and {all} known mistakes", CrashPoint::ALL.len()),
        ] {
            assert!(readme.contains(&said), "{said}");
        }
    }

    #[test]
    fn the_table_fits_terminals_with_whole_names() {
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
    fn a_complete_pass_must_hit_every_point() {
        let mut layer = LayerResult { progress: Some(TableProgress { done: 1, total: 2 }), ..LayerResult::new("kill") };
        for row in table().unwrap() {
            for environment in row.environments.iter().filter(|environment| KILLED.contains(environment)) {
                layer.count_hit(&environment.to_string(), row.point.name());
            }
        }
        layer.hits.get_mut("kill, auto").unwrap().remove("commit.ts");
        assert_eq!(layer_gaps(&layer).unwrap(), Vec::<String>::new(), "the pass was not complete");
        layer.add(LayerResult { progress: Some(TableProgress { done: 1, total: 2 }), ..LayerResult::new("kill") });
        assert_eq!(layer_gaps(&layer).unwrap(), ["commit.ts was never hit (kill, auto)"]);
        layer.hits.clear();
        assert!(layer_gaps(&layer).unwrap().len() > 80);
    }

    #[test]
    fn an_untested_environment_expects_nothing() {
        assert_eq!(find_gaps(&BTreeMap::new()).unwrap(), Gaps::default());
    }
}
