//! top, stats, locks and txn: a store that another process has open.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use percolite::{Builder, Durability, LockOptions, LockWaitPolicy, Store, StoreStatus, TxnOptions};

use crate::common::Sandbox;
use crate::orphans::leave_locks;

fn publishing() -> Builder {
    Store::builder().status_file_interval(Duration::from_millis(1))
}

fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_commands_that_look_show_what_the_process_tells_that_has_the_store_open() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    leave_locks(&path, false);
    let store = publishing().background_resolve(false).slow_transaction_threshold(Duration::ZERO).open(&path).unwrap();
    let rows = store.keyspace("other rows").unwrap();
    store.transact_with(TxnOptions::with_label("quick"), |txn| txn.put(&rows, "k", "v")).unwrap();
    let txn = store.begin_with(TxnOptions::with_label("payroll")).unwrap();
    wait_for("nothing was told", || {
        StoreStatus::read_from(&path).unwrap().is_some_and(|told| {
            let quick = told.slow.iter().any(|slow| slow.label.as_deref() == Some("quick"));
            quick && told.active.iter().any(|live| live.label.as_deref() == Some("payroll"))
        })
    });
    let pid = std::process::id();
    let whose = format!("process {pid} has had it open for");
    let shown = sandbox.ok("stats s");
    for part in [&whose, "this is what it said", "payroll", "quick", "slowest of all", "rows/a", "its owner is gone"] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let told = &sandbox.json("stats s --json")[0];
    assert_eq!((&told["pid"], &told["live"][0]["label"]), (&pid.into(), &"payroll".into()), "{told}");
    assert!(told["age_s"].as_f64().unwrap() < 60.0 && told["stats"]["commits_one_phase"].as_u64() > Some(0), "{told}");
    let shown = sandbox.ok("locks s");
    assert!(shown.contains(&whose) && shown.contains("rows/a") && shown.contains("rows/b"), "{shown}");
    let locks = sandbox.json("locks s --json");
    let names = |lock: &serde_json::Value| lock.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let open = names(&locks[0]);
    assert_eq!((locks.len(), &locks[0]["key"], &locks[0]["orphan"]), (2, &"a".into(), &true.into()));
    let shown = sandbox.ok(&format!("txn s {}", txn.start_ts()));
    assert!(shown.contains("payroll") && !shown.contains("quick"), "{shown}");
    let held = &sandbox.json(&format!("txn s {} --json", locks[0]["start_ts"].as_str().unwrap()))[0];
    assert_eq!((held["row_locks"].as_array().unwrap().len(), &held["live"]), (2, &serde_json::json!([])));
    sandbox.run("txn s 5.0").fails(3, "said nothing of a transaction 5.0");
    sandbox.run("txn s 5.0 --owner 1 --keyspace rows --key a").fails(4, "by the process that has the store open");
    // Changing is another matter, and so is looking at rows.
    sandbox.run("get s rows a").fails(4, "open for writing");
    sandbox.run("locks s --resolve").fails(4, "open for writing");
    // A program that reads JSON need not know whether the store is open.
    let closed = Sandbox::new();
    leave_locks(&closed.path().join("s"), false);
    assert_eq!(names(&closed.json("locks s --json")[0]), open);
}

/// `locks` of an open store in each way that says how many requests are not listed.
fn locks_shown(sandbox: &Sandbox) -> [String; 4] {
    ["locks s", "locks s --tree", "locks s --json", "locks s --tree --json"].map(|line| sandbox.ok(line))
}

#[test]
fn leases_that_are_over_and_conversions_are_no_requests_that_are_not_listed() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store = publishing().open(&path).unwrap();
    let short = LockOptions::exclusive().lease(Duration::from_millis(100)).once();
    let over = store.lock_with("over", short).unwrap();
    let [mut shared, other] = [(); 2].map(|()| store.lock_with("converted", LockOptions::shared()).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| shared.upgrade(LockWaitPolicy::Timeout(Duration::from_secs(60))));
        wait_for("no conversion was told", || {
            let told = StoreStatus::read_from(&path).unwrap();
            told.is_some_and(|told| (told.held_locks.len(), told.lock_waits.len()) == (1, 1) && !over.is_held())
        });
        for shown in locks_shown(&sandbox) {
            assert!(!shown.contains("\nand ") && !shown.contains("\"not_listed\""), "{shown}");
        }
        drop(other);
    });
}

#[test]
fn requests_beyond_the_first_hundred_are_counted_in_the_table_the_tree_and_json() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store = publishing().open(&path).unwrap();
    let held: Vec<_> = (0..103).map(|number| store.lock(format!("name {number}")).unwrap()).collect();
    wait_for("not all was told", || {
        StoreStatus::read_from(&path).unwrap().is_some_and(|told| told.held_locks_total == 103)
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
fn memory_history_and_what_a_transaction_has_streamed_are_told() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store =
        publishing().history_retention(Duration::from_secs(3600)).large_transaction_bytes(1 << 16).open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut txn = store.begin_with(TxnOptions::with_label("large")).unwrap();
    (0..2000_u32).for_each(|n| txn.put(&rows, n.to_be_bytes(), [0; 100]).unwrap());
    let all = |told: StoreStatus| told.active.first().is_some_and(|live| live.buffered_rows + live.locked_rows == 2000);
    wait_for("not all was told", || StoreStatus::read_from(&path).unwrap().is_some_and(all));
    let live = &sandbox.json("stats s --json")[0]["live"][0];
    assert_eq!(live["rows"].as_u64().unwrap() + live["streamed"].as_u64().unwrap(), 2000, "{live}");
    let shown = sandbox.ok("stats s");
    for part in ["kept for 1h; 0 replaced versions", "128.00 MiB, write buffers ", " streamed"] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let second = &sandbox.json("top s --json --seconds 3")[0];
    assert!(second["engine"]["write_buffer_bytes"].as_u64() > Some(0), "{second}");
}

#[test]
fn a_process_that_tells_nothing_is_named_as_that_and_the_remedy_too() {
    let sandbox = Sandbox::with_shop();
    sandbox.run("top shop").fails(3, "no process has shop open for writing");
    let store = Store::open(sandbox.path().join("shop")).unwrap();
    for line in ["top shop", "stats shop", "locks shop", "txn shop 5.0"] {
        sandbox.run(line).fails(4, "Builder::status_file_interval(Duration::from_secs(1))");
    }
    drop(store);
    sandbox.run("top nothing").fails(5, "there is no directory nothing");
    sandbox.run("top shop --accounts 10").fails(2, "unexpected argument");
    let ran =
        sandbox.run("top").fails(2, "percolite top STORE; for one to watch: percolite demo --dir bank --seconds 60");
    assert!(ran.out.is_empty(), "{}", ran.out);
}

/// A command that goes on, and what it says, line by line.
struct RunningCommand {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl RunningCommand {
    fn of(sandbox: &Sandbox, line: &str) -> Self {
        let mut child = sandbox.command(line).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Waits for a line of which this holds.
    fn says(&mut self, holds: impl Fn(&str) -> bool) {
        let mut line = String::new();
        while !holds(&line) {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it has ended without saying it");
        }
    }

    /// Waits for its end; the answer is what it said last.
    fn ends(mut self) -> String {
        let mut last = String::new();
        self.said.read_to_string(&mut last).unwrap();
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
    wait_for("nothing was told", || StoreStatus::read_from(&path).unwrap().is_some());
    let pid = std::process::id();
    let (mut table, mut json) =
        (RunningCommand::of(&sandbox, "top shop"), RunningCommand::of(&sandbox, "top shop --json"));
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                store.transact(|txn| txn.put(&fruit, "kiwi", "green")).unwrap();
            }
        });
        table.says(|line| line.contains(&format!("process {pid} has had it open")));
        table.says(|line| line.contains("commits/s"));
        json.says(|line| {
            let second: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            second["commits_per_second"].as_f64() > Some(0.0) && second["pid"] == pid
        });
        enough.store(true, Ordering::Relaxed);
    });
    store.close().unwrap();
    let closed = format!("process {pid} has closed it\n");
    assert!(table.ends().ends_with(&closed) && json.ends().ends_with(&closed));
}

#[test]
fn a_writer_of_the_command_line_is_watched_and_one_that_was_killed_is_missed() {
    let sandbox = Sandbox::with_shop();
    let path = sandbox.path().join("shop");
    let mut shell = sandbox.command("shell shop").stdin(Stdio::piped()).spawn().unwrap();
    wait_for("the shell told nothing", || {
        StoreStatus::read_from(&path).unwrap().is_some_and(|told| told.pid == shell.id())
    });
    assert_eq!(sandbox.json("stats shop --json")[0]["pid"], shell.id());
    let mut top = RunningCommand::of(&sandbox, "top shop");
    top.says(|line| line.contains("has had it open"));
    shell.kill().unwrap();
    shell.wait().unwrap();
    top.says(|line| line.contains("has ended without closing it"));
    top.ends();
    // What it has left is in nobody's way.
    assert!(path.join("STATUS").exists());
    assert_eq!(sandbox.ok("get shop fruit apple"), "red\n");
    sandbox.ok("put shop fruit kiwi green");
    assert!(!path.join("STATUS").exists());
}

#[test]
fn stalled_writes_are_shown_by_stats_and_top() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("s");
    let store = publishing().durability(Durability::Buffered).write_buffer_bytes(1 << 20).open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    wait_for("nothing was told", || StoreStatus::read_from(&path).unwrap().is_some());
    let shown = sandbox.ok("stats s");
    let refused = shown.lines().find(|line| line.contains("stalled writes")).unwrap();
    assert!(refused.ends_with("\t0") && !refused.contains("waited"), "{shown}");
    assert_eq!(sandbox.json("stats s --json")[0]["stats"]["write_stalls"], 0);
    let (mut table, mut json) = (RunningCommand::of(&sandbox, "top s"), RunningCommand::of(&sandbox, "top s --json"));
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Far more than its write buffers hold, each time.
            let value = vec![b'x'; 512 << 10];
            for row in (0..64_u8).cycle() {
                if enough.load(Ordering::Relaxed) {
                    break;
                }
                store.transact(|txn| txn.put(&rows, [row], &value)).unwrap();
            }
        });
        table.says(|line| line.starts_with("the tables have fallen behind: "));
        json.says(|line| {
            let second: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            second["write_stalls_per_second"].as_f64() > Some(0.0) && second["write_stalled_share"].as_f64() > Some(0.0)
        });
        wait_for("stats does not tell", || sandbox.ok("stats s").contains(", which waited for "));
        enough.store(true, Ordering::Relaxed);
    });
    let stats = &sandbox.json("stats s --json")[0]["stats"];
    assert!(stats["write_stalls"].as_u64() > Some(0) && stats["write_stalled_s"].as_f64() > Some(0.0), "{stats}");
    store.close().unwrap();
    table.ends();
    json.ends();
}

#[test]
fn the_demo_can_be_watched_with_rates_latencies_and_who_was_slow() {
    let sandbox = Sandbox::new();
    let mut demo = sandbox.command("demo --dir bank --seconds 60 --source sample").spawn().unwrap();
    let bank = sandbox.path().join("bank");
    let transfers = |told: StoreStatus| told.active.iter().any(|live| live.label.as_deref() == Some("transfer"));
    wait_for("no transfers", || StoreStatus::read_from(&bank).ok().flatten().is_some_and(transfers));
    let second = &sandbox.json("top bank --seconds 2 --json")[0];
    assert!(second["commits_per_second"].as_f64() > Some(0.0), "{second}");
    assert!(second["latencies"]["commit"]["count"].as_u64() > Some(0), "{second}");
    demo.kill().unwrap();
    demo.wait().unwrap();
}
