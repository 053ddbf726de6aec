//! locks, stats and top: named locks of a closed store, and of one that a process has open.

use std::time::Duration;

use percolite::{Builder, LockOptions, Store, StoreStatus};

use crate::common::Sandbox;
use crate::lock::wait_for;
use crate::orphans::leave_locks;

#[test]
fn leases_of_a_closed_store_are_shown_after_row_locks() {
    let sandbox = Sandbox::with_shop();
    leave_locks(&sandbox.path().join("shop"), false);
    let token = sandbox.ok("lock acquire shop nightly --ttl 1h --reason report");
    let token = token.trim_end();
    let shown = sandbox.json("locks shop --json");
    let kinds: Vec<&str> = shown.iter().map(|lock| lock["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.last(), Some(&"named"));
    let lock = shown.last().unwrap();
    assert_eq!(
        (&lock["target"], &lock["token"], &lock["reason"]),
        (&"nightly".into(), &token.into(), &"report".into())
    );
    assert_eq!((&lock["mode"], &lock["state"]), (&"exclusive".into(), &"held".into()));
    assert!(lock["lease_remaining_s"].as_f64().is_some_and(|left| left > 3000.0 && left <= 3600.0), "{lock}");
    let plain = sandbox.ok("locks shop");
    let columns: Vec<&str> = plain.lines().last().unwrap().split('\t').collect();
    assert_eq!(
        (columns.len(), &columns[..3], columns[4], columns[7]),
        (8, &["", "nightly", token][..], "exclusive", "report")
    );
    let tree = sandbox.ok("locks shop --tree");
    assert!(tree.starts_with("\"nightly\"\n  exclusive, held by \"percolite lock acquire\""), "{tree}");
    let shown = sandbox.in_terminal("locks shop", "").out;
    assert!(shown.contains("nightly") && shown.contains("lease left"), "{shown}");
    assert_eq!(sandbox.ok("locks shop --resolve --json").lines().count(), 1);
}

#[test]
fn holders_and_waiters_are_in_tree_stats_and_top() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("shop");
    let builder: Builder = Store::builder().status_file_interval(Duration::from_millis(1)).application_name("worker");
    let store = builder.open(&path).unwrap();
    let guard = store.lock("nightly").unwrap();
    std::thread::scope(|scope| {
        let wait = |options: LockOptions| scope.spawn(|| drop(store.lock_with("nightly", options).unwrap()));
        let listed = |count: usize| {
            wait_for("the wait is not published", || {
                StoreStatus::read_from(&path).unwrap().is_some_and(|status| status.lock_waits.len() == count)
            });
        };
        wait(LockOptions::exclusive().reason("first"));
        listed(1);
        wait(LockOptions::shared().reason("second"));
        listed(2);
        let tree = sandbox.ok("locks shop --tree");
        let lines: Vec<&str> = tree.lines().skip_while(|line| *line != "\"nightly\"").collect();
        assert_eq!(lines.len(), 4, "{tree}");
        let held = format!("  exclusive, held by \"worker\", process {}", std::process::id());
        assert!(lines[1].starts_with(&held) && lines[1].contains(&guard.token().to_string()), "{tree}");
        assert!(lines[2].starts_with("    exclusive, requested by") && lines[2].contains("(\"first\")"), "{tree}");
        assert!(lines[3].starts_with("      shared, requested by") && lines[3].contains("(\"second\")"), "{tree}");
        let root = &sandbox.json("locks shop --tree --json")[0];
        assert_eq!((&root["state"], &root["waiters"][0]["reason"]), (&"held".into(), &"first".into()));
        assert_eq!(root["waiters"][0]["waiters"][0]["reason"], "second", "{root}");
        let lines = sandbox.json("locks shop --json");
        assert_eq!((lines.len(), &lines[1]["blocked_by"][0]), (3, &lines[0]["id"]), "{lines:?}");
        let stats = sandbox.ok("stats shop");
        assert!(stats.contains("named locks\t1 acquired, 2 waits"), "{stats}");
        let top = &sandbox.json("top shop --json --seconds 2")[0];
        assert_eq!((&top["held_locks_total"], &top["lock_waits_total"]), (&1.into(), &2.into()), "{top}");
        assert_eq!(top["longest_lock_waits"][0]["reason"], "first", "{top}");
        assert!(top["longest_lock_wait_s"].as_f64() > Some(0.0), "{top}");
        let shown = sandbox.ok("top shop --seconds 2");
        assert!(shown.contains("requested lock") && shown.contains("nightly"), "{shown}");
        drop(guard);
    });
    store.close().unwrap();
}
