//! The commands and options that errors recommend, followed with a shell as a person would: in
//! paths that need quotes, each advice is pasted and has to work.

use std::fs;

use crate::common::{Ran, Sandbox};

/// The directory that `$S` names in [`Sandbox::in_shell`].
const DIR: &str = crate::common::STORE_TO_QUOTE;

/// The first recommended command of an error that begins with these words, with NEW replaced.
fn recommended(ran: &Ran, words: &str) -> String {
    let begin = ran.err.find(words).unwrap_or_else(|| panic!("no {words:?} in {}", ran.err));
    let rest = &ran.err[begin..];
    let ends = ["; ", " shows ", " starts ", ", or, ", ", and ", "\n"].iter().filter_map(|end| rest.find(end));
    rest[..ends.min().unwrap()].replace("NEW", "new")
}

#[test]
fn a_store_and_a_keyspace_are_created_as_the_error_says() {
    let sandbox = Sandbox::new();
    let put = "percolite put \"$S\" fruit apple red";
    sandbox.in_shell(put).fails(5, "; --create creates a store there");
    sandbox.in_shell(&format!("{put} --create")).succeeds();
    sandbox.in_shell("percolite put \"$S\" people ada 1").fails(3, "; --create creates it");
    sandbox.in_shell("percolite put \"$S\" people ada 1 --create").succeeds();
    let ran = sandbox.in_shell("percolite get \"$S\" fruit apple --at 1s").fails(1, "keeps no history");
    sandbox.in_shell(&recommended(&ran, "percolite retention")).succeeds();
    sandbox.in_shell("percolite get \"$S\" fruit apple --at 0s").succeeds();
    let ran = sandbox.in_shell("percolite top \"$S\"").fails(3, "is not open for writing in any process");
    sandbox.in_shell(&recommended(&ran, "percolite stats")).succeeds();
    sandbox.in_shell("percolite put \"$S\" fruit").fails(2, "see `percolite put --help`");
    sandbox.in_shell("percolite dump \"$S\" d; percolite dump \"$S\" d").fails(1, "; --overwrite replaces it");
    sandbox.in_shell("percolite dump \"$S\" d --overwrite").succeeds();
}

#[test]
fn a_path_that_begins_with_a_dash_is_quoted_as_a_path() {
    let sandbox = Sandbox::new();
    sandbox.in_shell("percolite put --create -- -s rows a b").succeeds();
    let ran = sandbox.in_shell("percolite top -- -s").fails(3, "percolite stats ./-s");
    sandbox.in_shell(&recommended(&ran, "percolite stats")).succeeds();
}

#[test]
fn in_a_removed_directory_the_error_says_so_and_another_directory_helps() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop full.dump");
    let dir = sandbox.path().display().to_string();
    for line in [
        "dump DIR/shop d",
        "dump --base full.dump DIR/shop DIR/d",
        "get shop fruit apple",
        "put --create shop2 fruit apple red",
        "put DIR/shop fruit k --value-file v",
        "load DIR/shop fruit f",
        "restore DIR/copy full.dump",
        "restore copy DIR/full.dump",
        "checkpoint DIR/shop c",
        "repair DIR/shop c",
        "verify shop",
        "stats shop",
        "locks shop",
        "lock run shop job -- true",
        "shell shop",
        "man m",
        "demo --input f",
    ] {
        let line = line.replace("DIR", &dir);
        let ran = sandbox.in_shell(&format!("mkdir gone; cd gone; rmdir ../gone; percolite {line}"));
        assert!(matches!(ran.code, Some(1 | 5)), "{line}: {:?} {}", ran.code, ran.err);
        assert_eq!(ran.err.matches("the current directory was removed").count(), 1, "{line}: {}", ran.err);
    }
    sandbox.in_shell(&format!("mkdir gone; cd gone; rmdir ../gone; cd '{dir}'; percolite dump shop d")).succeeds();
}

#[test]
fn options_of_load_help_as_its_errors_say() {
    let sandbox = Sandbox::new();
    let load = |options: &str, input: &str| {
        sandbox.file("input", input);
        sandbox.in_shell(&format!("percolite load --create \"$S\" rows {options} input"))
    };
    load("", "a,1\nb\nc,3\n").fails(1, "; --skip-bad skips such records; ");
    let ran = load("", "a,1\nb,2,3\nc,3\n").fails(1, "resume with --skip 1");
    let skip = ran.err.trim_end().rsplit("resume with ").next().unwrap().to_owned();
    load(&format!("--skip-bad {skip}"), "a,1\nb,2,3\nc,3\n").succeeds();
    load("", "{\"id\": 1}\n").fails(1, "--key-field names the key of other objects");
    load("--key-field id", "{\"id\": 1}\n").succeeds();
    load("", "{\"key\": \"j\", \"text\": \"{\\n}\"}\n").fails(1, ": use --value-encoding json");
    load("--value-encoding json", "{\"key\": \"j\", \"text\": \"{\\n}\"}\n").succeeds();
    load("--format tsv", "w\tC:\\Users\n").fails(1, "--format raw-tsv keeps backslashes unchanged");
    load("--format raw-tsv", "w\tC:\\Users\n").succeeds();
    load("--key-field id", "a\t1\n").fails(2, "if each line is a JSON object, use --format jsonl");
}

#[test]
fn the_errors_of_lock_name_commands_that_help() {
    let sandbox = Sandbox::new();
    sandbox.in_shell("percolite put --create \"$S\" fruit apple red").succeeds();
    let token = sandbox.in_shell("percolite lock acquire \"$S\" 'the job' --ttl 1h").succeeds();
    let token = token.trim_end();
    for (line, code) in [
        ("percolite lock run \"$S\" 'the job' --wait 0s -- true", 8),
        ("percolite lock acquire \"$S\" 'the job' --wait 100ms --ttl 1s", 8),
        ("percolite lock release \"$S\" 'the job' 5.0", 3),
    ] {
        let ran = sandbox.in_shell(line).fails(code, " shows the holders");
        assert_eq!(ran.err.matches("percolite locks").count(), 1, "{}", ran.err);
        let shown = sandbox.in_shell(&recommended(&ran, "percolite locks")).succeeds();
        assert!(shown.contains(token), "{shown}");
    }
    let ran = sandbox.in_shell("percolite lock acquire \"$S\" b --ttl 1ms").fails(2, ", for example 1h 30m; see");
    assert!(ran.err.contains("percolite lock acquire --help"), "{}", ran.err);
    sandbox.in_shell("percolite lock acquire \"$S\" b --ttl '1h 30m'").succeeds();
    sandbox.in_shell("percolite lock run \"$S\" c -- ./missing").fails(127, "./missing cannot be run");
}

/// The store is busy when the command ends, and a signal ends the attempts to release the lock.
#[test]
fn a_lock_that_was_not_released_is_released_as_the_warning_says() {
    let sandbox = Sandbox::with_shop();
    let run = sandbox.lock_run("shop job --ttl 1h", &format!("echo > running; {}", crate::lock::WAITS));
    crate::lock::wait_for("it does not run", || sandbox.has("running"));
    let token = sandbox.token_of_held("job");
    let store = sandbox.open();
    sandbox.file("enough", "");
    std::thread::sleep(std::time::Duration::from_secs(4));
    crate::lock::kill("-TERM", run.id());
    let ran = crate::lock::ends(run);
    store.close().unwrap();
    assert!(ran.err.starts_with("warning: lock \"job\" was not released"), "{:?} {}", ran.code, ran.err);
    let release = ran.err.split_once("or release it: ").unwrap().1.trim_end().to_owned();
    assert!(release.ends_with(&token), "{release}");
    sandbox.in_shell(&release).succeeds();
    assert_eq!(sandbox.token_of("job"), None);
}

#[test]
fn what_is_recommended_for_a_damaged_store_can_be_pasted() {
    let remove = |sandbox: &Sandbox, name: &str| {
        let files = sandbox.files(DIR, |found| found.starts_with(name));
        assert!(!files.is_empty(), "{name}");
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
    };
    for (damage, code) in [("PERCOLITE", 5), ("CURRENT", 6)] {
        let sandbox = Sandbox::new();
        sandbox.in_shell("percolite put --create \"$S\" fruit apple red").succeeds();
        remove(&sandbox, damage);
        let ran = sandbox.in_shell("percolite get \"$S\" fruit apple").fails(code, "");
        let repair = recommended(&ran, "percolite repair");
        assert_eq!(ran.err.matches("repair").count(), 1, "the advice is given once: {}", ran.err);
        assert!(!ran.err.contains("Builder::"), "{}", ran.err);
        let repaired = sandbox.in_shell(&repair);
        assert!(matches!(repaired.code, Some(0 | 6)), "{repair}: {}", repaired.err);
        assert_eq!(sandbox.ok("get new fruit apple"), "red\n");
    }
}

#[test]
fn a_lost_commit_is_accepted_with_the_command_that_the_error_has() {
    let sandbox = Sandbox::new();
    sandbox.ok("put --create shop fruit apple red");
    sandbox.kill_after("shop", (0..50).map(|n| format!("put fruit k{n:02} {}", "7".repeat(100))));
    fs::rename(sandbox.path().join("shop"), sandbox.path().join(DIR)).unwrap();
    let log = sandbox.files(DIR, |name| name.ends_with(".segment"));
    let value = [b'7'; 9];
    let is_newest = |log: &std::path::PathBuf| fs::read(log).unwrap().windows(9).any(|bytes| bytes == value);
    let log = log.into_iter().rfind(is_newest).unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let at = bytes.windows(9).position(|bytes| bytes == value).unwrap();
    bytes[at] ^= 1;
    fs::write(log, bytes).unwrap();
    let ran = sandbox.in_shell("percolite get \"$S\" fruit apple").fails(6, "(loss ");
    assert!(!ran.err.contains("Builder::") && ran.err.matches("repair").count() == 1, "{}", ran.err);
    sandbox.in_shell(&recommended(&ran, "percolite accept-data-loss")).succeeds();
    let shown = sandbox.in_shell("percolite get \"$S\" fruit apple");
    assert!(shown.code == Some(0) && shown.err.starts_with("warning: "), "{}", shown.err);
    let verified = sandbox.in_shell(&recommended(&shown, "percolite verify"));
    assert!(matches!(verified.code, Some(0 | 6)), "{}", verified.err);
}
