//! get, put, delete, scan, keyspaces.

use std::io::Read as _;

use crate::common::{Place, Ran};

#[test]
fn what_is_put_is_got_and_what_is_deleted_is_gone() {
    let place = Place::with_shop();
    assert_eq!(place.ok("get shop fruit apple"), "red\n");
    assert_eq!(place.ok("get shop fruit pear apple"), "yellow\nred\n");
    assert_eq!(place.ok("get --raw shop fruit apple"), "red");
    assert_eq!(place.ok("delete shop fruit apple"), "1 row deleted\n");
    place.run("get shop fruit apple").fails(3, "not in the keyspace \"fruit\": \"apple\"");
    let ran = place.run("get --json shop fruit apple pear").fails(3, "apple");
    assert_eq!(ran.out, "{\"key\":\"apple\",\"value\":null}\n{\"key\":\"pear\",\"value\":\"yellow\"}\n");
}

#[test]
fn a_delete_that_misses_a_row_deletes_nothing_unless_that_is_fine() {
    let place = Place::with_shop();
    place.run("delete shop fruit apple kiwi").fails(3, "nothing was deleted");
    assert_eq!(place.ok("scan shop fruit --count"), "2\n");
    assert_eq!(place.json("delete shop fruit apple kiwi --if-there --json")[0]["deleted"], 1);
}

#[test]
fn keys_and_values_are_text_hex_or_base64_on_the_way_in_and_out() {
    let place = Place::with_shop();
    place.ok("put --keys hex --values base64 shop fruit 00FF /wA=");
    assert_eq!(place.ok("get --keys hex --values hex shop fruit 00ff"), "ff00\n");
    assert_eq!(
        place.json("scan shop fruit --json --limit 1")[0].to_string(),
        r#"{"key":{"hex":"00ff"},"value":{"hex":"ff00"}}"#
    );
    assert!(place.ok("scan shop fruit").contains(r"\x00\xff"));
    assert!(place.ok("scan --keys base64 shop fruit").contains("AP8="));
    let raw = place.command("get --raw --keys hex shop fruit 00ff").output().unwrap();
    assert_eq!(raw.stdout, [0xff, 0]);
}

#[test]
fn a_value_comes_from_a_file_or_from_standard_input_to_the_byte() {
    let place = Place::with_shop();
    place.file("photo", [0, 159, 146, 150, b'\n']);
    place.ok("put shop fruit photo --value-from photo");
    place.fed("put shop fruit piped --value-from -", [0, 159, 146, 150, b'\n']).succeeds();
    for key in ["photo", "piped"] {
        assert_eq!(place.ok(&format!("get --values hex shop fruit {key}")), "009f92960a\n");
    }
}

#[test]
fn scans_are_bounded_on_both_sides_and_go_in_both_directions() {
    let place = Place::new();
    place.ok("put --create s k a 1 b 2 ba 3 c 4 d 5");
    let keys = |line: &str| {
        let rows = place.json(&format!("scan s k --json --keys-only {line}"));
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
    place.ok("history s --keep 1h");
    let then = place.json("stats s --json")[0]["newest_ts"].as_str().unwrap().to_owned();
    place.ok("put s k e 6");
    assert_eq!(keys(&format!("--rev --limit 1 --at {then}")), "d");
    assert_eq!(keys("--rev --limit 1"), "e");
    assert_eq!(place.ok("scan s k --rev --limit 2"), "e\t6\nd\t5\n");
    assert_eq!(place.ok("scan s k --rev --count --limit 3"), "3\n");
    assert_eq!(keys("--from b --to b"), "");
    assert_eq!(place.json("scan s k --count --json --prefix b")[0]["rows"], 2);
}

#[test]
fn keyspaces_are_made_listed_and_dropped() {
    let place = Place::with_shop();
    place.ok("keyspaces shop --create empty");
    let listed = place.json("keyspaces shop --count --json");
    let listed: Vec<_> = listed.iter().map(|k| (k["name"].as_str().unwrap(), k["rows"].as_u64().unwrap())).collect();
    assert_eq!(listed, [("empty", 0), ("fruit", 2)]);
    place.ok("keyspaces shop --drop fruit");
    place.run("get shop fruit apple").fails(3, "there are \"empty\"");
}

#[test]
fn keyspaces_are_renamed_and_emptied() {
    let place = Place::with_shop();
    place.ok("keyspaces shop --create nuts");
    place.run("keyspaces shop --rename fruit nuts").fails(1, "there is a keyspace \"nuts\" already");
    place.run("keyspaces shop --rename frut berries").fails(3, "there are \"fruit\"");
    place.run("keyspaces shop --rename fruit").fails(2, "values required");
    place.run("keyspaces shop --drop nuts --truncate nuts").fails(2, "cannot be used with");
    assert_eq!(place.ok("keyspaces shop --rename fruit berries"), "the keyspace \"fruit\" is called \"berries\" now\n");
    assert_eq!(place.ok("get shop berries apple"), "red\n");
    assert_eq!(place.json("keyspaces shop --truncate berries --json")[0]["truncated"], "berries");
    assert_eq!(place.ok("scan shop berries --count"), "0\n");
    place.run("keyspaces shop --truncate fruit").fails(3, "there are \"berries\", \"nuts\"");
}

#[test]
fn ranges_are_deleted_at_once() {
    let place = Place::new();
    place.ok("put --create s k a 1 b 2 ba 3 c 4 d 5");
    place.run("delete s k a --prefix b").fails(2, "cannot be used with");
    place.run("delete s k --from c --to a").fails(2, "--from lies behind --to");
    place.run("delete s k").fails(2, "required");
    assert_eq!(place.ok("delete s k --prefix b"), "2 rows deleted\n");
    assert_eq!(place.json("delete s k --from c --to d --json")[0]["deleted"], 1);
    assert_eq!(place.ok("delete s k --from x"), "0 rows deleted\n");
    assert_eq!(place.ok("scan s k --count"), "2\n");
}

#[test]
fn a_reader_that_stops_reading_ends_it_without_a_word() {
    let place = Place::with_shop();
    let rows: String = (0..50_000).map(|n| format!("key{n},value\n")).collect();
    place.fed("load shop fruit --layout csv", rows).succeeds();
    for line in ["scan shop fruit --json", "scan shop fruit", "dump shop -"] {
        let mut child = place.command(line).spawn().unwrap();
        let mut first = [0; 10];
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut first).unwrap();
        drop(out);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{line}");
        assert!(ended.status.code().is_some(), "{line}: {}", ended.status);
    }
}

#[test]
fn what_a_large_transaction_locked_is_unlocked_when_the_command_is_over() {
    let place = Place::new();
    let rows: String = (0..200_000).map(|n| format!("key{n:06}\tvalue\n")).collect();
    place.fed("load --create shop rows --layout tsv --batch 100000", rows).succeeds();
    assert_eq!(place.ok("delete --memory 8M shop rows --prefix key"), "200,000 rows deleted\n");
    assert_eq!(place.json("stats shop --json")[0]["row_locks"], 0);
    assert_eq!(place.ok("scan shop rows --count"), "0\n");
}

#[test]
fn the_store_is_run_with_the_memory_and_the_compression_that_are_asked_for() {
    let place = Place::with_shop();
    let rows: String = (0..60_000).map(|n| format!("key{n:06},{}\n", "x".repeat(40))).collect();
    place.file("rows.csv", rows);
    for (how, store) in [("none", "plain"), ("lz4", "small")] {
        place.ok(&format!("load --create --memory 8M --compression {how} {store} rows rows.csv"));
        place.ok(&format!("checkpoint {store} {store}-copy"));
    }
    let bytes = |store: &str| {
        let columns = place.json(&format!("stats {store} --json"))[0]["columns"].as_array().unwrap().clone();
        columns.iter().map(|column| column["bytes"].as_u64().unwrap()).sum::<u64>()
    };
    let (plain, small) = (bytes("plain-copy"), bytes("small-copy"));
    assert!(plain > small * 3 / 2, "{plain} {small}");
    // Greater than a transaction may be that has a sixteenth of it.
    place.file("big", vec![b'x'; 3 << 20]);
    place.run("put --memory 8M shop fruit big --value-from big").fails(1, "limit of 1048576 bytes");
    for command in [
        "put shop fruit a b",
        "delete shop fruit apple",
        "load shop fruit rows.csv",
        "shell shop",
        "restore s x",
        "repair s t",
    ] {
        for memory in ["4M", "0", "2T", "99999999999T"] {
            place.run(&format!("{command} --memory {memory}")).fails(2, "it must be from 8 MiB to 1 TiB");
        }
        place.run(&format!("{command} --compression zip")).fails(2, "possible values: none, lz4");
    }
}

#[test]
fn without_a_terminal_rows_are_plain_lines_and_load_reads_them_back_to_the_byte() {
    let place = Place::with_shop();
    // A tab, a line end, a backslash, what looks like an escape, no text, a byte order mark, an object.
    let odd = ["09610a", "5c", "5c78", "ff00fe", "efbbbf61", "7b220961", "0d", "e282ac7f"];
    for (n, hex) in odd.iter().enumerate() {
        place.ok(&format!("put shop fruit --keys hex --values hex {hex} {}", odd[odd.len() - 1 - n]));
    }
    let long = "x".repeat(5000);
    place.fed("put shop fruit zlong --value-from -", &long).succeeds();
    let plain = place.ok("scan shop fruit");
    assert_eq!(plain.lines().count(), 11, "{plain}");
    assert!(plain.contains("\napple\tred\n") && plain.contains(&format!("\nzlong\t{long}\n")), "{plain}");
    assert!(plain.contains("\\ta\\n\t\u{20ac}\\x7f\n"), "{plain}");
    let all = place.ok("scan shop fruit --json --keys hex --values hex");
    for (keys, values) in [("text", "text"), ("hex", "base64"), ("base64", "hex")] {
        let forms = format!("--keys {keys} --values {values}");
        let shown = place.ok(&format!("scan shop fruit {forms}"));
        place.fed(&format!("load --create {keys} fruit - {forms}"), shown).succeeds();
        assert_eq!(place.ok(&format!("scan {keys} fruit --json --keys hex --values hex")), all, "{forms}");
    }
    assert_eq!(place.ok("scan shop fruit --keys-only --prefix p"), "pear\n");
    assert_eq!(place.ok("keyspaces shop --count"), "fruit\t1\t11\n");
}

#[test]
fn a_terminal_gets_tables_in_which_long_values_are_cut() {
    let place = Place::with_shop();
    place.fed("put shop fruit zlong --value-from -", "x".repeat(5000)).succeeds();
    let shown = place.in_terminal("scan shop fruit", "").out;
    assert!(shown.contains("│ apple") && shown.contains('┌') && shown.contains('…'), "{shown}");
    assert!(shown.matches('x').count() < 500, "{shown}");
    let shown = place.in_terminal("keyspaces shop", "").out;
    assert!(shown.contains("│ fruit"), "{shown}");
}

#[test]
fn values_that_are_json_come_out_as_json_and_go_in_again_to_the_bit() {
    let place = Place::with_shop();
    let put = |key: &str, value: &str| {
        let mut put = place.command("put shop fruit --values json");
        Ran::of("put", put.args([key, value]).output().unwrap())
    };
    put("object", " {\"b\": 1.0, \"a\": [null]} ").succeeds();
    put("string", "\"red\"").succeeds();
    put("hex", "{\"hex\":\"00\"}").succeeds();
    put("none", "null").succeeds();
    put("number", "-1e400").succeeds();
    put("bad", "{").fails(2, "\"{\" is no JSON");
    place.fed("put shop fruit bad --value-from - --values json", "red").fails(2, "is no JSON");
    place.fed("put shop fruit pretty --value-from -", "{\n  \"a\": 1\n}\n").succeeds();
    place.ok("put shop fruit binary --values hex ff");
    let shown = place.ok("scan shop fruit --json --values json");
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
    place.fed("load --create copy fruit - --values json", &shown).succeeds();
    let hex = "--json --keys hex --values hex";
    assert_eq!(place.ok(&format!("scan copy fruit {hex}")), place.ok(&format!("scan shop fruit {hex}")));
    place.fed("load --create other fruit -", &shown).fails(1, "say --values json");
    assert_eq!(place.ok("get shop fruit pretty string apple --values json"), "{\"a\":1}\n\"red\"\n\\x726564\n");
    let ran = place.run("get shop fruit none nothing --values json --json").fails(3, "nothing");
    assert_eq!(ran.out, "{\"key\":\"none\",\"value\":null}\n{\"key\":\"nothing\"}\n");
    let versions = place.json("versions shop fruit object --values json --json");
    assert_eq!(versions[0]["value"], serde_json::json!({ "b": 1.0, "a": [null] }));
    // Records that were loaded by a field are objects.
    place.fed("load shop people --create --key id", "{\"id\": 7, \"name\": \"Ada\"}\n").succeeds();
    assert_eq!(place.json("scan shop people --json --values json")[0]["value"]["name"], "Ada");
    place.run("get shop fruit apple --keys json").fails(2, "possible values: text, hex, base64");
}
