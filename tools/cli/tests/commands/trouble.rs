//! What the commands show while something is wrong: a process that is stopped, a store that is open
//! elsewhere, a call that fails again and again, what an old snapshot keeps, orphan locks.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use percolite::{Builder, RetryPolicy, Store, StoreStatus, TxnOptions};

use crate::common::{Ran, Sandbox};
use crate::orphans::leave_locks;

fn publishing() -> Builder {
    Store::builder().status_file_interval(Duration::from_millis(1))
}

fn wait_for(failure: &str, mut is_reached: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_reached() {
        assert!(since.elapsed() < Duration::from_secs(60), "{failure}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn a_stopped_process_is_said_at_once_and_the_advice_continues_it() {
    let sandbox = Sandbox::with_shop();
    let path = sandbox.path().join("shop");
    let mut shell = sandbox.command("shell shop").stdin(Stdio::piped()).spawn().unwrap();
    let pid = shell.id();
    wait_for("the shell publishes no status", || {
        StoreStatus::read_from(&path).unwrap().is_some_and(|status| status.pid == pid)
    });
    let runs = sandbox.run("stats shop");
    assert_eq!((runs.code, runs.err.as_str()), (Some(0), ""));
    signal("-STOP", pid);
    wait_for("the shell does not stop", || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T "));
    let advice = format!("kill -CONT {pid}");
    for line in ["stats shop", "stats shop --json", "locks shop", "locks shop --json", "top shop --seconds 1"] {
        let ran = sandbox.run(line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.err);
        assert!(ran.err.starts_with(&format!("warning: process {pid} is stopped")), "{line}: {}", ran.err);
        assert!(ran.err.contains(&advice), "{line}: {}", ran.err);
    }
    for line in ["put shop fruit a b", "get shop fruit apple", "lock run shop job --wait 0s -- true"] {
        let err =
            sandbox.run(line).fails(4, &format!("process {pid} (percolite), which is stopped, has it open; ")).err;
        assert!(err.ends_with(&format!("; it hangs until it continues: {advice}\n")), "{line}: {err}");
    }
    // Killed or continued: the store can be used again.
    sandbox.in_shell(&advice).succeeds();
    drop(shell.stdin.take());
    assert!(shell.wait().unwrap().success());
    sandbox.ok("put shop fruit a b");
}

#[test]
fn open_elsewhere_names_the_process_and_what_can_be_asked() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop shop.dump");
    let path = sandbox.path().join("shop");
    let pid = std::process::id();
    let lines = [
        "get shop fruit apple",
        "scan shop fruit",
        "put shop fruit a b",
        "verify shop",
        "repair shop new",
        "restore shop shop.dump",
        "checkpoint shop new",
        "stats shop",
        "top shop",
        "lock acquire shop name --ttl 1s --wait 0s",
        "accept-data-loss shop 0123456789abcdef",
        "demo --dir shop --source sample",
    ];
    let store = Store::open(&path).unwrap();
    for line in lines {
        let err = sandbox.run(line).fails(4, &format!("; process {pid} (")).err;
        assert!(err.contains(") has it open") && !err.contains("percolite top"), "{line}: {err}");
    }
    drop(store);
    let store = publishing().open(&path).unwrap();
    wait_for("no status is published", || StoreStatus::read_from(&path).unwrap().is_some());
    let err = sandbox.run("get shop fruit apple").fails(4, "; percolite top shop shows what it does").err;
    assert_eq!(err.matches("percolite top").count(), 1, "{err}");
    drop(store);
    let store = Store::builder().read_only(true).open(&path).unwrap();
    sandbox.run("put shop fruit a b").fails(4, "has it open read-only");
    drop(store);
    sandbox.ok("put shop fruit a b");
}

/// In another namespace of process ids the lock is seen, and its holder is not.
#[test]
fn a_process_that_cannot_be_seen_is_not_named() {
    let sandbox = Sandbox::with_shop();
    let store = Store::open(sandbox.path().join("shop")).unwrap();
    let inside = |line: &str| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]).args(line.split(' ')).current_dir(sandbox.path());
        command.output()
    };
    if !inside("true").is_ok_and(|ran| ran.status.success()) {
        eprintln!("SKIPPED: this machine does not allow namespaces");
        return;
    }
    let line = format!("{} get shop fruit apple", env!("CARGO_BIN_EXE_percolite"));
    let ran = Ran::of(&line, inside(&line).unwrap());
    ran.fails(4, "; which process had it open cannot be seen from here");
    drop(store);
}

/// As after the fork of a process that had the store open, and has been killed.
#[test]
fn a_process_that_has_inherited_the_lock_is_named() {
    let sandbox = Sandbox::with_shop();
    let script = "exec 9<>shop/PERCOLITE; flock -n 9 || exit 1; sleep 60 <&- >&- 2>&- & echo $!";
    let child: u32 = sandbox.in_shell(script).succeeds().trim_end().parse().unwrap();
    let expected = format!("; process {child} (sleep), which has inherited the lock of process ");
    sandbox.run("put shop fruit a b").fails(4, &expected);
    signal("-KILL", child);
    wait_for("the lock is not released", || sandbox.run("put shop fruit a b").code == Some(0));
}

#[test]
fn a_call_that_fails_again_and_again_is_shown_while_it_does() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store = publishing().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let stop = AtomicBool::new(false);
    /// Ends the call if an assertion fails, too.
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let policy = RetryPolicy::default().max_attempts(1_000_000).timeout(Duration::from_secs(120));
            let options = TxnOptions::with_label("victim").retry_policy(policy);
            let done = store.transact_with(options, |txn| {
                txn.put(&rows, "hot", "victim")?;
                if !stop.load(Ordering::Relaxed) {
                    store.transact_with(TxnOptions::with_label("winner"), |txn| txn.put(&rows, "hot", "winner"))?;
                }
                Ok::<_, percolite::Error>(())
            });
            done.unwrap();
        });
        let stop = StopOnDrop(&stop);
        wait_for("the call is not in the list", || {
            store.retrying_calls().first().is_some_and(|call| call.failed_attempts > 3)
        });
        wait_for("no status is published", || StoreStatus::read_from(&path).unwrap().is_some());
        let mut shown = serde_json::Value::Null;
        wait_for("top does not show the call", || {
            let top = sandbox.ok("top s --json --seconds 1");
            shown = top.lines().last().map(|line| serde_json::from_str(line).unwrap()).unwrap_or_default();
            shown["retrying"][0]["failed_attempts"].as_u64() > Some(3)
        });
        let call = &shown["retrying"][0];
        assert_eq!((&shown["retrying_total"], &call["label"]), (&1.into(), &"victim".into()), "{shown}");
        // The age is that of the call. Its attempts are much younger.
        let attempts = shown["active"].as_array().unwrap();
        let age = call["age_s"].as_f64().unwrap();
        assert!(age > 0.0 && age <= began.elapsed().as_secs_f64(), "{call}");
        assert!(attempts.iter().all(|attempt| attempt["age_s"].as_f64().unwrap() < age), "{shown}");
        let conflict = &call["last_conflict"];
        assert_eq!((&conflict["key"], &conflict["keyspace"]), (&"hot".into(), &"rows".into()), "{call}");
        assert_eq!(conflict["label"], "winner", "{call}");
        let shown = sandbox.ok("stats s");
        assert!(shown.contains("retrying, oldest first\tage of the call\tfailed attempts\tlast conflict"), "{shown}");
        assert!(shown.contains("rows/hot, winner"), "{shown}");
        drop(stop);
    });
    assert_eq!(store.retrying_calls(), []);
    let status = store.status();
    assert_eq!((status.retrying_total, status.retrying.len()), (0, 0));
}

#[test]
fn what_was_not_measured_is_a_dash() {
    let sandbox = Sandbox::with_shop();
    let path = sandbox.path().join("shop");
    let store = publishing().open(&path).unwrap();
    wait_for("no status is published", || StoreStatus::read_from(&path).unwrap().is_some());
    let shown = sandbox.ok("stats shop");
    let of = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert_eq!(of("transact, total"), "transact, total\t0\t-\t-\t-\t-\t-");
    assert_eq!(of("WAL syncs"), "WAL syncs\t0, - commits per sync");
    let mut line = serde_json::Value::Null;
    wait_for("top shows nothing", || {
        let top = sandbox.ok("top shop --json --seconds 1");
        line = top.lines().next().map(|line| serde_json::from_str(line).unwrap()).unwrap_or_default();
        !line.is_null()
    });
    assert_eq!(line["latencies"]["transact"]["p99_s"], serde_json::Value::Null, "{line}");
    assert_eq!(line["latencies"]["transact"]["count"], 0, "{line}");
    assert_eq!(line["commits_per_sync"], serde_json::Value::Null, "{line}");
    drop(store);
}

#[test]
fn an_old_snapshot_shows_what_it_keeps_and_the_disk_its_free_space() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store = publishing().write_buffer_bytes(1 << 20).open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "k", "v")).unwrap();
    let snapshot = store.snapshot().unwrap().with_label("monthly report");
    for n in 0..300_u32 {
        store.transact(|txn| txn.put(&rows, "k", n.to_string())).unwrap();
    }
    wait_for("no status is published", || StoreStatus::read_from(&path).unwrap().is_some());
    let shown = || sandbox.json("stats s --json").remove(0);
    wait_for("the batches are not counted", || {
        shown()["engine"]["batches_since_oldest_snapshot"].as_u64() >= Some(300)
    });
    let text = sandbox.ok("stats s");
    let kept = text.lines().find(|line| line.starts_with("oldest snapshot keeps\twhat 3")).unwrap_or_default();
    assert!(kept.contains(" batches have replaced since (snapshot \"monthly report\" of "), "{text}");
    drop(snapshot);
    wait_for("the snapshot is still counted", || {
        shown()["engine"]["batches_since_oldest_snapshot"].as_u64() < Some(100)
    });
    let engine = &shown()["engine"];
    let (free, total) = (engine["disk_free_bytes"].as_u64().unwrap(), engine["disk_total_bytes"].as_u64().unwrap());
    assert!(free > 0 && free <= total, "{engine}");
    assert!(sandbox.ok("stats s").contains(" free\n"));
}

#[test]
fn orphan_locks_are_counted_before_they_are_resolved() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    leave_locks(&path, false);
    let store = publishing().background_resolve(false).open(&path).unwrap();
    wait_for("no status is published", || StoreStatus::read_from(&path).unwrap().is_some());
    assert!(sandbox.ok("stats s").starts_with("process"));
    assert!(sandbox.ok("stats s").contains("orphan locks: not counted yet"));
    assert_eq!(store.resolve_orphan_locks().unwrap(), 2);
    let stats = store.stats();
    assert_eq!((stats.orphan_locks_found, stats.orphan_locks_resolved, stats.orphan_locks_left()), (2, 2, 0));
    wait_for("the end is not published", || !sandbox.ok("stats s").contains("\norphan locks: "));
}
