//! Compares the tables of `cases.md`, which name the test of each case, with the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The subjects of the tables in `cases.md`, with the number of tests for threads and of tests for
/// tasks.
///
/// Cases in which tasks change nothing have no test for tasks: histories of one lock queue, kills,
/// processes, what the lock table shows. Other cases exist for tasks only: dropped futures, the end
/// of a runtime.
const SUBJECTS: [(&str, usize, usize); 20] = [
    ("shared and exclusive", 6, 5),
    ("leaving the queue", 4, 4),
    ("semaphores", 4, 4),
    ("conversions", 5, 5),
    ("starvation", 1, 1),
    ("wakes", 1, 1),
    ("ends of waits", 3, 4),
    ("deadlocks and panics", 3, 4),
    ("fences and tokens", 4, 4),
    ("lost locks", 5, 5),
    ("paused holders", 2, 2),
    ("fencing tokens", 1, 1),
    ("locked transactions", 5, 5),
    ("restarts", 6, 0),
    ("detach and attach", 5, 5),
    ("renewal", 5, 5),
    ("close and damage", 5, 5),
    ("get_lock", 4, 4),
    ("the command line", 7, 0),
    ("the lock table", 4, 1),
];

/// Where the tests are.
const SOURCES: [&str; 5] =
    ["tests/locks", "src/lock_manager", "src/store/named_locks", "tools/cli/tests", "tools/crashtest/src"];

/// The rows of the tables for threads and for tasks: subject and test.
fn tables() -> [Vec<(String, String)>; 2] {
    let page = include_str!("cases.md");
    let (_, section) = page.split_once("## The tests").unwrap();
    let (threads, tasks) = section.split_once("### For tasks").unwrap();
    [threads, tasks].map(|table| {
        let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
        let rows = rows.map(|row| row.split_once(" | ").unwrap_or_else(|| panic!("a row has two cells: {row}")));
        rows.skip(1).map(|(subject, test)| (subject.to_owned(), test.trim_matches('`').to_owned())).collect()
    })
}

/// All test functions, by their paths: `tasks::modes::semaphore_requests_are_fifo`.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories: Vec<(PathBuf, String)> =
        SOURCES.iter().map(|directory| (root.join(directory), String::new())).collect();
    let mut found = BTreeSet::new();
    while let Some((directory, above)) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let module = format!("{above}{}::", path.file_stem().unwrap().to_string_lossy());
            if path.is_dir() {
                directories.push((path, module));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.extend(tests_of(&fs::read_to_string(&path).unwrap()).map(|test| format!("{module}{test}")));
            }
        }
    }
    found
}

fn tests_of(source: &str) -> impl Iterator<Item = String> {
    let mut is_test = false;
    source.lines().map(str::trim).filter_map(move |line| {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")
            && std::mem::take(&mut is_test)
        {
            return name.split(['(', '<']).next().map(str::to_owned);
        }
        None
    })
}

#[test]
fn every_case_in_the_tables_has_its_own_test() {
    let ([threads, tasks], tests) = (tables(), tests());
    let mut wrong: Vec<String> = Vec::new();
    let mut named = BTreeSet::new();
    for (subject, test) in threads.iter().chain(&tasks) {
        if !tests.contains(test) {
            wrong.push(format!("{subject}: there is no test {test}"));
        }
        if !named.insert(test) {
            wrong.push(format!("{subject}: {test} is named twice"));
        }
        if !SUBJECTS.iter().any(|(name, ..)| name == subject) {
            wrong.push(format!("{subject} is no subject of this list"));
        }
    }
    let count = |table: &[(String, String)], subject: &str| table.iter().filter(|(of, _)| of == subject).count();
    for (subject, of_threads, of_tasks) in SUBJECTS {
        let found = [count(&threads, subject), count(&tasks, subject)];
        if found != [of_threads, of_tasks] {
            wrong.push(format!(
                "{subject}: {found:?} tests for threads and tasks instead of {of_threads} and {of_tasks}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} mistakes in the tables of tests/locks/cases.md:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn parser_finds_test_functions_only() {
    let source =
        "#[test]\nfn one() {}\nfn two() {}\n#[tokio::test(flavor = \"x\")]\n#[ignore]\nasync fn three<T>() {}\n";
    assert_eq!(tests_of(source).collect::<Vec<_>>(), ["one", "three"]);
}
