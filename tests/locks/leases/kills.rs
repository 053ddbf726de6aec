//! Leases of killed processes. The process is this test program, which runs the same test as a
//! child process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use percolite::{LockOptions, LockWaitPolicy, Store, Timestamp};

use super::{answer, assert_about, assert_waits, begin, lease, left};
use crate::support::clocks::{Clocks, HOUR, THEN};
use crate::support::until;

const CHILD: &str = "PERCOLITE_TEST_CHILD";
const DIRECTORY: &str = "PERCOLITE_TEST_DIRECTORY";
/// A child that is not killed exits after this time.
const LONGEST: Duration = Duration::from_secs(60);

/// The number and the directory of this child process; `None` in the parent.
fn child() -> Option<(u64, PathBuf)> {
    let number = std::env::var(CHILD).ok()?.parse().unwrap();
    Some((number, std::env::var_os(DIRECTORY)?.into()))
}

/// Reports to the parent, and waits with the store open until it is killed.
fn report(directory: &Path, store: Store, what: &str) -> ! {
    let (next, report) = (directory.join("next"), directory.join("report"));
    std::fs::write(&next, what).unwrap();
    std::fs::rename(next, report).unwrap();
    std::thread::sleep(LONGEST);
    drop(store);
    std::process::exit(1)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a child until it has reported, kills it, and returns the report.
fn killed(test: &str, number: u64, directory: &Path) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([&format!("leases::kills::{test}"), "--exact", "--nocapture"]);
    child.env(CHILD, number.to_string()).env(DIRECTORY, directory).stdout(Stdio::null());
    let child = Killed(child.spawn().unwrap());
    let report = directory.join("report");
    until("the child has reported", || report.exists());
    let what = std::fs::read_to_string(&report).unwrap();
    std::fs::remove_file(report).unwrap();
    drop(child);
    what
}

fn token_of(report: &str) -> Timestamp {
    Timestamp::from_u64(report.parse().unwrap())
}

#[test]
fn a_request_after_a_kill_waits_for_the_rest_of_the_lease() {
    if let Some((_, directory)) = child() {
        let store = Store::builder().application_name("the killed one").open(directory.join("store")).unwrap();
        let guard = store.lock_with("job", lease(HOUR)).unwrap();
        let token = guard.token().to_u64().to_string();
        report(&directory, store, &token);
    }
    let directory = tempfile::tempdir().unwrap();
    let test = "a_request_after_a_kill_waits_for_the_rest_of_the_lease";
    let token = token_of(&killed(test, 0, directory.path()));
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let clocks = Clocks::at(u64::try_from(now).unwrap());
    let store = clocks.builder().open(directory.path().join("store")).unwrap();
    let before = left(&store, "job").unwrap();
    assert!(before > HOUR - LONGEST && before <= HOUR, "{before:?}");
    let waiter = begin("waiter", {
        let store = store.clone();
        move || store.lock_with("job", LockOptions::exclusive().wait(LockWaitPolicy::Timeout(2 * HOUR)))
    });
    until("the request waits", || clocks.is_parked("waiter"));
    clocks.pass(before - Duration::from_secs(1));
    assert_waits(&waiter);
    clocks.pass(Duration::from_secs(1));
    let guard = answer(&waiter).unwrap();
    assert!(guard.token() > token);
    let taken_over = guard.entry().took_over.unwrap();
    assert_eq!((taken_over.token, taken_over.holder.application_name.as_deref()), (token, Some("the killed one")));
}

#[test]
fn an_idle_hour_before_a_kill_leaves_the_whole_lease() {
    if let Some((_, directory)) = child() {
        let clocks = Clocks::new();
        let store = clocks.builder().open(directory.join("store")).unwrap();
        // The store is idle for an hour, so its timestamps fall behind the wall clock.
        clocks.pass(HOUR);
        let token = store.get_lock("job", HOUR).unwrap().unwrap();
        assert!(token.millis() < clocks.wall() - 1_800_000, "timestamps are not behind the clock: {token}");
        report(&directory, store, &token.to_u64().to_string());
    }
    let directory = tempfile::tempdir().unwrap();
    let test = "an_idle_hour_before_a_kill_leaves_the_whole_lease";
    let token = token_of(&killed(test, 0, directory.path()));
    let clocks = Clocks::at(THEN + 3_600_000);
    let store = clocks.builder().open(directory.path().join("store")).unwrap();
    assert_eq!(store.lock_holders("job").unwrap()[0].token, Some(token));
    assert_about(left(&store, "job"), HOUR);
    clocks.pass(HOUR - Duration::from_secs(1));
    assert!(!store.is_free_lock("job").unwrap());
}

#[test]
fn twenty_kills_do_not_move_the_end_of_a_lease() {
    const KILLS: u64 = 20;
    let wall = |number: u64| THEN + 100_000 * number;
    if let Some((number, directory)) = child() {
        let clocks = Clocks::at(wall(number));
        let store = clocks.builder().open(directory.join("store")).unwrap();
        if number == 0 {
            store.get_lock("job", HOUR).unwrap().unwrap();
        }
        clocks.pass(Duration::from_secs(50));
        drop(store.lock_with(format!("run {number}"), lease(HOUR)).unwrap());
        let end = clocks.wall() + u64::try_from(left(&store, "job").unwrap().as_millis()).unwrap();
        report(&directory, store, &end.to_string());
    }
    let directory = tempfile::tempdir().unwrap();
    let ends: Vec<u64> = (0..KILLS)
        .map(|number| killed("twenty_kills_do_not_move_the_end_of_a_lease", number, directory.path()).parse().unwrap())
        .collect();
    let clocks = Clocks::at(wall(KILLS));
    let store = clocks.builder().open(directory.path().join("store")).unwrap();
    let last = clocks.wall() + u64::try_from(left(&store, "job").unwrap().as_millis()).unwrap();
    for end in ends.into_iter().chain([last]) {
        assert!(end.abs_diff(THEN + 3_600_000) <= 1000, "{end}");
    }
}
