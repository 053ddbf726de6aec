//! Rules of the sources that no compiler checks: widths, sizes, words, and imports without circles.
//!
//! A failure lists every place. Sources that a rule does not hold for yet are named here, and a
//! name that is not needed any more fails the test too, so the lists only get shorter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, reason = "style of a library, not of its tests")]

mod documents;
mod imports;
mod public_api;
mod words;

use std::path::{Path, PathBuf};

/// A text file of the repository.
pub struct Source {
    /// Its path from the root.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// The files whose names end in `ending`, in order of their paths. Each root is a file, or a
/// directory that is searched with its subdirectories.
pub fn sources(roots: &[&str], ending: &str) -> Vec<Source> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    roots.iter().for_each(|root| collect(&top.join(root), &mut paths));
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    paths.sort();
    assert!(!paths.is_empty(), "no {ending} in {roots:?}");
    let relative = |path: &PathBuf| path.strip_prefix(top).unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| Source { path: relative(path), text: std::fs::read_to_string(path).unwrap() }).collect()
}

fn collect(path: &Path, paths: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            let entry = entry.unwrap().path();
            if !entry.ends_with("target") {
                collect(&entry, paths);
            }
        }
    } else {
        paths.push(path.to_owned());
    }
}

/// Fails with all places where a rule is broken. Paths that begin with an entry of `exempt` are
/// left out; an entry that exempts nothing fails, too.
pub fn check(rule: &str, broken: &[(String, String)], exempt: &[&str]) {
    let is_exempt = |path: &str| exempt.iter().any(|prefix| path.starts_with(prefix));
    let lines: Vec<String> =
        broken.iter().filter(|(path, _)| !is_exempt(path)).map(|(path, place)| format!("{path}{place}")).collect();
    assert!(lines.is_empty(), "{rule}:\n{}", lines.join("\n"));
    for prefix in exempt {
        assert!(broken.iter().any(|(path, _)| path.starts_with(prefix)), "{rule}: {prefix} needs no exemption");
    }
}

const RUST: &[&str] = &["build.rs", "src", "tests", "tools", "examples", "benches"];
const DOCUMENTS: &[&str] = &[
    "README.md",
    "DESIGN.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benches",
    "docs",
    "examples",
    "src",
    "tests",
    "tools",
];
const COMMENT_COLUMNS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 400;
/// The limit outside of the library, where a file includes its tests.
const OTHER_FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

#[test]
fn comments_fit_their_width() {
    let mut broken = Vec::new();
    for source in sources(RUST, ".rs") {
        for (line, number) in source.text.lines().zip(1..) {
            if line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS_MAX {
                broken.push((source.path.clone(), format!(":{number}")));
            }
        }
    }
    check("a comment line has at most 100 columns", &broken, &["tests/bad_input/main.rs"]);
}

#[test]
fn files_of_the_library_are_short() {
    let mut broken = Vec::new();
    for source in sources(&["src"], ".rs") {
        let code = source.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().count();
        if lines > FILE_LINES_MAX {
            broken.push((source.path, format!(": {lines} lines")));
        }
    }
    check("a file of the library has at most 400 lines without its tests", &broken, &[]);
}

#[test]
fn other_files_are_short() {
    let files = sources(&["build.rs", "tests", "tools", "examples", "benches"], ".rs").into_iter();
    let files = files.map(|source| (source.path, source.text.lines().count()));
    let broken = files.filter(|(_, lines)| *lines > OTHER_FILE_LINES_MAX);
    let broken: Vec<_> = broken.map(|(path, lines)| (path, format!(": {lines} lines"))).collect();
    check("another file has at most 500 lines", &broken, &[]);
}

#[test]
fn functions_of_the_library_are_short() {
    let mut broken = Vec::new();
    for source in sources(&["src"], ".rs") {
        let lines: Vec<&str> = source.text.lines().collect();
        for (number, line) in (1..).zip(&lines) {
            let indent = line.len() - line.trim_start().len();
            let is_function = line.split('(').next().unwrap_or_default().split(' ').any(|word| word == "fn");
            if !is_function || line.trim_start().starts_with("//") || line.ends_with(';') {
                continue;
            }
            let end = format!("{}}}", &line[..indent]);
            let length = lines[number - 1..].iter().position(|line| *line == end).map_or(1, |at| at + 1);
            if length > FUNCTION_LINES_MAX {
                broken.push((source.path.clone(), format!(":{number}: {length} lines")));
            }
        }
    }
    check("a function of the library has at most 70 lines", &broken, &[]);
}

/// Every method of the handle can use all of the store's state, whatever file it is in. So its
/// blocks have only the public calls. The rest belongs to parts with private state.
#[test]
fn the_handle_of_a_store_has_only_public_calls() {
    let mut broken = Vec::new();
    for source in sources(&["src"], ".rs") {
        let mut in_handle = false;
        for (line, number) in source.text.lines().zip(1..) {
            in_handle = line == "impl Store {" || in_handle && line != "}";
            let is_method = line.starts_with("    ") && !line.starts_with("     ") && line.contains("fn ");
            let is_comment = line.trim_start().starts_with("//");
            if in_handle && is_method && !is_comment && !line.starts_with("    pub fn ") {
                broken.push((source.path.clone(), format!(":{number}: {}", line.trim())));
            }
        }
    }
    check("an `impl Store` has only public calls", &broken, &["src/store/handle.rs"]);
}

#[test]
fn the_expected_rocksdb_is_the_bundled_one() {
    for lock_file in sources(&["Cargo.lock", "tools/compare/Cargo.lock"], "Cargo.lock") {
        let mut lines = lock_file.text.lines().skip_while(|line| *line != "name = \"librocksdb-sys\"");
        let version = lines.nth(1).unwrap().trim_end_matches('"').split_once('+').unwrap().1;
        assert_eq!(version, env!("PERCOLITE_ROCKSDB_VERSION"), "{}; see build.rs", lock_file.path);
    }
}

#[test]
fn every_test_target_is_a_directory_with_a_main_or_one_file() {
    let nested = sources(&["tests"], "main.rs").len();
    assert!(nested >= 13, "{nested} targets in directories");
    let mut broken = Vec::new();
    for source in sources(&["tests"], ".rs") {
        for (line, number) in source.text.lines().zip(1..) {
            if line.trim_start().starts_with("#[path = ") && !line.contains("../support/") {
                broken.push((source.path.clone(), format!(":{number}: {}", line.trim())));
            }
        }
    }
    check("tests include by path only the shared support", &broken, &[]);
}
