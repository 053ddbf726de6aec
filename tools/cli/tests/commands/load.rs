//! load: every format, bad records, interrupts.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Ran, Sandbox};

#[test]
fn json_output_of_scan_round_trips_through_load() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("put --key-encoding hex --value-encoding hex shop fruit 00ff ff00 0a 7b7d");
    let shown = sandbox.ok("scan shop fruit --json");
    sandbox.with_input("load --create copy fruit -", &shown).succeeds();
    assert_eq!(sandbox.ok("scan copy fruit --json"), shown);
    let hex = sandbox.ok("scan shop fruit --json --key-encoding hex --value-encoding base64");
    sandbox.with_input("load --create third fruit --key-encoding hex --value-encoding base64", &hex).succeeds();
    assert_eq!(sandbox.ok("scan third fruit --json"), shown);
}

#[test]
fn the_format_is_detected_by_extension_or_content() {
    let sandbox = Sandbox::new();
    let inputs = [
        ("a.jsonl", "{\"key\": \"k\", \"value\": \"a, b\"}\n\n", ""),
        ("b.csv", "k,\"a, b\"\n", ""),
        ("c.tsv", "k\ta, b\n", ""),
        ("d.txt", "{\"value\": \"a, b\", \"key\": \"k\"}", ""),
        ("e.txt", "k\ta, b", ""),
        ("f.txt", "name,value\r\nk,\"a, b\"\r\n", "--header"),
    ];
    for (name, content, options) in inputs {
        sandbox.file(name, content);
        assert!(sandbox.ok(&format!("load --create s {name} {name} {options}")).starts_with("1 row in 1 transaction"));
        assert_eq!(sandbox.ok(&format!("get s {name} k")), "a, b\n", "{name}");
    }
    sandbox.with_input("load --create s people --key-field id", "{\"id\": 7, \"name\": \"Ada\"}\n").succeeds();
    assert_eq!(sandbox.ok("get s people 7"), "{\"id\": 7, \"name\": \"Ada\"}\n");
}

#[test]
fn a_bad_record_fails_or_is_skipped_and_rows_are_counted() {
    let sandbox = Sandbox::with_shop();
    let input = "a,1\nb,2\nc\nd,4\n";
    let ran = sandbox.with_input("load shop fruit --format csv", input).fails(1, "line 3 has 1 column, not");
    assert!(
        ran.err.contains("2 rows of the input (2 new, 0 replaced), and nothing after them; resume with --skip 2"),
        "{}",
        ran.err
    );
    assert_eq!(sandbox.ok("scan shop fruit --count"), "4\n");
    let ran = sandbox.with_input("load shop fruit --format csv --skip-bad --skip 2 --json", input).succeeds();
    let report: serde_json::Value = serde_json::from_str(&ran).unwrap();
    assert_eq!((&report["rows"], &report["skipped"], &report["complete"]), (&1.into(), &1.into(), &true.into()));
    for (input, what) in [
        ("{\"key\": 1", "is not JSON"),
        ("{\"key\": \"k\"}", "--key-field names the key"),
        ("{\"id\": 1}", "--key-field names the key"),
    ] {
        sandbox.with_input("load shop fruit --format jsonl", input).fails(1, what);
    }
    sandbox.with_input("load shop fruit --key-field id", "{\"name\": 1}").fails(1, "has no field \"id\", only name");
    sandbox.with_input("load shop fruit --format csv --key-encoding hex", "xyz,1").fails(1, "is not valid hex");
    sandbox.with_input("load shop fruit --format csv", ",1").fails(1, "line 1 cannot be used: a key must not be empty");
}

#[test]
fn an_interrupted_load_names_the_record_to_resume_at() {
    let sandbox = Sandbox::with_shop();
    let line = "load --create s k --format csv --batch 10";
    let mut child = sandbox.command(line).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let rows = |from: u32, to: u32| (from..to).map(|n| format!("{n:04},x\n")).collect::<String>();
    // The third transaction gets 5 of its 10 rows, so the interrupt arrives while the load waits
    // for input.
    input.write_all(rows(0, 25).as_bytes()).unwrap();
    input.flush().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    let ran =
        Ran::of(line, child.wait_with_output().unwrap()).fails(130, "interrupted; committed to the keyspace \"k\": ");
    drop(input);
    let next: u32 = ran.err.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(sandbox.ok("scan s k --count"), format!("{next}\n"));
    sandbox.with_input(&format!("load s k --format csv --skip {next}"), rows(0, 100)).succeeds();
    assert_eq!(sandbox.ok("scan s k --count"), "100\n");
}

#[test]
fn an_unterminated_record_is_refused_with_its_line() {
    let sandbox = Sandbox::with_shop();
    let endless = |begin: &str, line: &str| {
        // The input ends after 100 MiB, so that this test does not take all memory if the limit of
        // a record is not enforced.
        let script =
            format!("{{ printf '{begin}'; yes | head -c 100m; }} | {} {line}", env!("CARGO_BIN_EXE_percolite"));
        let output = Command::new("sh").args(["-c", &script]).current_dir(sandbox.path()).output().unwrap();
        Ran::of(line, output)
    };
    let ran = endless("kiwi,green\\nfig,\"purple\\n", "load shop fruit --format csv");
    let ran = ran.fails(1, "the record that begins in line 2 has more than 80.00 MiB; is a quote not closed?");
    assert!(ran.err.contains("--skip 1"), "{}", ran.err);
    assert_eq!(sandbox.ok("get shop fruit kiwi"), "green\n");
    let script =
        format!("yes | tr -d '\\n' | head -c 100m | {} load shop fruit --format tsv", env!("CARGO_BIN_EXE_percolite"));
    let output = Command::new("sh").args(["-c", &script]).current_dir(sandbox.path()).output().unwrap();
    Ran::of("one line", output)
        .fails(1, "the record that begins in line 1 has more than 80.00 MiB; nothing was loaded");
}

#[test]
fn an_oversized_or_empty_key_is_refused_or_skipped() {
    let sandbox = Sandbox::with_shop();
    let long = "k".repeat((16 << 10) + 1);
    let input = format!("a,1\n,2\n{long},3\nd,4\n");
    sandbox
        .with_input("load shop fruit --format csv", &input)
        .fails(1, "line 2 cannot be used: a key must not be empty");
    sandbox
        .with_input("load shop fruit --format csv --skip 2", &input)
        .fails(1, "line 3 cannot be used: a key of 16385 bytes exceeds the limit of 16384 bytes");
    let report = sandbox.with_input("load shop fruit --format csv --skip-bad --json", &input).succeeds();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["rows"], &report["skipped"]), (&2.into(), &2.into()));
}

#[test]
fn an_unclosed_quote_is_refused_and_earlier_rows_are_loaded() {
    let sandbox = Sandbox::with_shop();
    let ran = sandbox.with_input("load shop fruit --format csv", "a,1\nb,\"2\nc,3\nd,4\n");
    let ran = ran.fails(1, "the quote that opens in line 2 is never closed");
    assert!(
        ran.err.contains("1 row of the input (1 new, 0 replaced), and nothing after them; resume with --skip 1"),
        "{}",
        ran.err
    );
    let ran = sandbox.with_input("load shop fruit --format csv --skip 9", "a,1\nb,2\n");
    ran.fails(1, "the input has 2 records, fewer than --skip 9; nothing was loaded");
    assert_eq!(sandbox.ok("scan shop fruit --count"), "3\n");
}

#[test]
fn load_counts_new_and_replaced_rows_exactly() {
    let sandbox = Sandbox::with_shop();
    let report = sandbox
        .with_input("load shop fruit --format csv --batch 2", "apple,1\nkiwi,2\nkiwi,3\nfig,4\npear,5\nfig,6\n")
        .succeeds();
    assert!(report.starts_with("6 rows in 3 transactions: 2 new, 4 replaced; "), "{report}");
    // The rows come in random order. In the second load, half of the rows exist already, and a
    // tenth come twice. The store `s` loads them in one transaction, which exceeds the memory
    // budget of 8M.
    let key = |n: u32| n.wrapping_mul(7919) % 100_003;
    let half: String = (0..30_000).map(|n| format!("{:06}\tvalue\n", key(n))).collect();
    let all: String = (0..60_000).chain(0..6_000).map(|n| format!("{:06}\tvalue\n", key(n))).collect();
    for (store, options) in
        [("s", "--batch 100000 --memory-budget 8M"), ("t", "--batch 7"), ("u", "--skip-bad --batch 1000")]
    {
        let json = |input: &str, more: &str| {
            let line = format!("load --create {store} rows - --format tsv --json {options} {more}");
            let report: serde_json::Value = serde_json::from_str(&sandbox.with_input(&line, input).succeeds()).unwrap();
            (report["rows"].as_u64().unwrap(), report["new"].as_u64().unwrap(), report["replaced"].as_u64().unwrap())
        };
        assert_eq!(json(&half, ""), (30_000, 30_000, 0), "{options}");
        assert_eq!(json(&all, "--skip 10000"), (56_000, 30_000, 26_000), "{options}");
        assert_eq!(sandbox.ok(&format!("scan {store} rows --count")), "60000\n");
    }
}

#[test]
fn options_of_another_format_are_refused() {
    let sandbox = Sandbox::with_shop();
    sandbox.file("rows.tsv", "a\t1\n");
    sandbox.file("rows.jsonl", "{\"key\": \"a\", \"value\": \"1\"}\n");
    for (line, what) in [
        ("load shop fruit rows.tsv --key-field 1", "rows.tsv is read as TSV: --key-field is for JSON objects"),
        ("load shop fruit rows.jsonl --key-field 1 --format csv", "is read as CSV: --key-field is for JSON objects"),
        ("load shop fruit rows.jsonl --header", "is read as JSON lines: --header is for columns"),
        ("load shop fruit rows.jsonl --key-field key --value-encoding hex", "the value is the whole object"),
    ] {
        sandbox.run(line).fails(2, what);
    }
    sandbox
        .with_input("load shop fruit --key-field id", "a\t1\n")
        .fails(2, "standard input is read as TSV: --key-field is for JSON objects");
    // With an empty input, as of a filter without matches, --key-field is accepted in any format.
    sandbox.with_input("load shop fruit --key-field id", "").succeeds();
    assert_eq!(sandbox.ok("scan shop fruit --count"), "2\n");
}

#[test]
fn backslashes_are_escapes_in_tsv_but_not_in_raw_tsv() {
    let sandbox = Sandbox::with_shop();
    sandbox.with_input("load shop fruit --format tsv", "a\tb\\tc\\\\\n").succeeds();
    assert_eq!(sandbox.ok("get shop fruit a"), "b\tc\\\n");
    sandbox.with_input("load shop fruit --format raw-tsv", "a\tC:\\temp\n").succeeds();
    assert_eq!(sandbox.ok("get shop fruit a"), "C:\\temp\n");
    sandbox
        .with_input("load shop fruit --format tsv", "a\tC:\\Users\n")
        .fails(1, "--format raw-tsv keeps backslashes unchanged");
}

#[test]
fn a_byte_order_mark_is_skipped_and_an_array_is_refused() {
    let sandbox = Sandbox::with_shop();
    sandbox.with_input("load shop json", "\u{feff}{\"key\":\"a\",\"value\":\"1\"}\n").fails(3, "not found");
    for (format, input) in [("jsonl", "{\"key\":\"a\",\"value\":\"1\"}\n"), ("csv", "a,1\n"), ("tsv", "a\t1\n")] {
        let input = format!("\u{feff}{input}");
        sandbox.with_input(&format!("load --create shop {format}"), &input).succeeds();
        assert_eq!(sandbox.ok(&format!("scan shop {format}")), "a\t1\n", "{format}");
    }
    sandbox.with_input("load shop fruit", "[{\"key\":\"a\",\"value\":\"1\"}]\n").fails(2, "jq -c '.[]'");
}

#[test]
fn load_from_a_silent_pipe_can_be_interrupted() {
    let sandbox = Sandbox::with_shop();
    let made = std::process::Command::new("mkfifo").arg(sandbox.path().join("pipe")).status().unwrap();
    assert!(made.success());
    // The pipe has no writer, so opening it blocks, and only the interrupt ends the program.
    sandbox.interrupted("load shop fruit pipe").fails(130, "interrupted; nothing was loaded");
    sandbox.interrupted("restore copy pipe").fails(130, "interrupted; nothing was restored");
    assert!(!sandbox.path().join("copy").exists());
}

#[test]
fn half_a_surrogate_pair_is_text_not_json() {
    let sandbox = Sandbox::with_shop();
    sandbox.run("put --value-encoding json shop fruit k \"\\ud800\"").fails(2, "is not valid JSON");
    sandbox.ok("put shop fruit k \"\\ud800\"");
    sandbox.ok("put --value-encoding json shop fruit whole \"\\ud83d\\ude00\"");
    let rows = sandbox.json("scan shop fruit --json --value-encoding json --from k");
    assert_eq!(rows[0]["text"], "\"\\ud800\"", "{rows:?}");
    let whole = rows.iter().find(|row| row["key"] == "whole").unwrap();
    assert_eq!(whole["value"], "😀", "{rows:?}");
}
