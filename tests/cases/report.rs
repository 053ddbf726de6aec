//! The runner, and the table that it prints at the end: a line for each case, and a column for the
//! protocol's functions alone and for each engine with each commit protocol.

use std::collections::VecDeque;
use std::ops::BitOr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::environment::Environment;

/// The number of cases, so that a case that is lost from the lists is noticed.
const CASES: usize = 65;
/// The number of cases that run at a time. It may exceed the number of cores, because a case spends
/// most of its time waiting.
const AT_A_TIME: usize = 4;
/// A case that takes longer has failed.
const TIME_MAX: Duration = Duration::from_secs(180);

/// A set of columns of the printed table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Columns(u8);

/// The pure functions of the protocol, on rows in a map.
pub const STEPS: Columns = Columns(1);
pub const ROCKS_ONE: Columns = Columns(2);
pub const ROCKS_TWO: Columns = Columns(4);
pub const SIM_ONE: Columns = Columns(8);
pub const SIM_TWO: Columns = Columns(16);
pub const SHARED_ONE: Columns = Columns(32);
pub const SHARED: Columns = Columns(64);
/// One-phase commits of a store with an exclusive engine.
pub const ONE: Columns = Columns(2 | 8);
pub const EMBEDDED_TWO: Columns = Columns(4 | 16);
pub const EMBEDDED: Columns = Columns(2 | 4 | 8 | 16);
pub const TWO: Columns = Columns(4 | 16 | 64);
/// Every column that has a store.
pub const STORES: Columns = Columns(2 | 4 | 8 | 16 | 64);

const EACH: [(Columns, &str, &str); 7] = [
    (STEPS, "protocol", ""),
    (ROCKS_ONE, "rocks", "one"),
    (ROCKS_TWO, "rocks", "two"),
    (SIM_ONE, "sim", "one"),
    (SIM_TWO, "sim", "two"),
    (SHARED_ONE, "shared", "one"),
    (SHARED, "shared", "two"),
];

// Why a case does not apply to a column: the reasons that several cases share.
pub const WHOLE_STORE: &str = "about a whole store, not about a decision on one row";
pub const NO_LOCKS: &str = "a one-phase commit has no locks and no record of a transaction in progress";
pub const NEVER_LATE: &str = "one-phase commits run in one process, where no request is late or repeated";
pub const NO_TTL: &str = "an exclusive engine has one process, which tracks its transactions: locks have no TTL";
pub const NO_COLLECTION: &str = "a shared engine has no GC: its versions and records stay";
const ALWAYS_TWO: &str = "clients of a shared engine always commit in two phases";
#[cfg(not(feature = "rocks"))]
const NO_ROCKS: &str = "built without the feature `rocks`";

impl Columns {
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Columns {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

pub type Test = fn(&Environment);

/// A line of the table.
pub struct Case {
    /// The pitfall. No two cases have the same name.
    name: &'static str,
    runs: Vec<(Columns, Test)>,
    not_applicable: Vec<(Columns, &'static str)>,
    row_by_row: bool,
}

impl Case {
    pub fn new(name: &'static str) -> Self {
        Self { name, runs: Vec::new(), not_applicable: vec![(SHARED_ONE, ALWAYS_TWO)], row_by_row: false }
    }

    /// The case runs in these columns. Where a column has several tests, all must pass.
    pub fn on(mut self, columns: Columns, test: Test) -> Self {
        self.runs.push((columns, test));
        self
    }

    /// The case does not apply to these columns.
    pub fn not_on(mut self, columns: Columns, reason: &'static str) -> Self {
        self.not_applicable.push((columns, reason));
        self
    }

    /// For a case that needs rows which are still locked after the commit point: it runs only with
    /// [`Environment::row_by_row`]. Other cases run in the columns of [`EMBEDDED_TWO`] twice, with
    /// and without it.
    pub fn row_by_row(mut self) -> Self {
        self.row_by_row = true;
        self
    }

    fn tests(&self, column: Columns) -> Vec<Test> {
        self.runs.iter().filter(|(columns, _)| columns.has(column)).map(|(_, test)| *test).collect()
    }

    fn reason(&self, column: Columns) -> Option<&'static str> {
        #[cfg(not(feature = "rocks"))]
        if (ROCKS_ONE | ROCKS_TWO).has(column) {
            return Some(NO_ROCKS);
        }
        self.not_applicable.iter().find(|(columns, _)| columns.has(column)).map(|(_, reason)| *reason)
    }
}

#[derive(Clone, PartialEq)]
enum Cell {
    Passed(Duration),
    Failed(String),
    NotApplicable(&'static str),
}

struct Job {
    line: usize,
    column: usize,
    name: &'static str,
    tests: Vec<Test>,
    row_by_row: bool,
}

/// Runs the cases that the command line selects and prints the table.
pub fn run(headings: Vec<(&'static str, Vec<Case>)>) -> ExitCode {
    let seed = std::env::var("PERCOLITE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(any_seed);
    let names: Vec<&str> = headings.iter().flat_map(|(_, cases)| cases.iter().map(|case| case.name)).collect();
    let mut complaints: Vec<String> = Vec::new();
    if names.len() != CASES {
        complaints.push(format!("{} cases are listed instead of {CASES}", names.len()));
    }
    let repeated = names.iter().enumerate().filter(|(at, name)| names[..*at].contains(*name));
    complaints.extend(repeated.map(|(_, name)| format!("two cases are named {name:?}")));

    let mut wanted = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--list" => {
                for case in headings.iter().flat_map(|(_, cases)| cases) {
                    println!("{}: test", case.name);
                }
                return ExitCode::SUCCESS;
            }
            "--skip" | "--ignored" | "--include-ignored" => {
                complaints.push(format!("{argument}: cases cannot be skipped"))
            }
            option if option.starts_with('-') => {}
            word => wanted.push(word.to_owned()),
        }
    }
    let is_wanted = |case: &Case| wanted.is_empty() || wanted.iter().any(|word| case.name.contains(word.as_str()));
    let lines: Vec<(&str, Case)> = headings
        .into_iter()
        .flat_map(|(heading, cases)| cases.into_iter().map(move |case| (heading, case)))
        .filter(|(_, case)| is_wanted(case))
        .collect();

    println!("\nrunning {} of {CASES} cases, PERCOLITE_SEED={seed}", lines.len());
    let began = Instant::now();
    let (mut table, jobs) = plan(&lines);
    for (line, column, cell) in work(jobs, seed) {
        if let Some(slot) = table.get_mut(line).and_then(|cells| cells.get_mut(column)) {
            *slot = cell;
        }
    }
    print_table(&lines, &table);

    let cells = || table.iter().flatten();
    let passed = cells().filter(|cell| matches!(cell, Cell::Passed(_))).count();
    let failed = cells().filter(|cell| matches!(cell, Cell::Failed(_))).count() + complaints.len();
    for complaint in &complaints {
        println!("FAILED: {complaint}");
    }
    if !wanted.is_empty() {
        println!("this is a part of the table: {} of {CASES} cases", lines.len());
    }
    println!("took {:.1} s, PERCOLITE_SEED={seed}\n", began.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plan(lines: &[(&str, Case)]) -> (Vec<Vec<Cell>>, VecDeque<Job>) {
    let mut jobs = VecDeque::new();
    let mut table = Vec::new();
    for (line, (_, case)) in lines.iter().enumerate() {
        let mut cells = Vec::new();
        for (column, (columns, ..)) in EACH.into_iter().enumerate() {
            let tests = case.tests(columns);
            cells.push(match (case.reason(columns), tests.is_empty()) {
                (Some(reason), true) => Cell::NotApplicable(reason),
                (None, true) => Cell::Failed("neither a test nor a reason why the case is not applicable".into()),
                #[cfg(not(feature = "rocks"))]
                (Some(reason), false) if reason == NO_ROCKS => Cell::NotApplicable(reason),
                (Some(_), false) => Cell::Failed("both a test and a reason why the case is not applicable".into()),
                (None, false) => {
                    jobs.push_back(Job { line, column, name: case.name, tests, row_by_row: case.row_by_row });
                    Cell::Failed("did not run".into())
                }
            });
        }
        table.push(cells);
    }
    (table, jobs)
}

fn work(jobs: VecDeque<Job>, seed: u64) -> Vec<(usize, usize, Cell)> {
    let jobs = Mutex::new(jobs);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some(job) = jobs.lock().unwrap().pop_front() else { return };
                    let (line, column) = (job.line, job.column);
                    let cell = run_cell(job, seed);
                    done.lock().unwrap().push((line, column, cell));
                }
            });
        }
    });
    done.into_inner().unwrap()
}

fn run_cell(job: Job, seed: u64) -> Cell {
    let (columns, engine, protocol) = EACH[job.column];
    let name = format!("{} {engine} {protocol}", job.name);
    let seed = seed ^ hash(job.name) ^ ((job.column as u64) << 32);
    let (answer, answered) = mpsc::channel();
    let began = Instant::now();
    let body = move || {
        let tested = catch_unwind(AssertUnwindSafe(|| {
            for test in &job.tests {
                if !job.row_by_row {
                    test(&Environment::new(columns, seed));
                }
                if job.row_by_row || (SIM_TWO | ROCKS_TWO).has(columns) {
                    test(&Environment::new(columns, seed).row_by_row());
                }
            }
        }));
        let _ = answer.send(tested.map_err(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        }));
    };
    std::thread::Builder::new().name(name).spawn(body).unwrap();
    match answered.recv_timeout(TIME_MAX) {
        Ok(Ok(())) => Cell::Passed(began.elapsed()),
        Ok(Err(error)) => Cell::Failed(error),
        Err(_) => Cell::Failed(format!("hangs: no result after {TIME_MAX:?}")),
    }
}

fn print_table(lines: &[(&str, Case)], table: &[Vec<Cell>]) {
    let width = lines.iter().map(|(_, case)| case.name.len()).max().unwrap_or(0);
    let mut reasons: Vec<&str> = Vec::new();
    let mut last = "";
    let row = |name: &str, cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>8}")).collect();
        println!("{}", format!("  {name:<width$}{}", cells.concat()).trim_end());
    };
    println!();
    row("", &EACH.map(|(_, engine, _)| engine.to_owned()));
    row("", &EACH.map(|(.., phases)| if phases.is_empty() { String::new() } else { format!("{phases} ph.") }));
    for ((heading, case), cells) in lines.iter().zip(table) {
        if *heading != last {
            println!("{heading}");
            last = heading;
        }
        let cells: Vec<String> = cells
            .iter()
            .map(|cell| match cell {
                Cell::Passed(_) => "passed".into(),
                Cell::Failed(_) => "FAILED".into(),
                Cell::NotApplicable(reason) => {
                    let known = reasons.iter().position(|known| known == reason);
                    let index = known.unwrap_or_else(|| {
                        reasons.push(reason);
                        reasons.len() - 1
                    });
                    format!("n/a {}", index + 1)
                }
            })
            .collect();
        row(case.name, &cells);
    }
    println!(
        "\nprotocol: its pure functions; rocks, sim: a store with an exclusive engine; \
         shared: clients of one engine in memory; n/a: not applicable, because"
    );
    for (index, reason) in reasons.iter().enumerate() {
        println!("{:>4}  {reason}", index + 1);
    }
    println!();
    for ((_, case), cells) in lines.iter().zip(table) {
        for (cell, (_, engine, phases)) in cells.iter().zip(EACH) {
            match cell {
                Cell::Failed(error) => println!("FAILED: {} on {engine} {phases}: {error}", case.name),
                Cell::Passed(took) if *took > Duration::from_secs(10) => {
                    println!("slow: {} on {engine} {phases} took {:.1} s", case.name, took.as_secs_f64());
                }
                _ => {}
            }
        }
    }
}

/// FNV-1a. A case's seed depends on its name, so that the case makes the same random choices when
/// only a part of the table runs.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn any_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000_007
}
