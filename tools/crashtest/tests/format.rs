//! The format: a written history can be read, and an invalid line is refused with its number.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    clippy::pedantic,
    reason = "a test that cannot continue fails"
)]

mod support;

use percolite_crashtest::checker::check;
use percolite_crashtest::history::{History, Line, Op, Outcome, Transaction};
use proptest::prelude::*;

use crate::support::store::{Shape, history};
use crate::support::text;

#[test]
fn a_line_looks_as_documented() {
    let lines = [
        Line::Initial(vec![("a".to_owned(), "1".to_owned())]),
        Line::Crash,
        Line::Transaction(Transaction {
            id: Some(7),
            session: 1,
            start_ts: Some(3),
            read_ts: 2,
            commit_ts: Some(4),
            outcome: Outcome::Committed,
            began: Some(10),
            ended: Some(11),
            ops: vec![
                Op::Read("a".into(), None),
                Op::ReadForUpdate("a".into(), Some("1".into())),
                Op::Write("\"é".into(), None),
                Op::Scan { from: "a".into(), to: None, rows: vec![("a".into(), "1".into())] },
            ],
        }),
    ];
    let expected = r#"{"event":"initial","rows":[["a","1"]]}
{"event":"crash"}
{"txn":7,"session":1,"start_ts":3,"read_ts":2,"commit_ts":4,"outcome":"committed","began":10,"ended":11,"ops":[["r","a",null],["u","a","1"],["w","\"é",null],["s","a",null,[["a","1"]]]]}
"#;
    assert_eq!(text(&lines), expected);
}

#[test]
fn a_written_history_reads_back_equal() {
    let lines = history(1, &Shape { transactions: 500, ..Shape::busy() });
    let mut pushed = History::default();
    lines.iter().for_each(|line| pushed.push(line).expect("a line that was written can be read"));
    let read = History::read(text(&lines).as_bytes()).unwrap();
    assert_eq!(format!("{pushed:?}"), format!("{read:?}"));
}

#[test]
fn every_escape_is_read() {
    let line =
        r#"{"session":1,"read_ts":1,"outcome":"committed","ops":[["\u0072","a\n\"\u00e9",null],["r","a\n\"é","\\"]]}"#;
    let history = History::read(line.as_bytes()).unwrap();
    assert_eq!(history.keys().map(|key| history.key(key)).collect::<Vec<_>>(), ["a\n\"é"]);
}

#[test]
fn bad_lines_are_refused_with_their_number() {
    let good = r#"{"txn":1,"session":1,"read_ts":1,"outcome":"committed","ops":[]}"#;
    let cases = [
        ("nonsense", "expected ident"),
        ("[]", "a line is a JSON object"),
        ("1", "expected an object"),
        ("{}", "`session` is missing"),
        (r#"{"session":1,"read_ts":-1}"#, "invalid value"),
        (r#"{"session":1,"read_ts":1,"outcome":"maybe","ops":[]}"#, "unknown variant `maybe`"),
        (r#"{"session":1,"read_ts":1,"outcome":"aborted"}"#, "`ops` is missing"),
        (r#"{"session":1,"read_ts":1,"outcome":"aborted","ops":[["x","a",null]]}"#, "unknown variant `x`"),
        (r#"{"session":1,"read_ts":1,"outcome":"aborted","ops":[["r","a"]]}"#, "an operation is too short"),
        (r#"{"session":1,"read_ts":1,"outcome":"aborted","ops":[["r","a",null,null]]}"#, "an operation is too long"),
        (r#"{"session":1,"read_ts":1,"outcome":"aborted","ops":[["s","a",null,[["k",null]]]]}"#, "expected a string"),
        (r#"{"session":1,"read_ts":1,"outcome":"aborted","comit_ts":1,"ops":[]}"#, "unknown field `comit_ts`"),
        (r#"{"session":1,"read_ts":1,"outcome":"aborted","commit_ts":1,"ops":[]}"#, "an aborted transaction has no"),
        (r#"{"session":1,"read_ts":1,"outcome":"committed","ops":[["u","a",null]]}"#, "needs its `commit_ts`"),
        (r#"{"session":1,"read_ts":1,"outcome":"aborted","began":2,"ended":1,"ops":[]}"#, "`ended` is before `began`"),
        (good, "duplicate transaction id 1"),
        (r#"{"event":"flood"}"#, "unknown variant `flood`"),
        (r#"{"event":"crash","session":1}"#, "an event has no fields"),
        (r#"{"event":"initial"}"#, "`rows` is missing"),
        (r#"{"event":"initial","rows":[]}"#, "initial rows must appear once"),
        (r#"{"rows":[]}"#, "`event` is missing"),
    ];
    for (bad, expected) in cases {
        let error = History::read(format!("{good}\n\n{bad}\n{good}").as_bytes()).unwrap_err();
        let text = error.to_string();
        assert!(error.line == 3 && text.starts_with("line 3: ") && text.contains(expected), "{bad}: {text}");
        assert!(!text.contains('\n') && !text.contains("line 1"), "{text}");
    }
    let twice = r#"{"event":"initial","rows":[["a","1"],["a","2"]]}"#;
    assert!(History::read(twice.as_bytes()).unwrap_err().to_string().contains("twice"));
}

fn value() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[0-3]")
}

fn op() -> impl Strategy<Value = Op> {
    let key = || "[a-c]";
    prop_oneof![
        (key(), value()).prop_map(|(key, value)| Op::Read(key, value)),
        (key(), value()).prop_map(|(key, value)| Op::ReadForUpdate(key, value)),
        (key(), value()).prop_map(|(key, value)| Op::Write(key, value)),
        ("[a-d]?", proptest::option::of("[a-d]?"), proptest::collection::vec((key(), "[0-3]"), 0..4))
            .prop_map(|(from, to, rows)| Op::Scan { from, to, rows }),
    ]
}

fn time() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..12u64, 1 => Just(u64::MAX), 1 => Just(u64::MAX - 1)]
}

fn transaction() -> impl Strategy<Value = Line> {
    let outcome = prop_oneof![Just(Outcome::Committed), Just(Outcome::Aborted), Just(Outcome::Unknown)];
    let times = (time(), proptest::option::of(time()), proptest::option::of(time()));
    let clock = (proptest::option::of(time()), proptest::option::of(time()));
    (0..3u64, times, clock, outcome, proptest::collection::vec(op(), 0..5)).prop_map(
        |(session, (read_ts, start_ts, commit_ts), (began, ended), outcome, ops)| {
            Line::Transaction(Transaction {
                id: None,
                session,
                start_ts,
                read_ts,
                commit_ts,
                outcome,
                began,
                ended,
                ops,
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_line_panics(line in ".*") {
        let _ = History::read(line.as_bytes());
    }

    #[test]
    fn no_history_panics(lines in proptest::collection::vec(transaction(), 0..12)) {
        let mut history = History::default();
        for line in &lines {
            let _ = history.push(line);
        }
        let report = check(&history);
        prop_assert!(!report.to_string().is_empty());
    }
}
