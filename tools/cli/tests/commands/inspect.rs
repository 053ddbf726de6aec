//! locks, txn, stats, verify: what dead processes and damage have left.

use std::collections::BTreeMap;
use std::fs;

use percolite::engine::RowBatch;
use percolite::row::{CellChange, KeyspaceId, RowChange, TxnId, Value, WriteRecord};
use percolite::{OwnerId, RowKey, Store, Timestamp};

use crate::common::Sandbox;
use crate::orphans::leave_locks;

#[test]
fn locks_of_the_dead_are_shown_and_read_and_stay() {
    for (committed, fate, value) in [(true, "committed", "new\n"), (false, "pending", "old\n")] {
        let sandbox = Sandbox::new();
        leave_locks(&sandbox.path().join("s"), committed);
        let before = content(&sandbox);
        let locks = sandbox.json("locks s --json");
        assert_eq!(locks.len(), if committed { 1 } else { 2 });
        let lock = locks.last().unwrap();
        assert_eq!((&lock["key"], &lock["primary"]["key"]), (&"b".into(), &"a".into()));
        assert_eq!((&lock["commit_point"], &lock["orphan"]), (&fate.into(), &true.into()));
        assert_eq!(sandbox.ok("get s rows b"), value);
        let shown = sandbox.ok("locks s");
        assert!(shown.contains("rows\tb\t") && shown.contains(fate), "{shown}");
        let shown = sandbox.in_terminal("locks s", "").out;
        assert!(shown.contains("rows/b") && shown.contains(fate), "{shown}");
        let (start, owner) = (lock["start_ts"].as_str().unwrap(), lock["owner"].as_str().unwrap());
        assert_eq!(
            sandbox.json(&format!("txn s {start} --json"))[0]["row_locks"].as_array().unwrap().len(),
            locks.len()
        );
        let asked = sandbox.ok(&format!("txn s {start} --owner {owner} --keyspace rows --key a"));
        assert!(asked.starts_with(fate), "{asked}");
        assert_eq!(sandbox.json("stats s --json")[0]["row_locks"], locks.len());
        assert_eq!(sandbox.json("verify s --json")[0]["sound"], true);
        assert_eq!(content(&sandbox), before, "looking changed something");
        // Opening for writing resolves them.
        sandbox.ok("put s rows b x");
        assert_eq!(sandbox.ok("locks s"), "");
    }
}

fn content(sandbox: &Sandbox) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let files = sandbox.files("s", |_| true).into_iter();
    files.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

#[test]
fn a_transaction_that_nobody_knows_is_told_so() {
    let sandbox = Sandbox::with_shop();
    sandbox
        .run("txn shop 1763726400123.7")
        .fails(3, "no row is locked by a transaction 1763726400123.7 (2025-11-21 12:00:00.123 UTC);");
    let asked = "txn shop 1763726400123.7 --owner 0b0d4f421fc00007 --keyspace fruit --key apple";
    sandbox.run(asked).fails(3, "knows nothing of");
    sandbox.run("txn shop yesterday").fails(2, "not a timestamp");
}

#[test]
fn verify_finds_a_value_that_is_missing() {
    let sandbox = Sandbox::with_shop();
    let engine = Store::builder().durable_engine(sandbox.path().join("shop")).unwrap();
    let ts = Timestamp::from_millis;
    let txn = TxnId { start_ts: ts(5), owner: OwnerId::new(5, 5) };
    let mut change = RowChange::new(RowKey::new(KeyspaceId(1), b"kiwi"), txn.start_ts);
    change.write =
        CellChange::Put(WriteRecord { commit_ts: ts(6), txn, value: Some(Value::OutOfLine), lock_only_ts: None });
    engine.apply(&[RowBatch::Changes(vec![change])]).unwrap();
    drop(engine);
    let ran = sandbox
        .run("verify shop")
        .fails(6, "1 problem found; go back to a checkpoint or a dump, or else: percolite repair shop NEW");
    assert!(
        ran.out.contains("kiwi: the value that the transaction 5.0 (1970-01-01 00:00:00.005 UTC) wrote is missing"),
        "{}",
        ran.out
    );
    let ran = sandbox.run("verify shop --json").fails(6, "1 problem found");
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(told["problems"][0]["column"], "Write");
    sandbox.run("get shop fruit kiwi").fails(6, "corruption");
}

#[test]
fn verify_finds_a_table_with_flipped_bits() {
    let sandbox = Sandbox::with_shop();
    // A checkpoint has its rows in tables, and an empty log.
    sandbox.ok("checkpoint shop copy");
    for table in sandbox.files("copy", |name| name.ends_with(".sst")) {
        let mut bytes = fs::read(&table).unwrap();
        (10..30).for_each(|at| bytes[at] ^= 0xff);
        fs::remove_file(&table).unwrap();
        fs::write(&table, bytes).unwrap();
    }
    sandbox.run("verify copy").fails(6, "");
    assert_eq!(sandbox.json("verify shop --json")[0]["sound"], true);
}

#[test]
fn a_log_that_has_lost_commits_is_opened_once_the_loss_is_accepted_and_told_from_then_on() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop shop.dump");
    sandbox.ok("restore killed shop.dump");
    sandbox.kill_after("killed", (0..50).map(|n| format!("put fruit k{n} {}", "7".repeat(100))));
    let log = sandbox.files("killed/log", |name| name.ends_with(".segment"));
    let log = log.into_iter().rfind(|log| fs::read(log).unwrap().windows(9).any(|bytes| bytes == [b'7'; 9])).unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let at = bytes.windows(9).position(|bytes| bytes == [b'7'; 9]).unwrap();
    bytes[at] ^= 1;
    fs::write(log, bytes).unwrap();
    let ran = sandbox.run("verify killed --json").fails(6, "percolite accept-data-loss killed ");
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&told["opens"], &told["sound"]), (&false.into(), &false.into()));
    for line in ["get killed fruit pear", "put killed fruit plum blue"] {
        sandbox.run(line).fails(6, "were durable and cannot be read");
    }
    let fingerprint =
        ran.err.split("accept-data-loss killed ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    sandbox.run("accept-data-loss killed 0123456789abcdef").fails(6, &fingerprint);
    sandbox.run("accept-data-loss killed nonsense").fails(2, "a fingerprint");
    assert!(sandbox.ok(&format!("accept-data-loss killed {fingerprint}")).contains("the loss was accepted"));

    let ran = sandbox.run("verify killed").fails(6, "1 problem found");
    assert!(ran.out.contains("acknowledged commits were lost"), "{}", ran.out);
    let ran = sandbox.run("verify killed --json").fails(6, "1 problem found");
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert!(told["lost_logs"][0]["bytes"].as_u64().unwrap() > 2000 && told["sound"] == false, "{told}");
    assert!(sandbox.ok("stats killed").contains("acknowledged commits were lost"));
    assert_eq!(sandbox.json("stats killed --json")[0]["lost_log_bytes"], told["lost_logs"][0]["bytes"]);
    for line in [
        "put killed fruit plum blue",
        "dump --overwrite killed shop.dump",
        "checkpoint killed copy",
        "get killed fruit pear",
    ] {
        let ran = sandbox.run(line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.err);
        let told = ran.err.starts_with("warning: acknowledged commits were lost") && ran.err.lines().count() == 1;
        assert!(told, "{line}: {}", ran.err);
    }
    sandbox.run(&format!("accept-data-loss shop {fingerprint}")).fails(3, "no commits are lost");
}

#[test]
fn a_store_that_does_not_open_is_told_what_can_be_done() {
    let sandbox = Sandbox::with_shop();
    let marker = fs::read(sandbox.path().join("shop/PERCOLITE")).unwrap();
    for (file, code, told) in [
        ("PERCOLITE", 5, "if this was a store, repair it into a new one: percolite repair shop NEW"),
        ("tables/CURRENT", 6, "or else: percolite repair shop NEW"),
    ] {
        sandbox.ok("dump --overwrite shop shop.dump");
        fs::remove_file(sandbox.path().join("shop").join(file)).unwrap();
        sandbox.run("verify shop").fails(code, told);
        let ran = sandbox.run("verify shop --json").fails(code, told);
        let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let sound = if code == 6 { Some(false) } else { None };
        assert!(
            told["opens"] == false && told["sound"] == serde_json::json!(sound) && told["why"].is_string(),
            "{told}"
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
fn a_transaction_is_found_by_the_row_that_it_wrote() {
    let sandbox = Sandbox::with_shop();
    let version = &sandbox.json("versions shop fruit apple --json")[0];
    let commit = version["timestamp"].as_str().unwrap();
    sandbox.run(&format!("txn shop {commit}")).fails(3, "say --keyspace and --key");
    let told = sandbox.ok(&format!("txn shop {commit} --keyspace fruit --key apple"));
    assert!(told.starts_with(&format!("committed at {commit} ")), "{told}");
    sandbox.run("txn shop 5.7 --keyspace fruit --key apple").fails(3, "or say its --owner");
    // Of a lock that is still there its primary says.
    for (committed, fate) in [(true, "committed at "), (false, "pending")] {
        let sandbox = Sandbox::new();
        leave_locks(&sandbox.path().join("s"), committed);
        let locks = sandbox.json("locks s --json");
        let start = locks.last().unwrap()["start_ts"].as_str().unwrap().to_owned();
        let told = sandbox.ok(&format!("txn s {start} --keyspace rows --key b"));
        assert!(told.starts_with(fate), "{told}");
        let (forward, back) = if committed { (1, 0) } else { (0, 2) };
        let resolved = &sandbox.json("locks s --resolve --json")[0];
        assert_eq!(
            *resolved,
            serde_json::json!({ "resolved": forward + back, "rolled_forward": forward, "rolled_back": back })
        );
    }
}

#[test]
fn a_repair_tells_what_stays_behind_of_the_history() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("retention shop --set 7d");
    sandbox.ok("put shop fruit apple green");
    sandbox.ok("put shop fruit apple blue");
    let told = sandbox.ok("repair shop new");
    assert!(
        told.contains("2 replaced versions of the history stay behind; percolite retention new --set 7d"),
        "{told}"
    );
    let told = &sandbox.json("repair shop newer --json")[0];
    assert_eq!((&told["whole"], &told["versions_left"]), (&true.into(), &2.into()));
    assert!(!sandbox.ok("repair new newest").contains("stay behind"));
}

#[test]
fn a_damaged_store_is_repaired_into_a_new_one_and_told_what_is_lost() {
    let sandbox = Sandbox::with_shop();
    assert_eq!(sandbox.json("repair shop whole --json")[0]["whole"], true);
    let stats = &sandbox.json("stats whole --json")[0];
    assert!(stats["log_bytes"].as_u64().unwrap() > 0 && stats["columns"].as_array().unwrap().len() == 5, "{stats}");
    fs::remove_file(sandbox.path().join("shop/tables/CURRENT")).unwrap();
    sandbox.run("get shop fruit apple").fails(6, "but no tables");
    let ran = sandbox.run("repair shop rescued").fails(6, "1 loss; what could be read is in rescued");
    assert!(ran.out.contains("1 keyspace, 2 rows") && ran.out.contains("rebuilt from their files"), "{}", ran.out);
    assert_eq!(sandbox.ok("get rescued fruit apple"), "red\n");
    sandbox.ok("verify rescued");
    sandbox.run("repair shop rescued").fails(1, "is there already");
    sandbox.run("repair nothing new").fails(5, "there is no directory nothing");
}

#[test]
fn long_work_that_is_interrupted_says_so_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let rows: String = (0..200_000).map(|n| format!("key{n:06}\tvalue\n")).collect();
    sandbox.with_input("load --create s rows --format tsv", rows).succeeds();
    for (line, what) in [
        ("verify s", "the rest was not read"),
        ("delete s rows --prefix key", "interrupted; nothing was deleted"),
        ("delete s rows --from a", "interrupted; nothing was deleted"),
        ("repair s new", "interrupted; nothing is left of new"),
        ("checkpoint s new", "interrupted; nothing is left of the checkpoint"),
        ("scan s rows", "interrupted; these are not all rows"),
        ("scan s rows --count", "interrupted; the rows were not counted to the end"),
        ("keyspaces s --count", "interrupted; the rows were not counted to the end"),
    ] {
        sandbox.interrupted(line).fails(130, what);
    }
    let names: Vec<_> = fs::read_dir(sandbox.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["s"], "something is left");
    assert_eq!(sandbox.ok("scan s rows --count"), "200000\n");
}

#[test]
fn locks_are_resolved_when_that_is_asked_for_and_counted() {
    let sandbox = Sandbox::new();
    leave_locks(&sandbox.path().join("s"), false);
    let shown = sandbox.ok("locks s --key-encoding hex");
    assert!(shown.contains("rows\t61\t") && shown.contains("rows\t62\t"), "{shown}");
    assert_eq!(sandbox.ok("locks s --resolve"), "2 row locks resolved: 0 rolled forward, 2 rolled back\n");
    assert_eq!(sandbox.ok("locks s --resolve"), "0 row locks resolved: 0 rolled forward, 0 rolled back\n");
    assert_eq!(sandbox.ok("locks s"), "");
    assert_eq!(sandbox.ok("get s rows b"), "old\n");
    leave_locks(&sandbox.path().join("u"), false);
    sandbox.interrupted("locks u --resolve").fails(130, "what is still locked is resolved when");
    assert_eq!(sandbox.json("verify u --json")[0]["sound"], true);
    leave_locks(&sandbox.path().join("t"), true);
    assert_eq!(sandbox.json("locks t --resolve --json")[0]["resolved"], 1);
}

#[test]
fn of_many_locks_the_table_shows_the_first_and_counts_the_others() {
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
        for held in 0..if n == 0 { 50 } else { 1 } {
            let row = RowKey::new(KeyspaceId(1), format!("row {n:03} {held:02}").as_bytes());
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
fn a_lost_manifest_is_damage_and_the_remedy_is_named() {
    let sandbox = Sandbox::with_shop();
    let manifest = fs::read_dir(sandbox.path().join("shop/tables")).unwrap().map(|entry| entry.unwrap());
    let manifest = manifest.filter(|entry| entry.file_name().to_string_lossy().starts_with("MANIFEST-"));
    manifest.for_each(|entry| fs::remove_file(entry.path()).unwrap());
    for line in ["get shop fruit apple", "put shop fruit apple green", "stats shop", "checkpoint shop copy"] {
        sandbox
            .run(line)
            .fails(6, "it does not open; go back to a checkpoint or a dump, or else: percolite repair shop NEW");
    }
    sandbox.run("repair shop rescued").fails(6, "what could be read is in rescued");
    assert_eq!(sandbox.ok("get rescued fruit apple"), "red\n");
}

#[test]
fn stats_counts_rows_and_bytes_of_each_keyspace() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("keyspaces shop --create empty");
    sandbox.ok("put --create shop gone row value");
    sandbox.ok("retention shop --set 7d");
    sandbox.ok("keyspaces shop --drop gone");
    for line in ["stats shop --json", "stats shop --exact --json"] {
        let figures = sandbox.json(line)[0]["keyspace_figures"].as_array().unwrap().clone();
        let of = |name: &str| figures.iter().find(|one| one["name"] == name).unwrap();
        assert_eq!((&of("fruit")["rows"], &of("fruit")["bytes"]), (&2.into(), &18.into()), "{line}");
        assert_eq!((&of("empty")["rows"], &of("empty")["exact"]), (&0.into(), &true.into()), "{line}");
        // The dropped one is kept as long as the history.
        assert!(figures.len() == 3 && figures[2]["name"].is_null() && figures[2]["rows"].is_null(), "{figures:?}");
    }
    let shown = sandbox.ok("stats shop");
    assert!(
        shown.contains("keys and values") && shown.contains("(1 dropped)") && !shown.contains("about 2"),
        "{shown}"
    );
}

#[test]
fn long_work_tells_a_terminal_its_rate_and_the_time_left_and_nobody_else() {
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
        let told = shown.split(['\r', '\n']).filter(|told| told.contains("s left"));
        assert!(told.clone().count() > 0, "{line}: {shown}");
        assert!(told.clone().all(|told| told.contains(unit) && told.contains(" of ")), "{line}: {shown}");
    }
    // There is a rate where nobody knows the end, too, and the number that it is of.
    std::fs::remove_file(sandbox.path().join("new/tables/CURRENT")).unwrap();
    let ran = sandbox.in_terminal("repair new newer", "");
    let (code, shown) = (ran.code, ran.out);
    let told = shown.split(['\r', '\n']).filter(|told| told.contains("/s, "));
    assert!(told.clone().any(|told| told.contains(" rows, 1 loss, ") && !told.contains(" 0 rows")), "{shown}");
    assert!(code == Some(6) && !told.clone().any(|told| told.contains("left")), "{code:?}: {shown}");
    // What `ok` takes for granted: without a terminal not a word on standard error.
    sandbox.ok("load s rows rows.tsv");
    sandbox.ok("delete s rows --prefix key");
}
