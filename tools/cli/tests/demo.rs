//! The demo end to end: the built program, its output and its exit code.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const JSON: &str = r#"{"id": 1, "name": "Ada", "team": "red"}
{"id": 2, "name": "Grace", "team": "blue"}

{"id": 3, "name": "Edsger", "team": "red"}
{"id": 4, "name": "Barbara", "team": "blue"}
{"id": 1, "name": "Ada", "team": "blue"}
{"id": 5, "name": "Tony", "team": null}
"#;
const TSV: &str = "name\tcountry\tpopulation\nOslo\tNorway\t717710\nBergen\tNorway\t291940\nParis\tFrance\t2102650\n";
const PACKAGES: &str = "Package: alpha\nVersion: 1\nSection: libs\nDescription: first\n more\n\n\
                        Package: beta\nVersion: 1\nSection: games\n\nPackage: alpha\nVersion: 2\nSection: games\n";

/// A directory that is removed after the test.
struct TestDir(PathBuf);

impl TestDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("percolite-cli-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn entries(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `percolite demo` with short transfers; its temporary directories are in `temp`.
fn demo(temp: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_percolite"));
    command.args(["demo", "--seconds", "0.2"]).args(arguments);
    command.env("TMPDIR", temp).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(temp: &TestDir, arguments: &[&str]) -> Output {
    demo(&temp.0, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Asserts that all checks passed, and returns the output.
fn passes(output: &Output) -> String {
    let (report, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{report}{errors}");
    assert_eq!(errors, "");
    assert!(report.contains("All checks passed in "), "{report}");
    assert!(!report.contains('✗'), "{report}");
    for column in ["locked rows", "owner, created", "primary", "status", "resolution"] {
        assert!(report.contains(column), "no column {column:?} in {report}");
    }
    assert!(number_before(&report, " rolled forward by reading") >= 1, "{report}");
    assert!(number_before(&report, " rolled back by reading") >= 1, "{report}");
    report
}

/// The first number in the line that ends in `what`.
fn number_before(report: &str, what: &str) -> u64 {
    let line = report
        .lines()
        .find(|line| line.ends_with(what))
        .unwrap_or_else(|| panic!("no line ends in {what:?}: {report}"));
    line.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

/// Asserts that the program failed with an error of one line, and returns that line.
fn error_of(output: &Output) -> String {
    let errors = text(&output.stderr);
    let not_a_store = Some(5);
    let failed = [Some(1), not_a_store].contains(&output.status.code());
    assert!(failed, "{}: {}{errors}", output.status, text(&output.stdout));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    errors.strip_prefix("error: ").unwrap_or_else(|| panic!("no error: {errors}")).trim_end().to_owned()
}

#[test]
fn json_lines_with_a_duplicate_key() {
    let temp = TestDir::new();
    let report = passes(&run(&temp, &["--input", &temp.file("people.jsonl", JSON)]));
    assert!(report.contains("JSON lines; key: id; index: team"), "{report}");
    assert!(report.contains("6 records (5 new, 1 replaced)"), "{report}");
    assert!(report.contains("5 records and 5 entries of the index match exactly"), "{report}");
    assert_eq!(temp.entries(), 1, "the directory of the store remains");
}

#[test]
fn tab_separated_values() {
    let temp = TestDir::new();
    let report = passes(&run(&temp, &["--input", &temp.file("cities.tsv", TSV)]));
    assert!(report.contains("tab-separated values; key: name; index: country"), "{report}");
    assert!(report.contains("3 records (3 new"), "{report}");
}

#[test]
fn a_debian_package_list_and_named_fields() {
    let temp = TestDir::new();
    let list = temp.file("Packages", PACKAGES);
    let report = passes(&run(&temp, &["--input", &list]));
    assert!(report.contains("Debian package list; key: Package; index: Section"), "{report}");
    assert!(report.contains("3 records (2 new, 1 replaced)"), "{report}");
    let report = passes(&run(&temp, &["--input", &list, "--key-field", "Version", "--index-field", "Package"]));
    assert!(report.contains("key: Version; index: Package"), "{report}");
}

#[test]
fn standard_input() {
    let temp = TestDir::new();
    let mut child = demo(&temp.0, &["--input", "-", "--rows", "3"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(JSON.as_bytes()).unwrap();
    let report = passes(&child.wait_with_output().unwrap());
    assert!(report.contains("source: standard input"), "{report}");
    assert!(report.contains("3 records (3 new"), "{report}");
}

#[test]
fn the_sample_runs_twice_in_a_kept_directory() {
    let temp = TestDir::new();
    let dir = temp.0.join("store").to_str().unwrap().to_owned();
    for _ in 0..2 {
        let report = passes(&run(&temp, &["--source", "sample", "--dir", &dir, "--seed", "7"]));
        assert!(report.contains("118 records (118 new"), "{report}");
        assert!(report.contains(&format!("The store is kept in {dir}.")), "{report}");
        assert!(temp.0.join("store/PERCOLITE").exists());
    }
    assert_eq!(temp.entries(), 1);
}

#[test]
fn keep_leaves_the_temporary_directory() {
    let temp = TestDir::new();
    passes(&run(&temp, &["--source", "sample", "--keep"]));
    assert_eq!(temp.entries(), 1);
}

#[test]
fn unreadable_input_is_refused() {
    let temp = TestDir::new();
    let broken = JSON.replacen("\"blue\"}", "\"blue\"", 1);
    let cases = [
        (temp.0.join("missing").to_str().unwrap().to_owned(), "cannot read "),
        (temp.0.to_str().unwrap().to_owned(), "it is a directory"),
        (temp.file("broken.jsonl", broken), "line 2 of "),
        (temp.file("broken.tsv", format!("{TSV}Rome\tItaly\n")), "line 5 of "),
        (temp.file("latin1.tsv", b"name\tcountry\nK\xf6ln\tGermany\n"), "is not UTF-8"),
        (temp.file("array.json", "[{\"id\": 1}]"), "is one JSON array, not one object per line"),
        (temp.file("prose.txt", "Once upon a time"), "line 1 of "),
        (temp.file("numbers.jsonl", "1\n2\n"), "is JSON, but not an object"),
        (temp.file("keyless.jsonl", "{\"id\": 1, \"a\": 2}\n{\"a\": 3}\n"), "line 2 of "),
        (temp.file("empty", ""), "there are no records in "),
        (temp.file("header.tsv", "name\tcountry\n"), "there are no records in "),
        (temp.file("one.jsonl", "{\"id\": 1}\n"), "at least two records"),
    ];
    let files = temp.entries();
    for (input, err) in cases {
        let error = error_of(&run(&temp, &["--input", &input]));
        assert!(error.contains(err), "{input}: {error}");
    }
    assert_eq!(temp.entries(), files, "the directory of a store remains");
}

#[test]
fn bad_records_are_skipped_with_skip_bad() {
    let temp = TestDir::new();
    let broken = JSON.replacen("\"blue\"}", "\"blue\"", 1);
    let report = passes(&run(&temp, &["--skip-bad", "--input", &temp.file("broken.jsonl", broken)]));
    assert!(report.contains("1 record skipped"), "{report}");
    assert!(report.contains("5 records (4 new"), "{report}");
}

#[test]
fn a_directory_with_other_files_is_left_alone() {
    let temp = TestDir::new();
    let precious = temp.file("precious.txt", "mine");
    let error = error_of(&run(&temp, &["--source", "sample", "--dir", temp.0.to_str().unwrap()]));
    assert!(error.contains("not a percolite store"), "{error}");
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "mine");
    assert_eq!(temp.entries(), 1);
}

#[test]
fn a_store_with_other_data_is_left_alone() {
    let temp = TestDir::new();
    let dir = temp.0.join("store");
    let store = percolite::Store::open(&dir).unwrap();
    let accounts = store.keyspace("accounts").unwrap();
    store.transact(|txn| txn.put(&accounts, "me", "rich")).unwrap();
    store.close().unwrap();
    let error = error_of(&run(&temp, &["--source", "sample", "--dir", dir.to_str().unwrap()]));
    assert!(error.contains("has other data"), "{error}");
    let store = percolite::Store::open(&dir).unwrap();
    let accounts = store.existing_keyspace("accounts").unwrap();
    assert_eq!(store.get(&accounts, "me").unwrap().unwrap(), "rich");
}

#[test]
fn invalid_command_lines_are_refused() {
    let temp = TestDir::new();
    for arguments in [&["--seconds", "0"][..], &["--rows", "0"], &["--source", "web"], &["--colour"], &["story"]] {
        assert_eq!(run(&temp, arguments).status.code(), Some(2), "{arguments:?}");
    }
    let error = error_of(&run(&temp, &["--source", "sample", "--index-field", "smell"]));
    assert!(
        error.contains("--index-field smell: the records have no such field; the first one has category"),
        "{error}"
    );
    assert_eq!(temp.entries(), 0);
}

#[test]
fn a_closed_output_ends_the_demo_quietly() {
    let temp = TestDir::new();
    let mut child = demo(&temp.0, &["--source", "sample"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()));
    assert_eq!(temp.entries(), 0);
}

#[test]
fn a_writer_does_not_outlive_its_parent() {
    let temp = TestDir::new();
    let store = percolite::Store::open(&temp.0).unwrap();
    for name in ["records", "index", "hot accounts"] {
        store.keyspace(name).unwrap();
    }
    let accounts = store.keyspace("accounts").unwrap();
    store
        .transact(|txn| {
            txn.put(&accounts, "a", "5")?;
            txn.put(&accounts, "b", "5")
        })
        .unwrap();
    store.close().unwrap();
    let mut writer = Command::new(env!("CARGO_BIN_EXE_percolite"))
        .arg("demo-child")
        .arg(&temp.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = writer.stdin.take().unwrap();
    writeln!(stdin, r#"{{"after": false, "txn": {{"from": "a", "to": [["b", 1]]}}}}"#).unwrap();
    let mut line = String::new();
    BufReader::new(writer.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "locked, not committed\n");
    assert_eq!(writer.try_wait().unwrap(), None);
    drop(stdin);
    assert_eq!(writer.wait().unwrap().code(), Some(1));
}
