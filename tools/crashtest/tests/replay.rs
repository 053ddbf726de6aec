//! `replay` refuses an invalid case immediately, with an example of a valid one, and runs a valid
//! case.

#![cfg(feature = "rocks")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot continue fails")]

use std::process::{Command, Output};

fn replay(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_percolite-crashtest")).arg("replay").args(arguments).output().unwrap()
}

fn refused(arguments: &[&str], hint: &str) {
    let output = replay(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(stderr.contains(hint), "{arguments:?}: {stderr}");
    assert!(stderr.starts_with("error: ") && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
}

#[test]
fn an_invalid_case_is_refused_with_an_example() {
    for line in ["", ":", "sim", "nothing:1", "SIM:embedded/1", " sim:embedded/1", "sim embedded/1", "ß:1/2"] {
        refused(&[line], "sim:embedded/17 or interleavings:");
    }
    for line in ["sim:", "sim:embedded", "sim:/", "sim:other/1"] {
        refused(&[line], "embedded");
    }
    for seed in ["", "x", "-1", "1.5", "1/2", "18446744073709551616"] {
        refused(&[&format!("sim:embedded/{seed}")], "invalid seed");
    }
    for line in ["kill:", "kill:group.written", "kill:group.written/1/auto/sync", "kill:a/b/c/d/e/f"] {
        refused(&[line], "expected a case like kill:");
    }
    refused(&["kill:nowhere/1/auto/sync/1"], "invalid point");
    refused(&["kill:group.written/3/auto/sync/1"], "invalid visit");
    refused(&["kill:group.written/1/both/sync/1"], "invalid protocol");
    refused(&["kill:group.written/1/auto/never/1"], "invalid durability");
    refused(&["kill:group.written/1/auto/sync/x"], "invalid seed");
    for line in
        ["log-damage:", "log-damage:1", "log-damage:1/", "log-damage:1/-1", "log-damage:1/2.8", "log-damage:1/2.3.4"]
    {
        refused(&[line], "log-damage:SEED/POSITION.BIT");
    }
    for line in ["powercut:", "powercut:x", "powercut:log-", "powercut:log-x", "powercut:1/2"] {
        refused(&[line], "powercut:log-SEED");
    }
    for line in [
        "io-errors:",
        "io-errors:1",
        "io-errors:1/full.0",
        "io-errors:1/full-then-free.0",
        "io-errors:1/full.x",
        "io-errors:x/full.1000",
    ] {
        refused(&[line], "full.KIB");
    }
    for line in [
        "io-errors:1/",
        "io-errors:1/full",
        "io-errors:1/write.log.EIO",
        "io-errors:1/write.log.EIO.0",
        "io-errors:1/write.log.EBADF.1",
    ] {
        refused(&[line], "write.log.EIO.3");
    }
    for line in ["io-errors:1/write.log.EIO.3++", "io-errors:1/write.log.EIO.-1", "io-errors:1/write.log.EIO.99999"] {
        refused(&[line], "write.log.EIO.3");
    }
}

#[test]
fn an_impossible_case_is_refused_with_alternatives() {
    // The table of crash points states in which environments each point can occur.
    refused(&["kill:prewrite.all/1/auto/sync/1"], "kill, two-phase");
    refused(&["kill:one-phase.before/1/two-phase/sync/1"], "kill, auto");
    refused(&["kill:heartbeat.done/last/auto/buffered/1"], "only in: sim, shared");
    refused(&["io-errors:1/rename.log.EIO.1"], "rename.current");
    refused(&["io-errors:1/write.directory.EIO.1"], "sync.directory");
    refused(&["log-damage:1/99999999"], "has the positions 0 to");
    refused(&["log-damage:1/99999999.1"], "has the positions 0 to");
}

#[test]
fn options_that_a_layer_lacks_are_refused() {
    let file = std::env::temp_dir().join(format!("percolite-no-history-{}", std::process::id()));
    for line in ["kill:group.written/1/auto/sync/1", "log-damage:1/200", "io-errors:1/write.log.EIO.3", "powercut:1"] {
        refused(&[line, "--history", file.to_str().unwrap()], "--history needs a case of sim");
        refused(&[line, "--trace"], "--trace needs a case of sim");
    }
    assert!(!file.exists());
    refused(&["sim:embedded/1", "--mutant", "none-of-them"], "unknown mutant");
}

#[test]
fn a_missing_program_is_named() {
    let replayed = |line: &str| {
        let program = env!("CARGO_BIN_EXE_percolite-crashtest");
        Command::new(program).args(["replay", line]).env("PATH", "/nowhere").output().unwrap()
    };
    for (line, missing) in
        [("io-errors:2/write.log.EIO.3", "strace"), ("powercut:1", "unshare"), ("io-errors:1/full.6000", "unshare")]
    {
        let output = replayed(line);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains("this machine cannot run the case") && stderr.contains(missing), "{line}: {stderr}");
    }
}

#[test]
fn a_passing_case_replays_and_its_history_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let history = dir.path().join("history.jsonl");
    let output = replay(&["sim:embedded/2", "--history", history.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let program = env!("CARGO_BIN_EXE_percolite-crashtest");
    assert_eq!(Command::new(program).arg("check").arg(history).output().unwrap().status.code(), Some(0));
    assert_eq!(replay(&["log-damage:1/5000"]).status.code(), Some(0));
}
