//! top, stats, locks and txn: a store that another process has open.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use percolite::{Builder, Durability, LockOptions, LockWaitPolicy, Store, StoreStatus, TxnOptions};

use crate::common::Sandbox;
use crate::orphans::leave_locks;

/// A builder of a store that publishes its status every millisecond.
fn publishing() -> Builder {
    Store::builder().status_file_interval(Duration::from_millis(1))
}

fn wait_for(failure: &str, is_reached: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_reached() {
        assert!(since.elapsed() < Duration::from_secs(60), "{failure}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn read_only_commands_show_the_published_status() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    leave_locks(&path, false);
    let store = publishing().background_resolve(false).slow_transaction_threshold(Duration::ZERO).open(&path).unwrap();
    let rows = store.keyspace("other rows").unwrap();
    store.transact_with(TxnOptions::with_label("quick"), |txn| txn.put(&rows, "k", "v")).unwrap();
    let txn = store.begin_with(TxnOptions::with_label("payroll")).unwrap();
    wait_for("the transactions are not published", || {
        StoreStatus::read_from(&path).unwrap().is_some_and(|status| {
            let quick = status.slow.iter().any(|slow| slow.label.as_deref() == Some("quick"));
            quick && status.active.iter().any(|active| active.label.as_deref() == Some("payroll"))
        })
    });
    let pid = std::process::id();
    let header = format!("process {pid} has had the store open for");
    let shown = sandbox.ok("stats s");
    for part in [&header, "status published", "payroll", "quick", "slowest", "rows/a", "orphan lock"] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let report = &sandbox.json("stats s --json")[0];
    assert_eq!((&report["pid"], &report["active"][0]["label"]), (&pid.into(), &"payroll".into()), "{report}");
    assert!(
        report["age_s"].as_f64().unwrap() < 60.0 && report["stats"]["commits_one_phase"].as_u64() > Some(0),
        "{report}"
    );
    let shown = sandbox.ok("locks s");
    assert!(shown.contains(&header) && shown.contains("rows/a") && shown.contains("rows/b"), "{shown}");
    let locks = sandbox.json("locks s --json");
    let fields = |lock: &serde_json::Value| lock.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let open = fields(&locks[0]);
    assert_eq!((locks.len(), &locks[0]["key"], &locks[0]["is_orphan"]), (2, &"a".into(), &true.into()));
    let shown = sandbox.ok(&format!("txn s {}", txn.start_ts()));
    assert!(shown.contains("payroll") && !shown.contains("quick"), "{shown}");
    let orphan = &sandbox.json(&format!("txn s {} --json", locks[0]["start_ts"].as_str().unwrap()))[0];
    assert_eq!((orphan["row_locks"].as_array().unwrap().len(), &orphan["active"]), (2, &serde_json::json!([])));
    sandbox.run("txn s 5.0").fails(3, "the transaction 5.0");
    sandbox.run("txn s 5.0 --owner 1 --keyspace rows --key a").fails(4, "this command needs the store closed");
    // While the store is open here, the program can neither read rows nor change anything.
    sandbox.run("get s rows a").fails(4, "open for writing");
    sandbox.run("locks s --resolve").fails(4, "open for writing");
    // The JSON of row locks has the same fields for an open and for a closed store.
    let closed = Sandbox::new();
    leave_locks(&closed.path().join("s"), false);
    assert_eq!(fields(&closed.json("locks s --json")[0]), open);
}

/// The output of `locks` for an open store, in each form that counts unlisted requests.
fn locks_shown(sandbox: &Sandbox) -> [String; 4] {
    ["locks s", "locks s --tree", "locks s --json", "locks s --tree --json"].map(|line| sandbox.ok(line))
}

/// The marker has another name until a store is created.
#[test]
fn a_store_that_is_being_created_names_its_creator() {
    let sandbox = Sandbox::new();
    let mut refused = 0;
    for number in 0..6 {
        let line = format!("put --create new{number} rows k v");
        let started: Vec<_> = (0..8).map(|_| sandbox.command(&line).spawn().unwrap()).collect();
        let ids: Vec<u32> = started.iter().map(Child::id).collect();
        for child in started {
            let ended = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&ended.stderr);
            match ended.status.code() {
                Some(0) => {}
                Some(4) => {
                    refused += 1;
                    let named = ids.iter().any(|id| text.contains(&format!("process {id} (percolite)")));
                    // The holder may have ended before it is looked for.
                    assert!(named || text.contains("it has closed the store meanwhile: try again"), "{text}");
                }
                code => panic!("{code:?}: {text}"),
            }
        }
        sandbox.ok(&format!("get new{number} rows k"));
    }
    assert!(refused > 0, "no process came too late");
}

#[test]
fn a_store_whose_marker_was_replaced_is_open_elsewhere() {
    let sandbox = Sandbox::with_shop();
    let store = Store::open(sandbox.path().join("shop")).unwrap();
    sandbox.in_shell("cp shop/PERCOLITE copy; mv copy shop/PERCOLITE").succeeds();
    let expected = format!("; process {} (", std::process::id());
    sandbox.run("put shop fruit a b").fails(4, &expected);
    drop(store);
    sandbox.ok("put shop fruit a b");
}

#[test]
fn expired_leases_and_conversions_do_not_count_as_unlisted() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store = publishing().open(&path).unwrap();
    let short = LockOptions::exclusive().lease(Duration::from_millis(100)).auto_renew(false);
    let expired = store.lock_with("expired", short).unwrap();
    let [mut shared, other] = [(); 2].map(|()| store.lock_with("converted", LockOptions::shared()).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| shared.upgrade(LockWaitPolicy::Timeout(Duration::from_secs(60))));
        wait_for("the conversion is not published", || {
            let status = StoreStatus::read_from(&path).unwrap();
            let counts = status.map(|status| (status.held_locks.len(), status.lock_waits.len()));
            counts == Some((1, 1)) && !expired.is_held()
        });
        for shown in locks_shown(&sandbox) {
            assert!(!shown.contains("\nand ") && !shown.contains("\"not_listed\""), "{shown}");
        }
        drop(other);
    });
}

#[test]
fn locks_beyond_the_first_hundred_are_counted() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store = publishing().open(&path).unwrap();
    let held: Vec<_> = (0..103).map(|number| store.lock(format!("name {number}")).unwrap()).collect();
    wait_for("not all locks are published", || {
        StoreStatus::read_from(&path).unwrap().is_some_and(|status| status.held_locks_total == 103)
    });
    let [table, tree, json, json_tree] = locks_shown(&sandbox);
    assert!(table.contains("\nand 3 more\t") && tree.ends_with("\nand 3 more requests not listed\n"), "{table}{tree}");
    for lines in [json, json_tree] {
        let last = lines.lines().last().unwrap();
        assert_eq!(last, r#"{"held":3,"kind":"not_listed","waiting":0}"#);
        assert_eq!(lines.lines().count(), 101);
    }
    drop(held);
}

#[test]
fn stats_shows_memory_retention_and_large_transactions() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store =
        publishing().history_retention(Duration::from_secs(3600)).large_transaction_bytes(1 << 16).open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut txn = store.begin_with(TxnOptions::with_label("large")).unwrap();
    (0..2000_u32).for_each(|n| txn.put(&rows, n.to_be_bytes(), [0; 100]).unwrap());
    let has_all = |status: StoreStatus| {
        status.active.first().is_some_and(|active| active.buffered_rows + active.locked_rows == 2000)
    };
    wait_for("not all rows are published", || StoreStatus::read_from(&path).unwrap().is_some_and(has_all));
    let active = &sandbox.json("stats s --json")[0]["active"][0];
    assert_eq!(active["buffered_rows"].as_u64().unwrap() + active["locked_rows"].as_u64().unwrap(), 2000, "{active}");
    let shown = sandbox.ok("stats s");
    for part in ["retention 1h; 0 replaced versions", "128.00 MiB, memtables ", " locked"] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let top = &sandbox.json("top s --json --seconds 3")[0];
    assert!(top["engine"]["memtable_bytes"].as_u64() > Some(0), "{top}");
}

#[test]
fn a_busy_store_without_status_names_status_file_interval() {
    let sandbox = Sandbox::with_shop();
    sandbox.run("top shop").fails(3, "shop is not open for writing in any process");
    let store = Store::open(sandbox.path().join("shop")).unwrap();
    for line in ["top shop", "stats shop", "locks shop", "txn shop 5.0"] {
        sandbox.run(line).fails(4, "Builder::status_file_interval(Duration::from_secs(1))");
    }
    drop(store);
    sandbox.run("top nothing").fails(5, "there is no directory nothing");
    sandbox.run("top shop --accounts 10").fails(2, "unexpected argument");
    let ran = sandbox.run("top").fails(2, "percolite top STORE; to try it: percolite demo --dir bank --seconds 60");
    assert!(ran.out.is_empty(), "{}", ran.out);
}

/// As `lock` has it: one that has the store open for a moment publishes no status.
#[test]
fn a_store_that_is_open_for_a_moment_is_waited_for() {
    let sandbox = Sandbox::with_shop();
    for line in ["stats shop", "locks shop", "locks shop --tree", "txn shop 5.0", "top shop"] {
        let store = Store::open(sandbox.path().join("shop")).unwrap();
        let ran = std::thread::scope(|scope| {
            let ran = scope.spawn(|| sandbox.run(line));
            std::thread::sleep(Duration::from_millis(300));
            drop(store);
            ran.join().unwrap()
        });
        let wanted = if line.starts_with("txn") || line.starts_with("top") { 3 } else { 0 };
        assert_eq!(ran.code, Some(wanted), "{line}: {}", ran.err);
    }
}

/// A command that is still running, and its output.
struct RunningCommand {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl RunningCommand {
    fn of(sandbox: &Sandbox, line: &str) -> Self {
        let mut child = sandbox.command(line).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Reads the output up to a line that matches.
    fn wait_for_line(&mut self, matches: impl Fn(&str) -> bool) {
        let mut line = String::new();
        while !matches(&line) {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the command ended without the line");
        }
    }

    /// Waits for the end of the command, and returns the rest of its output.
    fn ends(mut self) -> String {
        let mut last = String::new();
        self.output.read_to_string(&mut last).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut last).unwrap();
        assert!(self.child.wait().unwrap().success(), "{last}");
        last
    }
}

#[test]
fn top_follows_another_process_until_it_closes_the_store() {
    let sandbox = Sandbox::with_shop();
    let path = sandbox.path().join("shop");
    let store = publishing().open(&path).unwrap();
    let fruit = store.keyspace("fruit").unwrap();
    wait_for("no status is published", || StoreStatus::read_from(&path).unwrap().is_some());
    let pid = std::process::id();
    let (mut table, mut json) =
        (RunningCommand::of(&sandbox, "top shop"), RunningCommand::of(&sandbox, "top shop --json"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store.transact(|txn| txn.put(&fruit, "kiwi", "green")).unwrap();
            }
        });
        table.wait_for_line(|line| line.contains(&format!("process {pid} has had the store open")));
        table.wait_for_line(|line| line.contains("commits/s"));
        json.wait_for_line(|line| {
            let top: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            top["commits_per_second"].as_f64() > Some(0.0) && top["pid"] == pid
        });
        stop.store(true, Ordering::Relaxed);
    });
    store.close().unwrap();
    let closed = format!("process {pid} has closed the store\n");
    assert!(table.ends().ends_with(&closed) && json.ends().ends_with(&closed));
}

#[test]
fn commands_that_write_publish_their_status() {
    let sandbox = Sandbox::with_shop();
    let path = sandbox.path().join("shop");
    let mut shell = sandbox.command("shell shop").stdin(Stdio::piped()).spawn().unwrap();
    wait_for("the shell publishes no status", || {
        StoreStatus::read_from(&path).unwrap().is_some_and(|status| status.pid == shell.id())
    });
    assert_eq!(sandbox.json("stats shop --json")[0]["pid"], shell.id());
    let mut top = RunningCommand::of(&sandbox, "top shop");
    top.wait_for_line(|line| line.contains("has had the store open"));
    shell.kill().unwrap();
    shell.wait().unwrap();
    top.wait_for_line(|line| line.contains("has ended without closing the store"));
    top.ends();
    // The file that the killed process left does no harm.
    assert!(path.join("STATUS").exists());
    assert_eq!(sandbox.ok("get shop fruit apple"), "red\n");
    sandbox.ok("put shop fruit kiwi green");
    assert!(!path.join("STATUS").exists());
}

#[test]
fn write_stalls_are_in_stats_and_top() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store = publishing().durability(Durability::Buffered).write_buffer_bytes(1 << 20).open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    wait_for("no status is published", || StoreStatus::read_from(&path).unwrap().is_some());
    let shown = sandbox.ok("stats s");
    let stalls = shown.lines().find(|line| line.contains("write stalls")).unwrap();
    assert!(stalls.ends_with("\t0") && !stalls.contains(" in total"), "{shown}");
    assert_eq!(sandbox.json("stats s --json")[0]["stats"]["write_stalls"], 0);
    let (mut table, mut json) = (RunningCommand::of(&sandbox, "top s"), RunningCommand::of(&sandbox, "top s --json"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each round writes 32 MiB, far more than the memtables hold.
            let value = vec![b'x'; 512 << 10];
            for row in (0..64_u8).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                store.transact(|txn| txn.put(&rows, [row], &value)).unwrap();
            }
        });
        table.wait_for_line(|line| line.starts_with("write stalls: "));
        json.wait_for_line(|line| {
            let top: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            top["write_stalls_per_second"].as_f64() > Some(0.0) && top["write_stall_ratio"].as_f64() > Some(0.0)
        });
        wait_for("stats shows no write stall", || sandbox.ok("stats s").contains(" in total"));
        stop.store(true, Ordering::Relaxed);
    });
    let stats = &sandbox.json("stats s --json")[0]["stats"];
    assert!(stats["write_stalls"].as_u64() > Some(0) && stats["write_stall_time_s"].as_f64() > Some(0.0), "{stats}");
    store.close().unwrap();
    table.ends();
    json.ends();
}

#[test]
fn top_watches_the_demo() {
    let sandbox = Sandbox::new();
    let mut demo = sandbox.command("demo --dir bank --seconds 60 --source sample").spawn().unwrap();
    let bank = sandbox.path().join("bank");
    let transfers =
        |status: StoreStatus| status.active.iter().any(|active| active.label.as_deref() == Some("transfer"));
    wait_for("no transfer is published", || StoreStatus::read_from(&bank).ok().flatten().is_some_and(transfers));
    let top = &sandbox.json("top bank --seconds 2 --json")[0];
    assert!(top["commits_per_second"].as_f64() > Some(0.0), "{top}");
    assert!(top["latencies"]["commit_durable"]["count"].as_u64() > Some(0), "{top}");
    demo.kill().unwrap();
    demo.wait().unwrap();
}
