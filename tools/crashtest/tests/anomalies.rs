//! The smallest example of each anomaly, and histories that look similar and are valid.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    clippy::pedantic,
    reason = "a test that cannot continue fails"
)]

use percolite_crashtest::checker::{Anomaly, CheckResult, Report, check};
use percolite_crashtest::history::History;

fn report(lines: &str) -> Report {
    check(&History::read(lines.as_bytes()).unwrap())
}

#[track_caller]
fn shows(anomaly: Anomaly, transactions: &[u64], lines: &str) {
    let report = report(lines);
    let found: Vec<_> = report.violations.iter().map(|found| (found.anomaly, found.transactions.clone())).collect();
    assert!(found.contains(&(anomaly, transactions.to_vec())), "{anomaly:?} is not in {found:?}\n{report}");
}

#[track_caller]
fn names(lines: &str) -> Vec<Anomaly> {
    report(lines).violations.iter().map(|violation| violation.anomaly).collect()
}

fn is_fine(lines: &str) {
    let report = report(lines);
    assert_eq!(report.result, CheckResult::Consistent, "{report}");
}

#[test]
fn aborted_read() {
    shows(
        Anomaly::AbortedRead,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"outcome":"aborted","ops":[["w","x","1"]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","1"]]}"#,
    );
}

#[test]
fn intermediate_read() {
    shows(
        Anomaly::IntermediateRead,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"],["w","x","2"]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","1"]]}"#,
    );
}

#[test]
fn garbage_read() {
    shows(Anomaly::GarbageRead, &[1], r#"{"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","1"]]}"#);
}

#[test]
fn lost_own_write() {
    shows(
        Anomaly::LostOwnWrite,
        &[1],
        r#"{"session":2,"read_ts":5,"outcome":"aborted","ops":[["w","x","1"],["r","x",null]]}"#,
    );
}

#[test]
fn lost_own_deletion_in_a_scan() {
    shows(
        Anomaly::LostOwnWrite,
        &[2],
        r#"{"event":"initial","rows":[["x","0"]]}
           {"session":2,"read_ts":5,"outcome":"aborted","ops":[["w","x",null],["s","a",null,[["x","0"]]]]}"#,
    );
}

#[test]
fn non_repeatable_read() {
    shows(
        Anomaly::NonRepeatableRead,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":6,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x",null],["r","x","1"]]}"#,
    );
}

#[test]
fn fractured_read_of_an_older_part() {
    shows(
        Anomaly::FracturedRead,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"],["w","y","1"]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","1"],["r","y",null]]}"#,
    );
}

#[test]
fn fractured_read_of_a_newer_part() {
    shows(
        Anomaly::FracturedRead,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":6,"outcome":"committed","ops":[["w","x","1"],["w","y","1"]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","1"],["r","y",null]]}"#,
    );
}

#[test]
fn lost_acknowledged_write() {
    shows(
        Anomaly::LostAcknowledgedWrite,
        &[1, 3],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","began":1,"ended":2,"ops":[["w","x","1"]]}
           {"event":"crash"}
           {"session":2,"read_ts":5,"outcome":"committed","began":3,"ended":4,"ops":[["r","x",null]]}"#,
    );
}

#[test]
fn phantom() {
    shows(
        Anomaly::Phantom,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":6,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["s","a","z",[["x","1"]]]]}"#,
    );
}

#[test]
fn stale_read() {
    shows(
        Anomaly::StaleRead,
        &[1, 2, 3],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":1,"read_ts":3,"commit_ts":4,"outcome":"committed","ops":[["w","x","2"]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","1"]]}"#,
    );
}

#[test]
fn long_fork() {
    let writers = r#"{"session":1,"read_ts":0,"commit_ts":2,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":2,"read_ts":0,"commit_ts":4,"outcome":"committed","ops":[["w","y","1"]]}"#;
    let x_first = r#"{"session":3,"read_ts":3,"outcome":"committed","ops":[["r","x","1"],["r","y",null]]}"#;
    let y_first = r#"{"session":4,"read_ts":5,"outcome":"committed","ops":[["r","y","1"],["r","x",null]]}"#;
    // The second reader does not see `x`, although its snapshot is later than the commit of `x`.
    shows(Anomaly::LongFork, &[1, 2, 3, 4], &format!("{writers}\n{x_first}\n{y_first}"));
    // With an earlier snapshot the second reader sees `y` before the commit of `y`.
    let early = y_first.replace("\"read_ts\":5", "\"read_ts\":1");
    assert!(names(&format!("{writers}\n{x_first}\n{early}")).contains(&Anomaly::LongFork));
    // With only one of the two readers: the second has a stale read, and the first is valid.
    shows(Anomaly::StaleRead, &[1, 3], &format!("{writers}\n{y_first}"));
    is_fine(&format!("{writers}\n{x_first}"));
}

#[test]
fn a_minimal_set_has_no_superfluous_transaction() {
    let garbage = r#"{"event":"initial","rows":[["x","0"],["y","0"]]}
           {"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","unwritten"]]}"#;
    let aborted = r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":2,"read_ts":0,"outcome":"aborted","ops":[["w","x","2"]]}
           {"session":3,"read_ts":5,"outcome":"committed","ops":[["r","x","2"]]}"#;
    let real_time = r#"{"event":"initial","rows":[["x","0"]]}
           {"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","began":1,"ended":5,"ops":[["w","x","1"]]}
           {"session":2,"read_ts":2,"outcome":"committed","began":6,"ended":7,"ops":[["r","x","0"]]}"#;
    let cases: [(_, _, &[u64], _); 3] = [
        (Anomaly::GarbageRead, garbage, &[3], 1),
        (Anomaly::AbortedRead, aborted, &[2, 3], 2),
        (Anomaly::RealTimeOrder, real_time, &[2, 3], 2),
    ];
    for (anomaly, lines, transactions, length) in cases {
        let report = report(lines);
        let found = report.violations.iter().find(|violation| violation.anomaly == anomaly);
        let found = found.unwrap_or_else(|| panic!("no {anomaly:?} is found: {report}"));
        assert_eq!((found.transactions.as_slice(), found.history.len()), (transactions, length), "{report}");
    }
}

#[test]
fn future_read() {
    shows(
        Anomaly::FutureRead,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":6,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","1"]]}"#,
    );
}

#[test]
fn malformed_scans() {
    let twice = r#"{"event":"initial","rows":[["x","0"]]}
                   {"session":2,"read_ts":5,"outcome":"committed","ops":[["s","a","z",[["x","0"],["x","0"]]]]}"#;
    shows(Anomaly::MalformedScan, &[2], twice);
    let outside = r#"{"event":"initial","rows":[["x","0"]]}
                     {"session":2,"read_ts":5,"outcome":"committed","ops":[["s","a","x",[["x","0"]]]]}"#;
    shows(Anomaly::MalformedScan, &[2], outside);
}

#[test]
fn lost_update() {
    shows(
        Anomaly::LostUpdate,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["r","x",null],["w","x","1"]]}
           {"session":2,"read_ts":2,"commit_ts":4,"outcome":"committed","ops":[["r","x",null],["w","x","2"]]}"#,
    );
}

#[test]
fn write_conflict() {
    shows(
        Anomaly::WriteConflict,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":2,"read_ts":2,"commit_ts":4,"outcome":"committed","ops":[["w","x","2"]]}"#,
    );
}

#[test]
fn a_read_for_update_conflicts_with_a_write() {
    shows(
        Anomaly::WriteConflict,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["u","x",null],["w","y","1"]]}
           {"session":2,"read_ts":2,"commit_ts":4,"outcome":"committed","ops":[["w","x","2"]]}"#,
    );
}

#[test]
fn session_order() {
    shows(
        Anomaly::SessionOrder,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":1,"read_ts":2,"outcome":"committed","ops":[["r","x",null]]}"#,
    );
    shows(
        Anomaly::SessionOrder,
        &[1, 2],
        r#"{"session":1,"read_ts":5,"outcome":"committed","ops":[]}
           {"session":1,"read_ts":4,"outcome":"committed","ops":[["r","x",null]]}"#,
    );
}

#[test]
fn session_order_compares_with_the_maximum() {
    shows(
        Anomaly::SessionOrder,
        &[1, 3],
        r#"{"session":1,"read_ts":5,"outcome":"committed","ops":[]}
           {"session":1,"read_ts":3,"outcome":"committed","ops":[]}
           {"session":1,"read_ts":4,"outcome":"committed","ops":[]}"#,
    );
}

#[test]
fn real_time_order() {
    shows(
        Anomaly::RealTimeOrder,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","began":1,"ended":5,"ops":[["w","x","1"]]}
           {"session":2,"read_ts":2,"outcome":"committed","began":6,"ended":7,"ops":[["r","x",null]]}"#,
    );
    // The second has read what was not acknowledged to the first yet; the third must see it, too.
    shows(
        Anomaly::RealTimeOrder,
        &[2, 3],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","began":1,"ended":9,"ops":[["w","x","1"]]}
           {"session":2,"read_ts":3,"outcome":"committed","began":4,"ended":5,"ops":[["r","x","1"]]}
           {"session":3,"read_ts":2,"outcome":"committed","began":6,"ended":7,"ops":[["r","x",null]]}"#,
    );
}

#[test]
fn a_reader_of_the_past_does_not_bound_later_reads() {
    is_fine(
        r#"{"session":1,"read_ts":8,"outcome":"committed","ended":5,"ops":[["r","x",null]]}
           {"session":2,"read_ts":2,"outcome":"committed","began":6,"ended":7,"ops":[["r","x",null]]}"#,
    );
}

#[test]
fn timestamp_order() {
    for times in [
        "\"read_ts\":3,\"commit_ts\":3",
        "\"start_ts\":2,\"read_ts\":3,\"commit_ts\":4",
        "\"start_ts\":4,\"read_ts\":3,\"commit_ts\":4",
    ] {
        let line = format!(r#"{{"session":1,{times},"outcome":"committed","ops":[["w","x","1"]]}}"#);
        shows(Anomaly::TimestampOrder, &[1], &line);
    }
}

#[test]
fn timestamp_reuse() {
    shows(
        Anomaly::TimestampReuse,
        &[1, 2],
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":2,"read_ts":1,"start_ts":3,"outcome":"aborted","ops":[]}"#,
    );
}

#[test]
fn write_skew_is_permitted() {
    is_fine(
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["r","x",null],["r","y",null],["w","x","1"]]}
           {"session":2,"read_ts":0,"commit_ts":4,"outcome":"committed","ops":[["r","x",null],["r","y",null],["w","y","1"]]}"#,
    );
}

#[test]
fn snapshot_includes_a_commit_at_its_own_timestamp() {
    is_fine(
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"]]}
           {"session":2,"read_ts":3,"commit_ts":4,"outcome":"committed","ops":[["r","x","1"],["w","x","2"]]}"#,
    );
}

#[test]
fn transactions_that_overlap_in_real_time_may_have_any_order() {
    is_fine(
        r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","began":1,"ended":5,"ops":[["w","x","1"]]}
           {"session":2,"read_ts":2,"outcome":"committed","began":5,"ended":7,"ops":[["r","x",null]]}"#,
    );
}

#[test]
fn an_unknown_outcome_is_a_commit_only_if_observed() {
    let unknown = r#"{"event":"initial","rows":[["x","0"]]}
                     {"session":1,"read_ts":3,"outcome":"unknown","ops":[["w","x","1"],["w","y","1"]]}"#;
    let read = |session: u64, read_ts: u64, rows: &str| {
        format!("\n{{\"session\":{session},\"read_ts\":{read_ts},\"outcome\":\"committed\",\"ops\":[{rows}]}}")
    };
    let (old, new) = (r#"["r","x","0"],["r","y",null]"#, r#"["r","x","1"],["r","y","1"]"#);
    is_fine(&[unknown.to_owned(), read(2, 9, old)].concat());
    let seen = [unknown.to_owned(), read(2, 5, old), read(2, 9, new)].concat();
    is_fine(&seen);
    assert_eq!(report(&seen).inferred_committed, 1);
    // The set includes the first reader of the unknown commit: without this reader the transaction
    // would count as aborted.
    shows(Anomaly::StaleRead, &[2, 3, 4], &[unknown.to_owned(), read(2, 9, new), read(3, 10, old)].concat());
    shows(Anomaly::FutureRead, &[2, 3], &[unknown.to_owned(), read(2, 3, new)].concat());
    shows(
        Anomaly::FracturedRead,
        &[2, 3],
        &[unknown.to_owned(), read(2, 9, r#"["r","x","1"],["r","y",null]"#)].concat(),
    );
}

#[test]
fn the_observer_of_an_unknown_outcome_is_found() {
    let unknown = r#"{"session":1,"read_ts":3,"outcome":"unknown","ops":[["w","x","1"]]}"#;
    let mut lines = vec![unknown.to_owned()];
    for number in 0..500 {
        let read_ts = 9 + number;
        lines.push(format!(r#"{{"session":2,"read_ts":{read_ts},"outcome":"committed","ops":[["r","x","1"]]}}"#));
    }
    lines.push(r#"{"session":3,"read_ts":10,"outcome":"committed","ops":[["r","x",null]]}"#.to_owned());
    shows(Anomaly::StaleRead, &[1, 2, 502], &lines.join("\n"));
}

#[test]
fn an_unknown_deletion_explains_a_missing_row() {
    is_fine(
        r#"{"event":"initial","rows":[["x","0"]]}
           {"session":1,"read_ts":3,"outcome":"unknown","ops":[["w","x",null]]}
           {"session":2,"read_ts":5,"outcome":"committed","ops":[["r","x","0"]]}
           {"session":2,"read_ts":6,"outcome":"committed","ops":[["s","a",null,[]]]}"#,
    );
}

#[test]
fn an_unknown_outcome_needs_an_unused_timestamp() {
    let lines = |commit_ts: u64| {
        format!(
            r#"{{"session":1,"read_ts":3,"outcome":"unknown","ops":[["w","x","1"]]}}
               {{"session":2,"read_ts":0,"commit_ts":{commit_ts},"outcome":"committed","ops":[["w","y","1"]]}}
               {{"session":2,"read_ts":4,"outcome":"committed","ops":[["r","x","1"]]}}"#
        )
    };
    is_fine(&lines(2));
    shows(Anomaly::TimestampReuse, &[1, 2, 3], &lines(4));
}

#[test]
fn nothing_committed_is_nothing_checked() {
    assert_eq!(report("").result, CheckResult::NothingChecked);
    let aborted = r#"{"session":1,"read_ts":3,"outcome":"aborted","ops":[["w","x","1"]]}"#;
    assert_eq!(report(aborted).result, CheckResult::NothingChecked);
}

#[test]
fn repeated_values_are_counted() {
    let lines = r#"{"session":1,"read_ts":0,"commit_ts":3,"outcome":"committed","ops":[["w","x","1"],["w","y","1"],["w","x","1"]]}
                   {"session":1,"read_ts":3,"commit_ts":4,"outcome":"committed","ops":[["w","x","1"]]}
                   {"session":1,"read_ts":4,"commit_ts":5,"outcome":"committed","ops":[["w","y","1"]]}"#;
    assert_eq!(report(lines).duplicate_values, 2);
}
