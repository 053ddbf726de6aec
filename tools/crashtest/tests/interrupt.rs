//! An interrupted run ends, reports the interruption, and leaves no process, file or disk.

#![cfg(all(feature = "rocks", target_os = "linux"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test that cannot continue fails"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The time limit of each wait.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(2);
/// An option that makes the run much longer than `TIMEOUT`.
const LONG: &[&str] = &["--for", "10h"];

/// A run with its own directory for temporary files.
struct Run {
    child: Child,
    dir: tempfile::TempDir,
}

impl Run {
    fn start(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The run fails if its directory does not exist.
        fs::create_dir_all(scratch(dir.path())).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_percolite-crashtest"))
            .args(arguments)
            .arg("--json")
            .arg(json(dir.path()))
            .env("TMPDIR", scratch(dir.path()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self { child: child.unwrap(), dir }
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the run handles signals.
    fn wait_for_signal_handlers(&self) {
        let handles_signals = || [Signal::INT, Signal::TERM].iter().all(|signal| has(self.id(), "SigCgt:", *signal));
        wait("it handles signals", handles_signals);
    }

    fn wait_for_end(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < TIMEOUT, "an interrupted run does not end");
            sleep(POLL);
        }
    }

    /// All processes, files and disks that the run has left.
    fn leftovers(&self) -> Vec<String> {
        let mut left = self.processes();
        left.extend(files(&scratch(self.dir.path())));
        left.extend(files(Path::new("/dev/shm")).into_iter().filter(|name| name.contains(&self.in_memory())));
        let dir = self.dir.path().to_str().unwrap().to_owned();
        let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|disk| disk.path());
        let backing_files = disks.filter_map(|disk| fs::read_to_string(disk.join("loop/backing_file")).ok());
        left.extend(backing_files.filter(|file| file.starts_with(&dir)));
        left.extend(
            fs::read_to_string("/proc/mounts").unwrap().lines().filter(|line| line.contains(&dir)).map(Into::into),
        );
        left
    }

    fn in_memory(&self) -> String {
        format!("percolite-crashtest-{}-", self.id())
    }

    /// The other processes that the run has started, directly or not: they have its `TMPDIR`.
    fn processes(&self) -> Vec<String> {
        let variable = format!("TMPDIR={}", scratch(self.dir.path()).display());
        let mut found = Vec::new();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            let is_one = environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes());
            if is_one && process.file_name().to_str() != Some(&self.id().to_string()) {
                let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
                found.push(format!("{}: {}", process.file_name().display(), command.escape_ascii()));
            }
        }
        found
    }

    fn report(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(json(self.dir.path())).unwrap()).unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The child still runs only if the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "timed out waiting until {what}");
        sleep(POLL);
    }
}

/// Whether the signal is in this set of `/proc/PID/status`.
fn has(process: u32, set: &str, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

fn json(dir: &Path) -> PathBuf {
    dir.join("run.json")
}

fn scratch(dir: &Path) -> PathBuf {
    dir.join("scratch")
}

fn files(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|file| file.path().display().to_string()).collect()
}

/// Interrupts a run as soon as it has something that it could leave, and checks that it leaves
/// nothing.
fn interrupt(arguments: &[&str], signal: Signal, has_begun: impl Fn(&Run) -> bool) -> serde_json::Value {
    let mut run = Run::start(arguments);
    run.wait_for_signal_handlers();
    wait("it has started", || has_begun(&run));
    run.signal(signal);
    let status = run.wait_for_end();
    assert_eq!(status.code(), Some(128 + signal.as_raw()), "{arguments:?}: {status}");
    let left = run.leftovers();
    assert!(left.is_empty(), "{arguments:?} has left {left:#?}");
    let report = run.report();
    assert_eq!(report["interrupted"], true, "{arguments:?}");
    let failures: Vec<_> = report["layers"]
        .as_array()
        .expect("a report with layers")
        .iter()
        .map(|layer| layer["failures"].clone())
        .collect();
    assert!(failures.iter().all(|failures| *failures == serde_json::json!([])), "{arguments:?}: {failures:#?}");
    report
}

fn with_a_process(run: &Run) -> bool {
    !run.processes().is_empty()
}

#[test]
fn a_layer_in_memory_ends_with_its_report() {
    interrupt(&[&["sim"], LONG].concat(), Signal::INT, |_| true);
    let in_memory = |run: &Run| files(Path::new("/dev/shm")).iter().any(|name| name.contains(&run.in_memory()));
    interrupt(&[&["log-damage"], LONG].concat(), Signal::TERM, in_memory);
}

#[test]
fn a_layer_with_processes_ends_them() {
    for layer in ["kill", "io-errors"] {
        for signal in [Signal::INT, Signal::TERM] {
            interrupt(&[&[layer], LONG].concat(), signal, with_a_process);
        }
    }
}

#[test]
fn a_layer_with_disks_removes_them() {
    // A machine without loop devices skips the layer.
    let mut skipped = Run::start(&["powercut", "--case", "powercut:1"]);
    skipped.wait_for_end();
    if !skipped.report()["layers"][0]["skipped"].is_null() {
        return;
    }
    interrupt(&[&["powercut"], LONG].concat(), Signal::INT, with_a_process);
    // The case of every sixth seed has a small disk.
    interrupt(&[&["io-errors", "--seed", "6"], LONG].concat(), Signal::TERM, with_a_process);
}

#[test]
fn runs_of_many_layers_end_in_any_of_them() {
    interrupt(&[&["soak"], LONG].concat(), Signal::INT, |_| true);
    interrupt(&["quick"], Signal::INT, |_| true);
    interrupt(&["mutants", "--all-layers"], Signal::TERM, with_a_process);
}

#[test]
fn a_second_signal_ends_a_run_immediately() {
    let mut run = Run::start(&["mutants"]);
    run.wait_for_signal_handlers();
    let child = || {
        let list = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
        list.split_whitespace().next().and_then(|id| id.parse::<u32>().ok())
    };
    // Before its `exec` the child is a copy of its parent, so its command line shows whether `exec`
    // has happened.
    let is_itself = |child| fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap().contains("--quick");
    wait("it has started", || child().is_some_and(|one| is_itself(one) && has(one, "SigCgt:", Signal::TERM)));
    let id = child().expect("the layer runs in a process of its own");
    let child = Pid::from_raw(id.try_into().unwrap()).unwrap();
    // A stopped child does not end at the forwarded signal, so the run still waits for it when the
    // second signal comes.
    kill_process(child, Signal::STOP).unwrap();
    run.signal(Signal::INT);
    wait("the first signal is forwarded", || has(id, "ShdPnd:", Signal::TERM));
    run.signal(Signal::INT);
    assert_eq!(run.wait_for_end().code(), Some(130));
    assert_eq!(fs::read(json(run.dir.path())).unwrap(), b"", "the report was written");
    kill_process(child, Signal::CONT).unwrap();
    wait("the other process ends", || run.processes().is_empty());
}

#[test]
fn an_unwritable_report_file_fails_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    for missing in ["missing/directory/run.json", "."] {
        for command in [&["kill"][..], &["sim"], &["quick"], &["mutants"], &["soak", "--for", "10h"]] {
            let output = Command::new(env!("CARGO_BIN_EXE_percolite-crashtest"))
                .args(command)
                .arg("--json")
                .arg(dir.path().join(missing))
                .output()
                .unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command:?}: {stderr}");
            assert!(stderr.contains(missing) && stderr.lines().count() == 1, "{stderr}");
        }
    }
}
