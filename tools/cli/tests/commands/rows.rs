//! get, put, delete, scan, keyspaces.

use std::io::Read as _;

use crate::common::Place;

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
    assert_eq!(keys("--reverse --limit 2"), "d c");
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
    assert_eq!(place.json("stats shop --json")[0]["locks"], 0);
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
