//! What the commands show while something is wrong: a process that is stopped, a store that is open
//! elsewhere.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use percolite::{Builder, Store, StoreStatus};

use crate::common::{Ran, Sandbox};

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
    sandbox.run("put shop fruit a b").fails(4, &format!("process {pid} (percolite), which is stopped, has it open"));
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
    ran.fails(4, "; which process has it open cannot be seen from here");
    drop(store);
}
