//! The table of `docs/locks.md` that maps letters to tests, against the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// How many cases of its own each number has; 0 is one case without a letter behind the number.
const CASES: [(&str, u8); 20] = [
    ("M1", 6),
    ("M2", 4),
    ("M3", 4),
    ("M4", 5),
    ("Z1", 0),
    ("Z2", 0),
    ("Z3", 4),
    ("Z4", 4),
    ("F1", 4),
    ("F2", 5),
    ("F3", 2),
    ("F4", 0),
    ("F5", 5),
    ("L1", 6),
    ("L2", 5),
    ("L3", 5),
    ("L4", 5),
    ("G1", 4),
    ("G2", 7),
    ("T1", 4),
];

/// Where tests of letters may be.
const SOURCES: [&str; 5] = ["tests/locks", "src/locking", "src/store/locks", "tools/cli/tests", "tools/crashtest/src"];

/// Numbers whose cases are the same for tasks: histories of a head, kills, processes, what is shown.
const WITHOUT_TASKS: [&str; 6] = ["M1e", "L1", "G2", "T1a", "T1c", "T1d"];

/// Cases whose tests are in `src/locking`, and have names without letters.
const IN_UNIT_TESTS: [&str; 4] = ["M1e", "M1f", "M2d", "Z3a"];

/// Cases that only tasks have: dropped futures, and the end of their runtime.
const OF_TASKS_ALONE: [&str; 2] = ["Z3b", "Z4d"];

fn letters() -> Vec<String> {
    let of = |(number, cases): &(&str, u8)| -> Vec<String> {
        match cases {
            0 => vec![(*number).to_owned()],
            cases => (b'a'..b'a' + cases).map(|case| format!("{number}{}", char::from(case))).collect(),
        }
    };
    CASES.iter().flat_map(of).collect()
}

/// How the name of the letter's test begins: `m1_a_`, `z1_`, `task_m1_a_`.
fn beginning(letter: &str, of_tasks: bool) -> String {
    let (number, case) = letter.split_at(2);
    let case = if case.is_empty() { String::new() } else { format!("{case}_") };
    format!("{}{}_{case}", if of_tasks { "task_" } else { "" }, number.to_lowercase())
}

/// The rows of the tables for threads and for tasks: letter and test.
fn tables() -> [Vec<(String, String)>; 2] {
    let page = include_str!("../../docs/locks.md");
    let (_, section) = page.split_once("## The letters").unwrap();
    let (threads, tasks) = section.split_once("### For tasks").unwrap();
    [threads, tasks].map(|table| {
        let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
        let rows = rows.map(|row| row.split_once(" | ").unwrap_or_else(|| panic!("a row has two cells: {row}")));
        rows.skip(1).map(|(letter, test)| (letter.to_owned(), test.trim_matches('`').to_owned())).collect()
    })
}

/// All functions that the test runner runs, by their paths: `tasks::modes::m1_a_…`.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<(PathBuf, String)> = SOURCES.iter().map(|folder| (root.join(folder), String::new())).collect();
    let mut found = BTreeSet::new();
    while let Some((folder, above)) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let module = format!("{above}{}::", path.file_stem().unwrap().to_string_lossy());
            if path.is_dir() {
                folders.push((path, module));
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

/// The name without its path.
fn name(test: &str) -> &str {
    test.rsplit_once("::").map_or(test, |(_, name)| name)
}

#[test]
fn each_letter_is_in_the_table_once_and_has_a_test_of_its_own() {
    let (letters, tables, tests) = (letters(), tables(), tests());
    assert_eq!(letters.len(), 82);
    let mut wrong: Vec<String> = Vec::new();
    let mut named: BTreeMap<&str, &str> = BTreeMap::new();
    for (table, of_tasks) in tables.iter().zip([false, true]) {
        for (letter, test) in table {
            if !tests.contains(test) {
                wrong.push(format!("{letter}: there is no test {test}"));
            }
            let is_unit_test = !of_tasks && IN_UNIT_TESTS.contains(&letter.as_str());
            if !is_unit_test && !name(test).starts_with(&beginning(letter, of_tasks)) {
                wrong.push(format!("{letter}: {test} has another name"));
            }
            if let Some(other) = named.insert(test, letter) {
                wrong.push(format!("{letter} shares {test} with {other}"));
            }
        }
        let left_out: &[&str] = if of_tasks { &WITHOUT_TASKS } else { &OF_TASKS_ALONE };
        let expected: Vec<&String> =
            letters.iter().filter(|letter| !left_out.iter().any(|out| letter.starts_with(out))).collect();
        let listed: Vec<&String> = table.iter().map(|(letter, _)| letter).collect();
        for letter in expected.iter().filter(|letter| !listed.contains(letter)) {
            let begin = beginning(letter, of_tasks);
            let there: Vec<_> = tests.iter().filter(|test| name(test).starts_with(&begin)).collect();
            wrong.push(format!("{letter} is missing, of tasks: {of_tasks}; its tests: {there:?}"));
        }
        if listed != expected {
            wrong.push(format!("not each letter once and in order, of tasks: {of_tasks}"));
        }
    }
    // A test with a letter in its name that no table knows would be a second one of that letter.
    let is_of = |test: &str, letter: &str| [false, true].iter().any(|task| test.starts_with(&beginning(letter, *task)));
    for test in tests.iter().filter(|test| !named.contains_key(test.as_str())) {
        if letters.iter().any(|letter| is_of(name(test), letter)) {
            wrong.push(format!("{test} is in no table"));
        }
    }
    assert!(wrong.is_empty(), "{} mistakes in the tables of docs/locks.md:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn names_of_tests_are_found_and_those_of_other_functions_are_not() {
    let source =
        "#[test]\nfn one() {}\nfn two() {}\n#[tokio::test(flavor = \"x\")]\n#[ignore]\nasync fn three<T>() {}\n";
    assert_eq!(tests_of(source).collect::<Vec<_>>(), ["one", "three"]);
    assert_eq!((beginning("M1a", false), beginning("Z1", true)), ("m1_a_".into(), "task_z1_".into()));
}
