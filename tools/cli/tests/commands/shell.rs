//! shell: statements from a pipe.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::common::{Ran, Sandbox};

#[test]
fn a_transaction_takes_effect_at_its_commit() {
    let sandbox = Sandbox::with_shop();
    let report = sandbox
        .with_input("shell shop", "begin\nput fruit kiwi green\nput fruit 'red apple' sweet\nget fruit kiwi\ncommit\n")
        .succeeds();
    assert!(report.contains("buffered") && report.contains("green") && report.contains("committed at "), "{report}");
    assert_eq!(sandbox.ok("scan shop fruit --count"), "4\n");
    sandbox
        .with_input(
            "shell shop",
            "BEGIN\ndelete fruit kiwi\nrollback\nscan fruit --prefix r --limit 5\nkeyspaces\nlocks\nhelp\nquit\nnonsense",
        )
        .succeeds();
    assert_eq!(sandbox.ok("get shop fruit kiwi"), "green\n");
}

#[test]
fn an_open_transaction_is_rolled_back_at_the_end() {
    let sandbox = Sandbox::with_shop();
    let ran = sandbox.with_input("shell shop", "begin\nput fruit kiwi green\n");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), "the open transaction was rolled back\n"));
    sandbox.run("get shop fruit kiwi").fails(3, "kiwi");
}

#[test]
fn the_first_error_in_a_pipe_ends_the_shell() {
    let sandbox = Sandbox::with_shop();
    sandbox
        .with_input("shell shop", "# a comment\nput fruit\nput fruit kiwi green\n")
        .fails(2, "line 2: the following required arguments were not provided: <KEY VALUE>...; see `help put`");
    sandbox.with_input("shell shop", "get frut apple").fails(3, "there are \"fruit\"");
    sandbox.with_input("shell shop", "commit").fails(1, "`begin` starts one");
    sandbox.with_input("shell shop", "get fruit 'apple").fails(2, "a quote is not closed");
    sandbox.with_input("shell --read-only shop", "put fruit kiwi green").fails(1, "read-only");
    sandbox.run("get shop fruit kiwi").fails(3, "kiwi");
    sandbox.with_input("shell new", "help").fails(5, "--create");
    sandbox.with_input("shell --create new", "create fruit\nput fruit apple red").succeeds();
    assert_eq!(sandbox.ok("get new fruit apple"), "red\n");
}

#[test]
fn rollback_to_a_savepoint_undoes_the_later_writes() {
    let sandbox = Sandbox::with_shop();
    let lines = [
        "begin",
        "put fruit fig 1",
        "savepoint a",
        "put fruit fig 2",
        "savepoint b",
        "put fruit fig 3",
        "savepoint a",
        "put fruit fig 4",
        "rollback to a",
        "get fruit fig",
        "release a",
        "rollback to a",
        "get fruit fig",
        "rollback to b",
    ];
    // The open transaction is rolled back, which is printed as well.
    let ran = sandbox.with_input("shell shop", lines.join("\n"));
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.ends_with("line 14: the transaction has no savepoint \"b\"\n"), "{}", ran.err);
    let got: Vec<&str> = ran.out.lines().filter(|line| line.len() == 1).collect();
    assert_eq!(got, ["3", "1"], "{}", ran.out);
    sandbox.run("get shop fruit fig").fails(3, "fig");
    for statement in ["savepoint a", "rollback to a", "release a"] {
        sandbox.with_input("shell shop", statement).fails(1, "`begin` starts one");
        // The savepoints of the previous transaction do not exist any more.
        let lines = format!(
            "begin\nsavepoint a\nput fruit fig 5\ncommit\nbegin\n{}",
            statement.replace("savepoint", "release")
        );
        let ran = sandbox.with_input("shell shop", lines);
        assert!(ran.code == Some(3) && ran.err.contains("no savepoint \"a\""), "{}", ran.err);
    }
    assert_eq!(sandbox.ok("get shop fruit fig"), "5\n");
}

#[test]
fn ranges_and_versions_are_printed() {
    let sandbox = Sandbox::with_shop();
    let shown = sandbox
        .with_input("shell shop", "put fruit fig blue\nscan fruit --from b --to pear\nscan fruit --to b")
        .succeeds();
    assert!(shown.contains("fig") && shown.contains("apple") && !shown.contains("pear"), "{shown}");
    assert!(shown.find("fig") < shown.find("apple"), "{shown}");
    sandbox.ok("retention shop --set 1h");
    let lines = "put fruit fig green\nversions fruit fig\nversions fruit fig --limit 1\nversions fruit nothing";
    let shown = sandbox.with_input("shell shop", lines).succeeds();
    assert_eq!((shown.matches("green").count(), shown.matches("blue").count()), (2, 1), "{shown}");
    assert!(shown.contains("no versions"), "{shown}");
}

#[test]
fn delete_ignores_missing_rows_and_ranges_are_checked() {
    let sandbox = Sandbox::with_shop();
    assert_eq!(
        sandbox.with_input("shell shop", "delete fruit kiwi\ndelete fruit apple\n").succeeds(),
        "not found\ncommitted\n"
    );
    sandbox.with_input("shell shop", "scan fruit --from p --to a").fails(2, "line 1: --from is after --to");
}

#[test]
fn an_interrupt_reports_the_open_transaction() {
    let sandbox = Sandbox::with_shop();
    let mut child = sandbox.command("shell shop").stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "put fruit fig 1\nbegin\nput fruit kiwi green").unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "buffered"));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let ran = Ran::of("shell shop", child.wait_with_output().unwrap());
    ran.fails(130, "the open transaction was not committed; earlier commits are durable");
    drop(input);
    assert_eq!(sandbox.ok("scan shop fruit --count"), "3\n");
}

#[test]
fn statements_have_the_options_of_the_commands() {
    let sandbox = Sandbox::with_shop();
    let lines = "put fruit a 1 b 2\nscan fruit --rev --limit 2 --json\nget fruit --key-encoding hex 61 --json\nscan fruit --count\n\
                 scan fruit --keys-only --from b --to c\nput fruit --value-encoding json j '{\"a\": 1}'\nget fruit j --value-encoding json --json\n\
                 delete fruit --prefix a\nget fruit a b\nput fruit n -5";
    let report = sandbox.with_input("shell shop", lines).succeeds();
    let report: Vec<&str> = report.lines().collect();
    let rows = [r#"{"key":"pear","value":"yellow"}"#, r#"{"key":"b","value":"2"}"#, r#"{"key":"61","value":"1"}"#];
    assert_eq!(report[0], "committed");
    assert_eq!(report[1..4], rows);
    assert_eq!(report[4..8], ["4", "b", "committed", r#"{"key":"j","value":{"a": 1}}"#]);
    assert_eq!(report[8..], ["committed", "not found", "2", "committed"]);
    sandbox.with_input("shell shop", "scan fruit --at yesterday").fails(2, "not a relative time");
    sandbox
        .with_input("shell shop", "scan fruit --prefx a")
        .fails(2, "similar argument exists: '--prefix'; see `help scan`");
}

#[test]
fn the_options_of_the_shell_are_defaults_of_statements() {
    let sandbox = Sandbox::with_shop();
    let lines = "put fruit 6b 7b7d\nget fruit 6b\nget fruit --key-encoding text --value-encoding json k\nbegin\ndelete fruit 6b\nrollback";
    let report = sandbox
        .with_input(
            "shell shop --key-encoding hex --value-encoding hex --json --memory-budget 16M --compression none",
            lines,
        )
        .succeeds();
    let report: Vec<serde_json::Value> = report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        report[..3],
        [
            serde_json::json!({ "put": 1 }),
            serde_json::json!({ "key": "6b", "value": "7b7d" }),
            serde_json::json!({ "key": "k", "value": {} })
        ]
    );
    assert!(report[3]["read_ts"].is_string(), "{report:?}");
    assert_eq!(report[4..], [serde_json::json!({ "deleted": 1 }), serde_json::json!({ "rolled_back": true })]);
}

#[test]
fn an_open_transaction_reads_own_writes_and_the_past() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("retention shop --set 1h");
    let then = sandbox.json("stats shop --json")[0]["newest_ts"].as_str().unwrap().to_owned();
    sandbox.ok("put shop fruit apple green");
    let lines = format!(
        "begin\nput fruit apple blue fig 1\nget fruit apple\nget fruit apple --at {then}\nscan fruit --rev --limit 2\nrollback"
    );
    let report = sandbox.with_input("shell shop", lines).succeeds();
    let report: Vec<&str> = report.lines().collect();
    assert_eq!(report[1..6], ["buffered", "blue", "red", "pear\tyellow", "fig\t1"], "{report:?}");
}

#[test]
fn stats_and_help_are_statements() {
    let sandbox = Sandbox::with_shop();
    let report =
        sandbox.with_input("shell shop", "put fruit a 1\nstats\nstats --json\nhelp\nhelp scan\nscan --help").succeeds();
    assert!(report.contains("commits\t1: 1 one-phase"), "{report}");
    let json = report.lines().find(|line| line.starts_with('{')).unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["stats"]["commits_one_phase"], 1);
    assert!(report.contains("Print rows in key order") && report.matches("--keys-only").count() == 2, "{report}");
}
