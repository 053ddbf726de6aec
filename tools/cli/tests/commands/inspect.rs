//! locks, txn, stats, verify, repair: row locks of dead processes, and damage.

use std::collections::BTreeMap;
use std::fs;

use percolite::engine::RowBatch;
use percolite::row::{CellChange, KeyspaceId, RowChange, StoredValue, TxnId, WriteRecord};
use percolite::{OwnerId, RowKey, Store, Timestamp};

use crate::common::Sandbox;
use crate::orphans::leave_locks;

#[test]
fn inspection_shows_orphan_locks_and_changes_nothing() {
    for (committed, status, value) in [(true, "committed", "new\n"), (false, "pending", "old\n")] {
        let sandbox = Sandbox::new();
        leave_locks(&sandbox.path().join("s"), committed);
        let before = content(&sandbox);
        let locks = sandbox.json("locks s --json");
        assert_eq!(locks.len(), if committed { 1 } else { 2 });
        let lock = locks.last().unwrap();
        assert_eq!((&lock["key"], &lock["primary"]["key"]), (&"b".into(), &"a".into()));
        assert_eq!((&lock["txn_status"], &lock["is_orphan"]), (&status.into(), &true.into()));
        assert_eq!(sandbox.ok("get s rows b"), value);
        let shown = sandbox.ok("locks s");
        assert!(shown.contains("rows\tb\t") && shown.contains(status), "{shown}");
        let shown = sandbox.in_terminal("locks s", "").out;
        assert!(shown.contains("rows/b") && shown.contains(status), "{shown}");
        let (start, owner) = (lock["start_ts"].as_str().unwrap(), lock["owner_id"].as_str().unwrap());
        assert_eq!(
            sandbox.json(&format!("txn s {start} --json"))[0]["row_locks"].as_array().unwrap().len(),
            locks.len()
        );
        let report = sandbox.ok(&format!("txn s {start} --owner {owner} --keyspace rows --key a"));
        assert!(report.starts_with(status), "{report}");
        assert_eq!(sandbox.json("stats s --json")[0]["row_locks"], locks.len());
        assert_eq!(sandbox.json("verify s --json")[0]["ok"], true);
        assert_eq!(content(&sandbox), before, "a read-only command changed a file");
        // Opening for writing resolves the locks.
        sandbox.ok("put s rows b x");
        assert_eq!(sandbox.ok("locks s"), "");
    }
}

fn content(sandbox: &Sandbox) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let files = sandbox.files("s", |_| true).into_iter();
    files.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

#[test]
fn txn_of_an_unknown_transaction_exits_with_3() {
    let sandbox = Sandbox::with_shop();
    sandbox
        .run("txn shop 1763726400123.7")
        .fails(3, "no row is locked by the transaction 1763726400123.7 (2025-11-21 12:00:00.123 UTC);");
    let line = "txn shop 1763726400123.7 --owner 0b0d4f421fc00007 --keyspace fruit --key apple";
    sandbox.run(line).fails(3, "has no record of");
    sandbox.run("txn shop yesterday").fails(2, "not a timestamp");
}

#[test]
fn verify_finds_a_missing_value() {
    let sandbox = Sandbox::with_shop();
    let engine = Store::builder().durable_engine(sandbox.path().join("shop")).unwrap();
    let ts = Timestamp::from_millis;
    let txn = TxnId { start_ts: ts(5), owner: OwnerId::new(5, 5) };
    let mut change = RowChange::new(RowKey::new(KeyspaceId(1), b"kiwi"), txn.start_ts);
    change.write =
        CellChange::Put(WriteRecord { commit_ts: ts(6), txn, value: Some(StoredValue::OutOfLine), lock_only_ts: None });
    engine.apply(&[RowBatch::Changes(vec![change])]).unwrap();
    drop(engine);
    let ran = sandbox
        .run("verify shop")
        .fails(6, "1 issue found; go back to a checkpoint or a dump, or else: percolite repair shop NEW");
    assert!(
        ran.out.contains("kiwi: the value of transaction 5.0 (1970-01-01 00:00:00.005 UTC) is missing"),
        "{}",
        ran.out
    );
    let ran = sandbox.run("verify shop --json").fails(6, "1 issue found");
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["issues"][0]["column"], "Write");
    sandbox.run("get shop fruit kiwi").fails(6, "corruption");
}

#[test]
fn verify_finds_flipped_bits_in_a_table() {
    let sandbox = Sandbox::with_shop();
    // A checkpoint has its rows in SSTs, and an empty WAL.
    sandbox.ok("checkpoint shop copy");
    for table in sandbox.files("copy", |name| name.ends_with(".sst")) {
        let mut bytes = fs::read(&table).unwrap();
        (10..30).for_each(|at| bytes[at] ^= 0xff);
        fs::remove_file(&table).unwrap();
        fs::write(&table, bytes).unwrap();
    }
    sandbox.run("verify copy").fails(6, "");
    assert_eq!(sandbox.json("verify shop --json")[0]["ok"], true);
}

#[test]
fn a_store_without_its_log_directory_is_damage() {
    let sandbox = Sandbox::with_shop();
    fs::remove_dir_all(sandbox.path().join("shop/wal")).unwrap();
    for line in ["scan shop fruit", "put shop fruit plum blue", "stats shop"] {
        let ran = sandbox.run(line).fails(6, "percolite repair ");
        assert!(ran.err.contains("shop/wal is missing"), "{}", ran.err);
    }
}

#[test]
fn an_accepted_data_loss_opens_the_store_and_is_reported() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop shop.dump");
    sandbox.ok("restore killed shop.dump");
    sandbox.kill_after("killed", (0..50).map(|n| format!("put fruit k{n} {}", "7".repeat(100))));
    let log = sandbox.files("killed/wal", |name| name.ends_with(".segment"));
    let log = log.into_iter().rfind(|log| fs::read(log).unwrap().windows(9).any(|bytes| bytes == [b'7'; 9])).unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let at = bytes.windows(9).position(|bytes| bytes == [b'7'; 9]).unwrap();
    bytes[at] ^= 1;
    fs::write(log, bytes).unwrap();
    let ran = sandbox.run("verify killed --json").fails(6, "percolite accept-data-loss killed ");
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["opened"], &report["ok"]), (&false.into(), &false.into()));
    for line in ["get killed fruit pear", "put killed fruit plum blue"] {
        sandbox.run(line).fails(6, "were durable and cannot be read");
    }
    let fingerprint =
        ran.err.split("accept-data-loss killed ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    sandbox.run("accept-data-loss killed 0123456789abcdef").fails(6, &fingerprint);
    sandbox.run("accept-data-loss killed nonsense").fails(2, "a fingerprint");
    assert!(sandbox.ok(&format!("accept-data-loss killed {fingerprint}")).contains("the loss was accepted"));

    let accepted = "1 accepted loss, and nothing else is wrong; when it is dealt with: mv killed/wal/lost-* ELSEWHERE";
    let ran = sandbox.run("verify killed").fails(6, accepted);
    assert!(ran.out.contains("acknowledged commits were lost"), "{}", ran.out);
    let ran = sandbox.run("verify killed --json").fails(6, accepted);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let lost_bytes = &report["data_losses"][0]["lost_bytes"];
    assert!(lost_bytes.as_u64().unwrap() > 2000 && report["ok"] == false, "{report}");
    assert!(sandbox.ok("stats killed").contains("acknowledged commits were lost"));
    assert_eq!(sandbox.json("stats killed --json")[0]["data_loss_bytes"], *lost_bytes);
    for line in [
        "put killed fruit plum blue",
        "dump --overwrite killed shop.dump",
        "checkpoint killed copy",
        "get killed fruit pear",
    ] {
        let ran = sandbox.run(line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.err);
        let report = ran.err.starts_with("warning: acknowledged commits were lost") && ran.err.lines().count() == 1;
        assert!(report, "{line}: {}", ran.err);
    }
    sandbox.run(&format!("accept-data-loss shop {fingerprint}")).fails(3, "no data loss");
    for lost in sandbox.files("killed/wal", |name| name.starts_with("lost-")) {
        fs::rename(&lost, sandbox.path().join(lost.file_name().unwrap())).unwrap();
    }
    sandbox.ok("verify killed");
}

#[test]
fn a_store_that_does_not_open_names_the_remedy() {
    let sandbox = Sandbox::with_shop();
    let marker = fs::read(sandbox.path().join("shop/PERCOLITE")).unwrap();
    for (file, code, report) in [
        ("PERCOLITE", 5, "if this was a store: percolite repair shop NEW"),
        ("tables/CURRENT", 6, "or else: percolite repair shop NEW"),
    ] {
        sandbox.ok("dump --overwrite shop shop.dump");
        fs::remove_file(sandbox.path().join("shop").join(file)).unwrap();
        sandbox.run("verify shop").fails(code, report);
        let ran = sandbox.run("verify shop --json").fails(code, report);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let ok = if code == 6 { Some(false) } else { None };
        assert!(
            report["opened"] == false && report["ok"] == serde_json::json!(ok) && report["error"].is_string(),
            "{report}"
        );
        if code == 6 {
            sandbox.run("restore --replace shop shop.dump").fails(6, "percolite repair shop NEW");
        }
        let ran = sandbox.run("repair shop rescued");
        assert!(ran.out.contains("2 rows"), "{}{}", ran.out, ran.err);
        fs::remove_dir_all(sandbox.path().join("rescued")).unwrap();
        fs::write(sandbox.path().join("shop/PERCOLITE"), &marker).unwrap();
    }
}

#[test]
fn a_transaction_is_found_by_a_row_that_it_wrote() {
    let sandbox = Sandbox::with_shop();
    let version = &sandbox.json("versions shop fruit apple --json")[0];
    let commit_ts = version["commit_ts"].as_str().unwrap();
    sandbox.run(&format!("txn shop {commit_ts}")).fails(3, "--keyspace and --key read a row that it wrote");
    let report = sandbox.ok(&format!("txn shop {commit_ts} --keyspace fruit --key apple"));
    assert!(report.starts_with(&format!("committed at {commit_ts} ")), "{report}");
    sandbox.run("txn shop 5.7 --keyspace fruit --key apple").fails(3, "or give its --owner");
    // The status of a row that is still locked comes from the primary of the lock.
    for (committed, status) in [(true, "committed at "), (false, "pending")] {
        let sandbox = Sandbox::new();
        leave_locks(&sandbox.path().join("s"), committed);
        let locks = sandbox.json("locks s --json");
        let start = locks.last().unwrap()["start_ts"].as_str().unwrap().to_owned();
        let report = sandbox.ok(&format!("txn s {start} --keyspace rows --key b"));
        assert!(report.starts_with(status), "{report}");
        let (forward, back) = if committed { (1, 0) } else { (0, 2) };
        let resolved = &sandbox.json("locks s --resolve --json")[0];
        assert_eq!(
            *resolved,
            serde_json::json!({ "resolved": forward + back, "rolled_forward": forward, "rolled_back": back })
        );
    }
}

#[test]
fn repair_reports_the_history_that_it_skips() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("retention shop --set 7d");
    sandbox.ok("put shop fruit apple green");
    sandbox.ok("put shop fruit apple blue");
    let report = sandbox.ok("repair shop new");
    assert!(
        report.contains("history is not repaired, 2 replaced versions not copied; percolite retention new --set 7d"),
        "{report}"
    );
    let report = &sandbox.json("repair shop newer --json")[0];
    assert_eq!((&report["complete"], &report["history_skipped"]), (&true.into(), &2.into()));
    assert!(!sandbox.ok("repair new newest").contains("not copied"));
}

#[test]
fn repair_copies_a_damaged_store_and_reports_its_losses() {
    let sandbox = Sandbox::with_shop();
    assert_eq!(sandbox.json("repair shop complete --json")[0]["complete"], true);
    let stats = &sandbox.json("stats complete --json")[0];
    assert!(stats["wal_bytes"].as_u64().unwrap() > 0 && stats["columns"].as_array().unwrap().len() == 5, "{stats}");
    fs::remove_file(sandbox.path().join("shop/tables/CURRENT")).unwrap();
    sandbox.run("get shop fruit apple").fails(6, "but no tables");
    let ran = sandbox.run("repair shop rescued").fails(6, "1 loss; the readable data is in rescued");
    assert!(ran.out.contains("1 keyspace, 2 rows") && ran.out.contains("rebuilt from their files"), "{}", ran.out);
    assert_eq!(sandbox.ok("get rescued fruit apple"), "red\n");
    sandbox.ok("verify rescued");
    sandbox.run("repair shop rescued").fails(1, "already exists");
    sandbox.run("repair nothing new").fails(5, "/nothing");
}

#[test]
fn repair_of_a_store_without_tables_reads_the_log() {
    for make in ["", "touch shop/tables"] {
        let sandbox = Sandbox::with_shop();
        sandbox.in_shell(&format!("rm -r shop/tables; {make}")).succeeds();
        sandbox.run("get shop fruit apple").fails(6, "percolite repair shop NEW");
        sandbox.run("repair shop rescued").fails(6, "the readable data is in rescued");
        assert_eq!(sandbox.ok("get rescued fruit apple"), "red\n");
    }
}

#[test]
fn an_interrupt_stops_long_commands_and_leaves_no_files() {
    let sandbox = Sandbox::new();
    let rows: String = (0..200_000).map(|n| format!("key{n:06}\tvalue\n")).collect();
    sandbox.with_input("load --create s rows --format tsv", rows).succeeds();
    for (line, what) in [
        ("verify s", "the other cells were not read"),
        ("delete s rows --prefix key", "interrupted; nothing was deleted"),
        ("delete s rows --from a", "interrupted; nothing was deleted"),
        ("repair s new", "interrupted; new was removed"),
        ("checkpoint s new", "interrupted; the checkpoint was removed"),
        ("scan s rows", "interrupted; the output is incomplete"),
        ("scan s rows --count", "interrupted; not all rows were counted"),
        ("keyspaces s --count", "interrupted; not all rows were counted"),
    ] {
        sandbox.interrupted(line).fails(130, what);
    }
    let names: Vec<_> = fs::read_dir(sandbox.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["s"], "a directory was not removed");
    assert_eq!(sandbox.ok("scan s rows --count"), "200000\n");
}

#[test]
fn locks_resolve_counts_the_resolved_row_locks() {
    let sandbox = Sandbox::new();
    leave_locks(&sandbox.path().join("s"), false);
    let shown = sandbox.ok("locks s --key-encoding hex");
    assert!(shown.contains("rows\t61\t") && shown.contains("rows\t62\t"), "{shown}");
    assert_eq!(sandbox.ok("locks s --resolve"), "2 row locks resolved: 0 rolled forward, 2 rolled back\n");
    assert_eq!(sandbox.ok("locks s --resolve"), "0 row locks resolved: 0 rolled forward, 0 rolled back\n");
    assert_eq!(sandbox.ok("locks s"), "");
    assert_eq!(sandbox.ok("get s rows b"), "old\n");
    leave_locks(&sandbox.path().join("u"), false);
    sandbox.interrupted("locks u --resolve").fails(130, "remaining row locks are resolved when");
    assert_eq!(sandbox.json("verify u --json")[0]["ok"], true);
    leave_locks(&sandbox.path().join("t"), true);
    assert_eq!(sandbox.json("locks t --resolve --json")[0]["resolved"], 1);
}

#[test]
fn the_lock_table_lists_the_first_and_counts_the_others() {
    let sandbox = Sandbox::new();
    leave_locks(&sandbox.path().join("s"), false);
    let engine = Store::builder().durable_engine(sandbox.path().join("s")).unwrap();
    let view = engine.snapshot().unwrap();
    let lock = |key: &[u8]| {
        let row = RowKey::new(KeyspaceId(1), key);
        view.lock(&row).unwrap()
    };
    let lock = lock(b"a").expect("the helper's first keyspace is number 1");
    let mut changes = Vec::new();
    for n in 0..150_u64 {
        for i in 0..if n == 0 { 50 } else { 1 } {
            let row = RowKey::new(KeyspaceId(1), format!("row {n:03} {i:02}").as_bytes());
            let mut lock = lock.clone();
            lock.txn.start_ts = Timestamp::from_millis(5 + n);
            let mut change = RowChange::new(row, lock.txn.start_ts);
            change.lock = CellChange::Put(lock);
            changes.push(change);
        }
    }
    engine.apply(&[RowBatch::Changes(changes)]).unwrap();
    drop((view, engine));
    assert_eq!(sandbox.json("locks s --json").len(), 2 + 50 + 149);
    assert_eq!(sandbox.ok("locks s").lines().count(), 2 + 50 + 149);
    let shown = sandbox.in_terminal("locks s", "").out;
    assert!(shown.contains("rows/row 000 19") && !shown.contains("row 000 20"), "{shown}");
    assert!(shown.contains("… and 30 more"), "{shown}");
    assert!(shown.contains("… and 51 row locks of other transactions"), "{shown}");
}

#[test]
fn a_missing_manifest_is_damage_with_a_remedy() {
    let sandbox = Sandbox::with_shop();
    let manifest = fs::read_dir(sandbox.path().join("shop/tables")).unwrap().map(|entry| entry.unwrap());
    let manifest = manifest.filter(|entry| entry.file_name().to_string_lossy().starts_with("MANIFEST-"));
    manifest.for_each(|entry| fs::remove_file(entry.path()).unwrap());
    for line in ["get shop fruit apple", "put shop fruit apple green", "stats shop", "checkpoint shop copy"] {
        sandbox
            .run(line)
            .fails(6, "the store does not open; go back to a checkpoint or a dump, or else: percolite repair shop NEW");
    }
    sandbox.run("repair shop rescued").fails(6, "the readable data is in rescued");
    assert_eq!(sandbox.ok("get rescued fruit apple"), "red\n");
}

#[test]
fn stats_counts_rows_and_bytes_of_each_keyspace() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("keyspaces shop --create empty");
    sandbox.ok("put --create shop dropped row value");
    sandbox.ok("retention shop --set 7d");
    sandbox.ok("keyspaces shop --drop dropped");
    for line in ["stats shop --json", "stats shop --exact --json"] {
        let stats = sandbox.json(line)[0]["keyspace_stats"].as_array().unwrap().clone();
        let of = |name: &str| stats.iter().find(|keyspace| keyspace["name"] == name).unwrap();
        assert_eq!((&of("fruit")["rows"], &of("fruit")["logical_bytes"]), (&2.into(), &18.into()), "{line}");
        assert_eq!((&of("empty")["rows"], &of("empty")["is_exact"]), (&0.into(), &true.into()), "{line}");
        // The dropped keyspace is kept as long as the history.
        assert!(stats.len() == 3 && stats[2]["name"].is_null() && stats[2]["rows"].is_null(), "{stats:?}");
    }
    let shown = sandbox.ok("stats shop");
    assert!(
        shown.contains("keys and values") && shown.contains("(dropped: 1)") && !shown.contains("about 2"),
        "{shown}"
    );
}

#[test]
fn progress_with_rate_and_time_left_is_for_a_terminal_only() {
    let sandbox = Sandbox::new();
    let rows: String = (0..200_000).map(|n| format!("key{n:06}\tvalue\n")).collect();
    sandbox.file("rows.tsv", rows);
    for (line, unit) in [
        ("load --create s rows rows.tsv", "B/s"),
        ("verify s", "/s"),
        ("dump s s.dump", "/s"),
        ("repair s new", "/s"),
        ("delete s rows --prefix key", "/s"),
    ] {
        let shown = sandbox.in_terminal(line, "").succeeds();
        let report = shown.split(['\r', '\n']).filter(|report| report.contains("s left"));
        assert!(report.clone().count() > 0, "{line}: {shown}");
        assert!(report.clone().all(|report| report.contains(unit) && report.contains(" of ")), "{line}: {shown}");
    }
    // Without its file `CURRENT` the store does not open, so the total cannot be estimated: a rate
    // and a count are shown, but no time left.
    std::fs::remove_file(sandbox.path().join("new/tables/CURRENT")).unwrap();
    let ran = sandbox.in_terminal("repair new newer", "");
    let (code, shown) = (ran.code, ran.out);
    let report = shown.split(['\r', '\n']).filter(|report| report.contains("/s, "));
    assert!(report.clone().any(|report| report.contains(" rows, 1 loss, ") && !report.contains(" 0 rows")), "{shown}");
    assert!(code == Some(6) && !report.clone().any(|report| report.contains("left")), "{code:?}: {shown}");
    // Without a terminal standard error stays empty, which `ok` asserts.
    sandbox.ok("load s rows rows.tsv");
    sandbox.ok("delete s rows --prefix key");
}
