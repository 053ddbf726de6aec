//! The `check` command as its user sees it: output and exit code.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    clippy::pedantic,
    reason = "a test that cannot continue fails"
)]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const GOOD: &str = r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"]]}
{"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","1"]]}
"#;
const STALE: &str = r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"],["w","y","1"]]}
{"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x",null]]}
"#;

fn check(arguments: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_percolite-crashtest"));
    command.arg("check").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // This fails if the child stops reading early.
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn a_consistent_history_exits_with_0() {
    let output = check(&["-"], GOOD);
    assert_eq!(output.status.code(), Some(0));
    let expected = "2 transactions: 2 committed, 0 aborted, 0 unknown; consistent with snapshot isolation\n";
    assert_eq!(stdout(&output), expected);
}

#[test]
fn a_violation_prints_a_sufficient_set_of_transactions() {
    let output = check(&["-"], STALE);
    assert_eq!(output.status.code(), Some(1));
    let expected = r#"stale-read in transaction 2, key "x": expected "1", found null
  {"txn":1,"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"]]}
  {"txn":2,"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x",null]]}

2 transactions: 2 committed, 0 aborted, 0 unknown; 1 violation
"#;
    assert_eq!(stdout(&output), expected);
    let set: String =
        stdout(&output).lines().filter(|line| line.starts_with("  ")).map(|line| format!("{line}\n")).collect();
    assert_eq!(check(&["-"], set).status.code(), Some(1));
}

#[test]
fn the_report_can_be_json() {
    let output = check(&["--json", "-"], STALE);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("the report is JSON");
    assert_eq!(report["result"], "violated");
    assert_eq!(report["violations"][0]["anomaly"], "stale-read");
    assert_eq!(report["violations"][0]["transactions"], serde_json::json!([1, 2]));
}

#[test]
fn an_empty_history_fails() {
    let output = check(&["-"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).ends_with("nothing was checked\n"));
}

#[test]
fn bad_input_is_one_line_with_its_number() {
    for input in [&b"{\"session\":1\n"[..], b"\n\xff\xfe\n", b"\0", &[b'['; 10_000]] {
        let output = check(&["-"], input);
        assert_eq!(output.status.code(), Some(2));
        let stderr_text = stderr(&output);
        assert!(stderr_text.starts_with("error: -: line ") && stderr_text.lines().count() == 1, "{stderr_text}");
    }
    let output = check(&["/nowhere/at/all"], "");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output).lines().count(), 1);
    let output = check(&["/"], "");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output).lines().count(), 1);
}
