//! A hundred thousand locks at the same time, in a separate process whose memory is measured.

#![cfg(target_os = "linux")]

use std::process::Command;

use percolite::{LockGuard, Store};

const NAMES: usize = 100_000;
const MOST_KIB: u64 = 40 * 1024;
const ALONE: &str = "PERCOLITE_TEST_MANY_LOCKS";

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_of_100k_locks_is_bounded_and_freed() {
    if std::env::var_os(ALONE).is_some() {
        return takes_little_memory();
    }
    let alone = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "table::many::memory_of_100k_locks_is_bounded_and_freed"])
        .arg("--nocapture")
        .env(ALONE, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&alone.stdout) + String::from_utf8_lossy(&alone.stderr);
    assert!(alone.status.success() && output.contains("1 passed"), "{output}");
}

fn takes_little_memory() {
    let store = Store::in_memory().unwrap();
    // Memory that is allocated with the first lock serves all locks, so it is not measured.
    drop(store.lock("first").unwrap());
    let mut guards: Vec<LockGuard> = Vec::with_capacity(NAMES);
    let before = resident_kib();
    let mut most = 0;
    for round in 0..3 {
        for number in 0..NAMES {
            guards.push(store.try_lock(format!("lock {number}")).unwrap().unwrap());
        }
        let takes = resident_kib().saturating_sub(before);
        assert!(takes <= MOST_KIB, "{takes} KiB in round {round}");
        assert!(takes > 1024, "{takes} KiB: the measurement is wrong");
        assert!(round == 0 || takes <= most + most / 8, "{takes} KiB in round {round}, {most} KiB before");
        most = most.max(takes);

        let status = store.status();
        assert_eq!((status.held_locks_total, status.held_locks.len()), (NAMES as u64, 100));
        assert_eq!((status.lock_waits_total, status.lock_waits.len()), (0, 0));
        assert!(status.held_locks.iter().all(|entry| entry.token.is_some()));
        guards.clear();
        let table = store.lock_table().unwrap();
        assert_eq!((table.held, table.entries.len()), (0, 0));
        assert_eq!(store.status().held_locks_total, 0);
    }
    println!("{most} KiB for {NAMES} names");
}
