//! get, put, delete, scan, keyspaces.

use std::io::Read as _;

use crate::common::{Ran, Sandbox};

#[test]
fn put_get_and_delete_round_trip() {
    let sandbox = Sandbox::with_shop();
    assert_eq!(sandbox.ok("get shop fruit apple"), "red\n");
    assert_eq!(sandbox.ok("get shop fruit pear apple"), "yellow\nred\n");
    assert_eq!(sandbox.ok("get --raw shop fruit apple"), "red");
    assert_eq!(sandbox.ok("delete shop fruit apple"), "1 row deleted\n");
    sandbox.run("get shop fruit apple").fails(3, "not found in the keyspace \"fruit\": \"apple\"");
    let ran = sandbox.run("get --json shop fruit apple pear").fails(3, "apple");
    assert_eq!(ran.out, "{\"key\":\"apple\",\"value\":null}\n{\"key\":\"pear\",\"value\":\"yellow\"}\n");
}

#[test]
fn delete_of_a_missing_row_needs_if_exists() {
    let sandbox = Sandbox::with_shop();
    sandbox.run("delete shop fruit apple kiwi").fails(3, "nothing was deleted");
    assert_eq!(sandbox.ok("scan shop fruit --count"), "2\n");
    assert_eq!(sandbox.json("delete shop fruit apple kiwi --if-exists --json")[0]["deleted"], 1);
}

#[test]
fn encodings_apply_to_input_and_output() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("put --key-encoding hex --value-encoding base64 shop fruit 00FF /wA=");
    assert_eq!(sandbox.ok("get --key-encoding hex --value-encoding hex shop fruit 00ff"), "ff00\n");
    assert_eq!(
        sandbox.json("scan shop fruit --json --limit 1")[0].to_string(),
        r#"{"key":{"hex":"00ff"},"value":{"hex":"ff00"}}"#
    );
    assert!(sandbox.ok("scan shop fruit").contains(r"\x00\xff"));
    assert!(sandbox.ok("scan --key-encoding base64 shop fruit").contains("AP8="));
    let raw = sandbox.command("get --raw --key-encoding hex shop fruit 00ff").output().unwrap();
    assert_eq!(raw.stdout, [0xff, 0]);
}

#[test]
fn put_reads_a_value_from_a_file_or_standard_input() {
    let sandbox = Sandbox::with_shop();
    sandbox.file("photo", [0, 159, 146, 150, b'\n']);
    sandbox.ok("put shop fruit photo --value-file photo");
    sandbox.with_input("put shop fruit piped --value-file -", [0, 159, 146, 150, b'\n']).succeeds();
    for key in ["photo", "piped"] {
        assert_eq!(sandbox.ok(&format!("get --value-encoding hex shop fruit {key}")), "009f92960a\n");
    }
}

#[test]
fn scans_have_bounds_limits_and_two_directions() {
    let sandbox = Sandbox::new();
    sandbox.ok("put --create s k a 1 b 2 ba 3 c 4 d 5");
    let keys = |line: &str| {
        let rows = sandbox.json(&format!("scan s k --json --keys-only {line}"));
        rows.iter().map(|row| row["key"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(""), "a b ba c d");
    assert_eq!(keys("--from b --to d"), "b ba c");
    assert_eq!(keys("--prefix b"), "b ba");
    assert_eq!(keys("--rev --limit 2"), "d c");
    assert_eq!(keys("--reverse"), "d c ba b a");
    assert_eq!(keys("--rev --prefix b"), "ba b");
    assert_eq!(keys("--rev --from b --to d --limit 2"), "c ba");
    assert_eq!(keys("--rev --limit 0"), "");
    assert_eq!(keys("--limit 0"), "");
    sandbox.ok("retention s --set 1h");
    let then = sandbox.json("stats s --json")[0]["newest_ts"].as_str().unwrap().to_owned();
    sandbox.ok("put s k e 6");
    assert_eq!(keys(&format!("--rev --limit 1 --at {then}")), "d");
    assert_eq!(keys("--rev --limit 1"), "e");
    assert_eq!(sandbox.ok("scan s k --rev --limit 2"), "e\t6\nd\t5\n");
    assert_eq!(sandbox.ok("scan s k --rev --count --limit 3"), "3\n");
    assert_eq!(keys("--from b --to b"), "");
    assert_eq!(sandbox.json("scan s k --count --json --prefix b")[0]["rows"], 2);
}

#[test]
fn keyspaces_are_created_listed_and_dropped() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("keyspaces shop --create empty");
    let listed = sandbox.json("keyspaces shop --count --json");
    let listed: Vec<_> = listed.iter().map(|k| (k["name"].as_str().unwrap(), k["rows"].as_u64().unwrap())).collect();
    assert_eq!(listed, [("empty", 0), ("fruit", 2)]);
    sandbox.ok("keyspaces shop --drop fruit");
    sandbox.run("get shop fruit apple").fails(3, "there are \"empty\"");
}

#[test]
fn keyspaces_are_renamed_and_truncated() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("keyspaces shop --create nuts");
    sandbox.run("keyspaces shop --rename fruit nuts").fails(1, "keyspace \"nuts\" already exists");
    sandbox.run("keyspaces shop --rename frut berries").fails(3, "there are \"fruit\"");
    sandbox.run("keyspaces shop --rename fruit").fails(2, "values required");
    sandbox.run("keyspaces shop --drop nuts --truncate nuts").fails(2, "cannot be used with");
    assert_eq!(sandbox.ok("keyspaces shop --rename fruit berries"), "renamed the keyspace \"fruit\" to \"berries\"\n");
    assert_eq!(sandbox.ok("get shop berries apple"), "red\n");
    assert_eq!(sandbox.json("keyspaces shop --truncate berries --json")[0]["truncated"], "berries");
    assert_eq!(sandbox.ok("scan shop berries --count"), "0\n");
    sandbox.run("keyspaces shop --truncate fruit").fails(3, "there are \"berries\", \"nuts\"");
}

#[test]
fn delete_takes_ranges_and_prefixes() {
    let sandbox = Sandbox::new();
    sandbox.ok("put --create s k a 1 b 2 ba 3 c 4 d 5");
    sandbox.run("delete s k a --prefix b").fails(2, "cannot be used with");
    sandbox.run("delete s k --from c --to a").fails(2, "--from is after --to");
    sandbox.run("delete s k").fails(2, "required");
    assert_eq!(sandbox.ok("delete s k --prefix b"), "2 rows deleted\n");
    assert_eq!(sandbox.json("delete s k --from c --to d --json")[0]["deleted"], 1);
    assert_eq!(sandbox.ok("delete s k --from x"), "0 rows deleted\n");
    assert_eq!(sandbox.ok("scan s k --count"), "2\n");
}

#[test]
fn a_closed_output_ends_the_command_without_an_error() {
    let sandbox = Sandbox::with_shop();
    let rows: String = (0..50_000).map(|n| format!("key{n},value\n")).collect();
    sandbox.with_input("load shop fruit --format csv", rows).succeeds();
    for line in ["scan shop fruit --json", "scan shop fruit", "dump shop -"] {
        let mut child = sandbox.command(line).spawn().unwrap();
        let mut first = [0; 10];
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut first).unwrap();
        drop(out);
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
        assert!(output.status.code().is_some(), "{line}: {}", output.status);
    }
}

#[test]
fn delete_waits_for_the_cleanup_of_a_large_transaction() {
    let sandbox = Sandbox::new();
    let rows: String = (0..200_000).map(|n| format!("key{n:06}\tvalue\n")).collect();
    sandbox.with_input("load --create shop rows --format tsv --batch 100000", rows).succeeds();
    assert_eq!(sandbox.ok("delete --memory-budget 8M shop rows --prefix key"), "200,000 rows deleted\n");
    assert_eq!(sandbox.json("stats shop --json")[0]["row_locks"], 0);
    assert_eq!(sandbox.ok("scan shop rows --count"), "0\n");
}

#[test]
fn memory_budget_and_compression_options_apply() {
    let sandbox = Sandbox::with_shop();
    let rows: String = (0..60_000).map(|n| format!("key{n:06},{}\n", "x".repeat(40))).collect();
    sandbox.file("rows.csv", rows);
    for (method, store) in [("none", "plain"), ("lz4", "small")] {
        sandbox.ok(&format!("load --create --memory-budget 8M --compression {method} {store} rows rows.csv"));
        sandbox.ok(&format!("checkpoint {store} {store}-copy"));
    }
    let bytes = |store: &str| {
        let columns = sandbox.json(&format!("stats {store} --json"))[0]["columns"].as_array().unwrap().clone();
        columns.iter().map(|column| column["sst_bytes"].as_u64().unwrap()).sum::<u64>()
    };
    let (plain, small) = (bytes("plain-copy"), bytes("small-copy"));
    assert!(plain > small * 3 / 2, "{plain} {small}");
    // With a memory budget of 8 MiB the buffered writes of a transaction are limited to 1 MiB.
    sandbox.file("big", vec![b'x'; 3 << 20]);
    sandbox.run("put --memory-budget 8M shop fruit big --value-file big").fails(1, "limit of 1048576 bytes");
    for command in [
        "put shop fruit a b",
        "delete shop fruit apple",
        "load shop fruit rows.csv",
        "shell shop",
        "restore s x",
        "repair s t",
    ] {
        for budget in ["4M", "0", "2T", "99999999999T"] {
            sandbox.run(&format!("{command} --memory-budget {budget}")).fails(2, "it must be from 8 MiB to 1 TiB");
        }
        sandbox.run(&format!("{command} --compression zip")).fails(2, "possible values: none, lz4");
    }
}

#[test]
fn plain_output_of_scan_round_trips_through_load() {
    let sandbox = Sandbox::with_shop();
    // A tab and a line end, a backslash, an apparent escape, bytes that are not UTF-8, a byte order
    // mark, an apparent JSON object, a carriage return, a control character.
    let odd = ["09610a", "5c", "5c78", "ff00fe", "efbbbf61", "7b220961", "0d", "e282ac7f"];
    for (n, hex) in odd.iter().enumerate() {
        sandbox.ok(&format!("put shop fruit --key-encoding hex --value-encoding hex {hex} {}", odd[odd.len() - 1 - n]));
    }
    let long = "x".repeat(5000);
    sandbox.with_input("put shop fruit zlong --value-file -", &long).succeeds();
    let plain = sandbox.ok("scan shop fruit");
    assert_eq!(plain.lines().count(), 11, "{plain}");
    assert!(plain.contains("\napple\tred\n") && plain.contains(&format!("\nzlong\t{long}\n")), "{plain}");
    assert!(plain.contains("\\ta\\n\t\u{20ac}\\x7f\n"), "{plain}");
    let all = sandbox.ok("scan shop fruit --json --key-encoding hex --value-encoding hex");
    for (keys, values) in [("text", "text"), ("hex", "base64"), ("base64", "hex")] {
        let encodings = format!("--key-encoding {keys} --value-encoding {values}");
        let shown = sandbox.ok(&format!("scan shop fruit {encodings}"));
        sandbox.with_input(&format!("load --create {keys} fruit - {encodings}"), shown).succeeds();
        assert_eq!(
            sandbox.ok(&format!("scan {keys} fruit --json --key-encoding hex --value-encoding hex")),
            all,
            "{encodings}"
        );
    }
    assert_eq!(sandbox.ok("scan shop fruit --keys-only --prefix p"), "pear\n");
    assert_eq!(sandbox.ok("keyspaces shop --count"), "fruit\t1\t11\n");
}

#[test]
fn a_terminal_gets_tables_with_truncated_values() {
    let sandbox = Sandbox::with_shop();
    sandbox.with_input("put shop fruit zlong --value-file -", "x".repeat(5000)).succeeds();
    let shown = sandbox.in_terminal("scan shop fruit", "").out;
    assert!(shown.contains("│ apple") && shown.contains('┌') && shown.contains('…'), "{shown}");
    assert!(shown.matches('x').count() < 500, "{shown}");
    let shown = sandbox.in_terminal("keyspaces shop", "").out;
    assert!(shown.contains("│ fruit"), "{shown}");
}

#[test]
fn json_values_round_trip_verbatim() {
    let sandbox = Sandbox::with_shop();
    let put = |key: &str, value: &str| {
        let mut put = sandbox.command("put shop fruit --value-encoding json");
        Ran::of("put", put.args([key, value]).output().unwrap())
    };
    put("object", " {\"b\": 1.0, \"a\": [null]} ").succeeds();
    put("string", "\"red\"").succeeds();
    put("hex", "{\"hex\":\"00\"}").succeeds();
    put("none", "null").succeeds();
    put("number", "-1e400").succeeds();
    put("bad", "{").fails(2, "\"{\" is not valid JSON");
    sandbox.with_input("put shop fruit bad --value-file - --value-encoding json", "red").fails(2, "is not valid JSON");
    sandbox.with_input("put shop fruit pretty --value-file -", "{\n  \"a\": 1\n}\n").succeeds();
    sandbox.ok("put shop fruit binary --value-encoding hex ff");
    let shown = sandbox.ok("scan shop fruit --json --value-encoding json");
    let line = |key: &str| {
        let begin = format!("{{\"key\":\"{key}\"");
        shown.lines().find(|line| line.starts_with(&begin)).unwrap().strip_prefix(&begin).unwrap()
    };
    assert_eq!(line("object"), r#","value":{"b": 1.0, "a": [null]}}"#);
    assert_eq!(line("string"), r#","value":"red"}"#);
    assert_eq!(line("hex"), r#","value":{"hex":"00"}}"#);
    assert_eq!(line("none"), r#","value":null}"#);
    assert_eq!(line("number"), r#","value":-1e400}"#);
    assert_eq!(line("pretty"), r#","value":{"a":1},"text":"{\n  \"a\": 1\n}\n"}"#);
    assert_eq!(line("apple"), r#","text":"red"}"#);
    assert_eq!(line("binary"), r#","hex":"ff"}"#);
    sandbox.with_input("load --create copy fruit - --value-encoding json", &shown).succeeds();
    let hex = "--json --key-encoding hex --value-encoding hex";
    assert_eq!(sandbox.ok(&format!("scan copy fruit {hex}")), sandbox.ok(&format!("scan shop fruit {hex}")));
    sandbox.with_input("load --create other fruit -", &shown).fails(1, "use --value-encoding json");
    assert_eq!(
        sandbox.ok("get shop fruit pretty string apple --value-encoding json"),
        "{\"a\":1}\n\"red\"\n\\x726564\n"
    );
    let ran = sandbox.run("get shop fruit none nothing --value-encoding json --json").fails(3, "nothing");
    assert_eq!(ran.out, "{\"key\":\"none\",\"value\":null}\n{\"key\":\"nothing\"}\n");
    let versions = sandbox.json("versions shop fruit object --value-encoding json --json");
    assert_eq!(versions[0]["value"], serde_json::json!({ "b": 1.0, "a": [null] }));
    // With --key-field the value is the whole object, and JSON objects are shown as JSON.
    sandbox.with_input("load shop people --create --key-field id", "{\"id\": 7, \"name\": \"Ada\"}\n").succeeds();
    assert_eq!(sandbox.json("scan shop people --json --value-encoding json")[0]["value"]["name"], "Ada");
    sandbox.run("get shop fruit apple --key-encoding json").fails(2, "possible values: text, hex, base64");
}
