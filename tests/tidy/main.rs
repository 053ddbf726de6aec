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
    // The lines of a table in this file are longer: each has an input, what happens, and a test.
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
fn functions_are_short() {
    let mut broken = Vec::new();
    for source in sources(RUST, ".rs") {
        for (number, lines) in functions(&source.text) {
            if lines > FUNCTION_LINES_MAX {
                broken.push((source.path.clone(), format!(":{number}: {lines} lines")));
            }
        }
    }
    check("a function has at most 70 lines", &broken, &[]);
}

/// The functions with a body of several lines: the number of the first line, and how many lines
/// there are. A function whose end is not found has the rest of the text, so that it is reported.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().map(|line| line.split(" // ").next().unwrap_or_default()).collect();
    let mut found = Vec::new();
    for (number, line) in (1..).zip(&lines).filter(|(_, line)| begins_function(line)) {
        let rest = &lines[number - 1..];
        // This line ends with `{` before a body of several lines, with `;` in a declaration, and
        // with `}` in a function of one line. Only the first kind counts.
        let signature_end = rest.iter().find(|line| line.ends_with(['{', '}', ';']));
        if signature_end.is_none_or(|line| line.ends_with('{')) {
            let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
            found.push((number, rest.iter().position(|line| *line == end).map_or(rest.len(), |at| at + 1)));
        }
    }
    found
}

/// Only a function has a name after `fn`; the type of a function pointer has a parenthesis there.
fn begins_function(line: &str) -> bool {
    let line = line.trim_start();
    let without_scope = line.strip_prefix("pub(").and_then(|rest| Some(rest.split_once(") ")?.1));
    let qualifiers = ["pub", "default", "const", "async", "unsafe", "extern", "\"C\""];
    let mut words = without_scope.unwrap_or(line).split(' ').skip_while(|word| qualifiers.contains(word));
    let is_name = |word: &str| word.starts_with(|char: char| char.is_alphabetic() || "_$".contains(char));
    words.next() == Some("fn") && words.next().is_some_and(is_name)
}

#[test]
fn functions_are_found_with_their_lines() {
    let text = [
        "/// fn in_a_comment() {",
        "const HELP: &str = \"fn in_a_text() {\";",
        "struct Column {",
        "    home: fn() -> Home,",
        "}",
        "trait Shape {",
        "    fn area(&self) -> f64;",
        "    fn scale(",
        "        &mut self,",
        "    ) -> f64;",
        "    fn name(&self) {}",
        "    fn id(&self) -> u64 {",
        "        7",
        "    }",
        "}",
        "pub(in crate::store) async fn long<T>(",
        "    parts: [u8; 3],",
        ") where",
        "    T: Copy,",
        "{ // why",
        "    let inner = || {",
        "    };",
        "}",
        "            unsafe extern \"C\" fn $case() {",
        "            }",
        "fn without_end() {",
        "    0",
    ];
    assert_eq!(functions(&text.join("\n")), [(12, 3), (16, 8), (24, 2), (26, 2)]);
}

/// Every method of `Store` can use all of the store's state, whatever file the method is in. So an
/// `impl Store` has only the public calls; the rest belongs to parts with private state.
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

/// A test that hangs does not say what did not happen.
#[test]
fn awaited_messages_have_a_limit() {
    let mut broken = Vec::new();
    for source in sources(&["tests", "tools"], ".rs") {
        for (line, number) in source.text.lines().zip(1..) {
            let awaits = [".recv()", ".recv().await"]
                .iter()
                .any(|call| [".unwrap()", ".expect("].iter().any(|end| line.contains(&format!("{call}{end}"))));
            if awaits {
                broken.push((source.path.clone(), format!(":{number}: {}", line.trim())));
            }
        }
    }
    check("a test awaits a message with `recv_timeout`, and a sentence", &broken, &[]);
}

#[test]
fn the_expected_rocksdb_is_the_bundled_one() {
    for lock_file in sources(&["Cargo.lock", "tools/compare/Cargo.lock", "tools/outside/Cargo.lock"], "Cargo.lock") {
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
