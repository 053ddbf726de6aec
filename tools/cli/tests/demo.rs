//! The demo as its user meets it: the built program, its output and its exit code.

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

/// A directory that goes with the test.
struct Folder(PathBuf);

impl Folder {
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

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `percolite demo` with quick transfers; its temporary directories go into `temp`.
fn demo(temp: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_percolite"));
    command.args(["demo", "--seconds", "0.2"]).args(arguments);
    command.env("TMPDIR", temp).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(temp: &Folder, arguments: &[&str]) -> Output {
    demo(&temp.0, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The program saw everything that it should; the answer is its output.
fn all_seen(output: &Output) -> String {
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{told}{errors}");
    assert_eq!(errors, "");
    assert!(told.contains("All of it, in "), "{told}");
    assert!(!told.contains('✗'), "{told}");
    for column in ["locked rows", "owner, began", "primary", "commit point", "will be"] {
        assert!(told.contains(column), "no column {column:?} in {told}");
    }
    assert!(number_before(&told, " rolled forward by reading") >= 1, "{told}");
    assert!(number_before(&told, " rolled back by reading") >= 1, "{told}");
    told
}

/// The number in `… 8 row locks<what>`.
fn number_before(told: &str, what: &str) -> u64 {
    let line =
        told.lines().find(|line| line.ends_with(what)).unwrap_or_else(|| panic!("no line ends in {what:?}: {told}"));
    line.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

/// The program gave up with one line of error; the answer is that line.
fn refused(output: &Output) -> String {
    let errors = text(&output.stderr);
    let what_is_no_store = Some(5);
    let failed = [Some(1), what_is_no_store].contains(&output.status.code());
    assert!(failed, "{}: {}{errors}", output.status, text(&output.stdout));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    errors.strip_prefix("error: ").unwrap_or_else(|| panic!("no error: {errors}")).trim_end().to_owned()
}

#[test]
fn json_lines_with_a_record_that_comes_twice() {
    let temp = Folder::new();
    let told = all_seen(&run(&temp, &["--input", &temp.file("people.jsonl", JSON)]));
    assert!(told.contains("JSON lines; key: id; index by: team"), "{told}");
    assert!(told.contains("6 records (5 new, 1 replacing another)"), "{told}");
    assert!(told.contains("5 records and 5 entries of the index match exactly"), "{told}");
    assert_eq!(temp.entries(), 1, "the store's folder is still there");
}

#[test]
fn tab_separated_values() {
    let temp = Folder::new();
    let told = all_seen(&run(&temp, &["--input", &temp.file("cities.tsv", TSV)]));
    assert!(told.contains("tab-separated values; key: name; index by: country"), "{told}");
    assert!(told.contains("3 records (3 new"), "{told}");
}

#[test]
fn a_debian_package_list_and_other_fields() {
    let temp = Folder::new();
    let list = temp.file("Packages", PACKAGES);
    let told = all_seen(&run(&temp, &["--input", &list]));
    assert!(told.contains("Debian package list; key: Package; index by: Section"), "{told}");
    assert!(told.contains("3 records (2 new, 1 replacing another)"), "{told}");
    let told = all_seen(&run(&temp, &["--input", &list, "--key", "Version", "--index-field", "Package"]));
    assert!(told.contains("key: Version; index by: Package"), "{told}");
}

#[test]
fn standard_input() {
    let temp = Folder::new();
    let mut child = demo(&temp.0, &["--input", "-", "--rows", "3"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(JSON.as_bytes()).unwrap();
    let told = all_seen(&child.wait_with_output().unwrap());
    assert!(told.contains("source: standard input"), "{told}");
    assert!(told.contains("3 records (3 new"), "{told}");
}

#[test]
fn the_sample_in_a_folder_that_stays_twice() {
    let temp = Folder::new();
    let dir = temp.0.join("store").to_str().unwrap().to_owned();
    for _ in 0..2 {
        let told = all_seen(&run(&temp, &["--source", "sample", "--dir", &dir, "--seed", "7"]));
        assert!(told.contains("118 records (118 new"), "{told}");
        assert!(told.contains(&format!("The store stays in {dir}.")), "{told}");
        assert!(temp.0.join("store/PERCOLITE").exists());
    }
    assert_eq!(temp.entries(), 1);
}

#[test]
fn a_temporary_folder_that_is_kept() {
    let temp = Folder::new();
    all_seen(&run(&temp, &["--source", "sample", "--keep"]));
    assert_eq!(temp.entries(), 1);
}

#[test]
fn input_that_cannot_be_read() {
    let temp = Folder::new();
    let broken = JSON.replacen("\"blue\"}", "\"blue\"", 1);
    let cases = [
        (temp.0.join("missing").to_str().unwrap().to_owned(), "cannot read "),
        (temp.0.to_str().unwrap().to_owned(), "it is a folder"),
        (temp.file("broken.jsonl", broken), "line 2 of "),
        (temp.file("broken.tsv", format!("{TSV}Rome\tItaly\n")), "line 5 of "),
        (temp.file("latin1.tsv", b"name\tcountry\nK\xf6ln\tGermany\n"), "is not UTF-8"),
        (temp.file("array.json", "[{\"id\": 1}]"), "is a JSON array"),
        (temp.file("prose.txt", "Once upon a time"), "line 1 of "),
        (temp.file("numbers.jsonl", "1\n2\n"), "is JSON, but not an object"),
        (temp.file("keyless.jsonl", "{\"id\": 1, \"a\": 2}\n{\"a\": 3}\n"), "line 2 of "),
        (temp.file("empty", ""), "there are no records in "),
        (temp.file("header.tsv", "name\tcountry\n"), "there are no records in "),
        (temp.file("one.jsonl", "{\"id\": 1}\n"), "at least two records"),
    ];
    let files = temp.entries();
    for (input, err) in cases {
        let error = refused(&run(&temp, &["--input", &input]));
        assert!(error.contains(err), "{input}: {error}");
    }
    assert_eq!(temp.entries(), files, "a store's folder is still there");
}

#[test]
fn records_that_cannot_be_read_are_left_out_if_so_wished() {
    let temp = Folder::new();
    let broken = JSON.replacen("\"blue\"}", "\"blue\"", 1);
    let told = all_seen(&run(&temp, &["--skip-bad", "--input", &temp.file("broken.jsonl", broken)]));
    assert!(told.contains("1 record left out"), "{told}");
    assert!(told.contains("5 records (4 new"), "{told}");
}

#[test]
fn a_folder_with_something_else_is_left_alone() {
    let temp = Folder::new();
    let precious = temp.file("precious.txt", "mine");
    let error = refused(&run(&temp, &["--source", "sample", "--dir", temp.0.to_str().unwrap()]));
    assert!(error.contains("not a percolite store"), "{error}");
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "mine");
    assert_eq!(temp.entries(), 1);
}

#[test]
fn a_store_of_somebody_is_left_alone() {
    let temp = Folder::new();
    let dir = temp.0.join("store");
    let store = percolite::Store::open(&dir).unwrap();
    let accounts = store.keyspace("accounts").unwrap();
    store.transact(|txn| txn.put(&accounts, "me", "rich")).unwrap();
    store.close().unwrap();
    let error = refused(&run(&temp, &["--source", "sample", "--dir", dir.to_str().unwrap()]));
    assert!(error.contains("holds other data"), "{error}");
    let store = percolite::Store::open(&dir).unwrap();
    let accounts = store.existing_keyspace("accounts").unwrap();
    assert_eq!(store.snapshot().unwrap().get(&accounts, "me").unwrap().unwrap(), b"rich");
}

#[test]
fn command_lines_that_make_no_sense() {
    let temp = Folder::new();
    for arguments in [&["--seconds", "0"][..], &["--rows", "0"], &["--source", "web"], &["--colour"], &["story"]] {
        assert_eq!(run(&temp, arguments).status.code(), Some(2), "{arguments:?}");
    }
    let error = refused(&run(&temp, &["--source", "sample", "--index-field", "smell"]));
    assert!(
        error.contains("--index-field smell: the records have no such field; the first one has category"),
        "{error}"
    );
    assert_eq!(temp.entries(), 0);
}

#[test]
fn output_that_nobody_reads_ends_it_quietly() {
    let temp = Folder::new();
    let mut child = demo(&temp.0, &["--source", "sample"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()));
    assert_eq!(temp.entries(), 0);
}

#[test]
fn a_writer_does_not_outlive_its_parent() {
    let temp = Folder::new();
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
    let mut orders = writer.stdin.take().unwrap();
    writeln!(orders, r#"{{"after": false, "job": {{"from": "a", "to": [["b", 1]]}}}}"#).unwrap();
    let mut said = String::new();
    BufReader::new(writer.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "locked, not committed\n");
    assert_eq!(writer.try_wait().unwrap(), None);
    drop(orders);
    assert_eq!(writer.wait().unwrap().code(), Some(1));
}
