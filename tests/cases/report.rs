//! Which case runs where, running them, and the table at the end.

use std::collections::VecDeque;
use std::ops::BitOr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::world::World;

const CASES: u32 = 62;
/// Most of a case's time is spent waiting.
const AT_A_TIME: usize = 4;
/// A case that takes longer hangs.
const TIME_MAX: Duration = Duration::from_secs(180);

/// Columns of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Columns(u8);

/// The protocol's plain functions over rows in a map.
pub const STEPS: Columns = Columns(1);
pub const ROCKS_ONE: Columns = Columns(2);
pub const ROCKS_TWO: Columns = Columns(4);
pub const SIM_ONE: Columns = Columns(8);
pub const SIM_TWO: Columns = Columns(16);
pub const SHARED_ONE: Columns = Columns(32);
pub const SHARED: Columns = Columns(64);
/// A store that has its engine for itself.
pub const ONE: Columns = Columns(2 | 8);
pub const EMBEDDED_TWO: Columns = Columns(4 | 16);
pub const EMBEDDED: Columns = Columns(2 | 4 | 8 | 16);
pub const TWO: Columns = Columns(4 | 16 | 64);
/// Every way to have a store.
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

// Reasons that several cases have.
pub const WHOLE_STORE: &str = "about a whole store, not a decision over one row";
pub const NO_LOCKS: &str = "one phase leaves no lock and no record of a transaction that is under way";
pub const NEVER_LATE: &str = "one phase is for one process, in which no request is late or repeated";
pub const NO_TTL: &str = "a process that has its engine for itself knows who lives: locks have no time to live";
pub const NO_COLLECTION: &str = "nothing collects on a shared engine yet: its versions and records stay";
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

pub type Test = fn(&World);

/// A line of the table.
pub struct Case {
    number: u32,
    name: &'static str,
    runs: Vec<(Columns, Test)>,
    not_applicable: Vec<(Columns, &'static str)>,
    row_by_row: bool,
}

impl Case {
    pub fn new(number: u32, name: &'static str) -> Self {
        Self { number, name, runs: Vec::new(), not_applicable: vec![(SHARED_ONE, ALWAYS_TWO)], row_by_row: false }
    }

    /// The case runs in these columns; with several tests in a column, all must pass.
    pub fn on(mut self, columns: Columns, test: Test) -> Self {
        self.runs.push((columns, test));
        self
    }

    /// The case has no meaning in these columns.
    pub fn not_on(mut self, columns: Columns, why: &'static str) -> Self {
        self.not_applicable.push((columns, why));
        self
    }

    /// The case is about what lies between the commit point and the last row, so where a store could commit all rows together its
    /// engine is one that changes them one by one. Other cases have both there.
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
        self.not_applicable.iter().find(|(columns, _)| columns.has(column)).map(|(_, why)| *why)
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
    number: u32,
    tests: Vec<Test>,
    row_by_row: bool,
}

/// Runs what the command line asks for and prints the table.
pub fn run(headings: Vec<(&'static str, Vec<Case>)>) -> ExitCode {
    let seed = std::env::var("PERCOLITE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(any_seed);
    let numbers: Vec<u32> = headings.iter().flat_map(|(_, cases)| cases.iter().map(|case| case.number)).collect();
    let mut complaints: Vec<String> =
        (1..=CASES).filter(|n| !numbers.contains(n)).map(|n| format!("case {n} is missing")).collect();
    complaints.extend(numbers.iter().filter(|n| !(1..=CASES).contains(*n)).map(|n| format!("case {n} is unknown")));
    complaints.extend(
        (1..=CASES)
            .filter(|n| numbers.iter().filter(|m| *m == n).count() > 1)
            .map(|n| format!("case {n} is there twice")),
    );

    let mut wanted = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--list" => {
                for case in headings.iter().flat_map(|(_, cases)| cases) {
                    println!("{} {}: test", case.number, case.name);
                }
                return ExitCode::SUCCESS;
            }
            "--skip" | "--ignored" | "--include-ignored" => {
                complaints.push(format!("{argument}: no case may be ignored"))
            }
            option if option.starts_with('-') => {}
            word => {
                if word.parse::<u32>().is_ok_and(|number| !numbers.contains(&number)) {
                    complaints.push(format!("case {word} is unknown"));
                }
                wanted.push(word.to_owned());
            }
        }
    }
    let is_wanted = |case: &Case| {
        wanted.is_empty()
            || wanted.iter().any(|word| word.parse() == Ok(case.number) || case.name.contains(word.as_str()))
    };
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
        println!("this was a part of the table: {} of {CASES} cases", lines.len());
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
                (Some(why), true) => Cell::NotApplicable(why),
                (None, true) => Cell::Failed("neither a test nor a reason why there is none".into()),
                #[cfg(not(feature = "rocks"))]
                (Some(why), false) if why == NO_ROCKS => Cell::NotApplicable(why),
                (Some(_), false) => Cell::Failed("a test, and a reason why there is none".into()),
                (None, false) => {
                    jobs.push_back(Job { line, column, number: case.number, tests, row_by_row: case.row_by_row });
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
    let name = format!("case {} {engine} {protocol}", job.number);
    let seed = seed ^ u64::from(job.number).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((job.column as u64) << 32);
    let (answer, answered) = mpsc::channel();
    let began = Instant::now();
    let body = move || {
        let tested = catch_unwind(AssertUnwindSafe(|| {
            for test in &job.tests {
                if !job.row_by_row {
                    test(&World::new(columns, seed));
                }
                if job.row_by_row || (SIM_TWO | ROCKS_TWO).has(columns) {
                    test(&World::new(columns, seed).row_by_row());
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
        Ok(Err(why)) => Cell::Failed(why),
        Err(_) => Cell::Failed(format!("hangs: no answer in {TIME_MAX:?}")),
    }
}

fn print_table(lines: &[(&str, Case)], table: &[Vec<Cell>]) {
    let width = lines.iter().map(|(_, case)| case.name.len()).max().unwrap_or(0);
    let mut reasons: Vec<&str> = Vec::new();
    let mut last = "";
    let row = |number: &str, name: &str, cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>8}")).collect();
        println!("{}", format!("{number:>4}  {name:<width$}{}", cells.concat()).trim_end());
    };
    println!();
    row("", "", &EACH.map(|(_, engine, _)| engine.to_owned()));
    row("", "", &EACH.map(|(.., phases)| if phases.is_empty() { String::new() } else { format!("{phases} ph.") }));
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
                Cell::NotApplicable(why) => {
                    let known = reasons.iter().position(|reason| reason == why);
                    let index = known.unwrap_or_else(|| {
                        reasons.push(why);
                        reasons.len() - 1
                    });
                    format!("n/a {}", index + 1)
                }
            })
            .collect();
        row(&case.number.to_string(), case.name, &cells);
    }
    println!(
        "\nrocks, sim: a store that has its engine for itself; shared: clients of one engine in memory; n/a: not applicable,"
    );
    for (index, reason) in reasons.iter().enumerate() {
        println!("{:>4}  {reason}", index + 1);
    }
    println!();
    for ((_, case), cells) in lines.iter().zip(table) {
        for (cell, (_, engine, phases)) in cells.iter().zip(EACH) {
            match cell {
                Cell::Failed(why) => println!("FAILED: case {} on {engine} {phases}: {why}", case.number),
                Cell::Passed(took) if *took > Duration::from_secs(10) => {
                    println!("slow: case {} on {engine} {phases} took {:.1} s", case.number, took.as_secs_f64());
                }
                _ => {}
            }
        }
    }
}

fn any_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000_007
}
