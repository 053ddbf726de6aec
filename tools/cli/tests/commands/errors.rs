//! Invalid input to every command: an error of one line, the right exit code, and nothing changed.

use std::fs;
use std::process::Command;

use percolite::Store;

use crate::common::{Ran, Sandbox};

const LOOKING: [&str; 10] = [
    "versions STORE fruit apple",
    "retention STORE",
    "get STORE fruit apple",
    "scan STORE fruit",
    "keyspaces STORE",
    "locks STORE",
    "stats STORE",
    "verify STORE",
    "dump STORE new.dump",
    "txn STORE 1763726400123.7",
];
const WRITING: [&str; 6] = [
    "retention STORE --set 7d",
    "put STORE fruit a b",
    "delete STORE fruit apple",
    "checkpoint STORE new",
    "load STORE fruit rows.csv",
    "shell STORE",
];

/// Commands that write to the store `shop`.
const WRITES: [&str; 9] = [
    "put shop fruit a b",
    "delete shop fruit apple",
    "retention shop --set 7d",
    "load shop fruit rows.csv",
    "locks shop --resolve",
    "checkpoint shop new",
    "lock run shop job --wait 0s -- true",
    "lock acquire shop job --ttl 1s",
    "lock release shop job 5.0",
];

fn every(lines: &[&str], store: &str) -> Vec<String> {
    lines.iter().map(|line| line.replace("STORE", store)).collect()
}

#[test]
fn a_directory_that_is_no_store_is_refused_unchanged() {
    let sandbox = Sandbox::new();
    sandbox.file("rows.csv", "a,b\n");
    fs::create_dir(sandbox.path().join("other")).unwrap();
    sandbox.file("other/precious.txt", "mine");
    fs::create_dir(sandbox.path().join("newer")).unwrap();
    sandbox.file("newer/PERCOLITE", "percolite store, format 9, build 0.1.0, wal 0123456789abcdef\n");
    fs::create_dir(sandbox.path().join("newer/tables")).unwrap();
    sandbox.file("newer/tables/CURRENT", "");
    fs::create_dir(sandbox.path().join("empty")).unwrap();
    let all = [&LOOKING[..], &WRITING].concat();
    for (store, what) in [
        ("other", "not a percolite store"),
        ("newer", "format 9"),
        ("missing", "no directory"),
        ("empty", "empty directory"),
        ("rows.csv", "not a directory"),
    ] {
        for line in every(&all, store) {
            sandbox.run(&line).fails(5, what);
        }
    }
    for line in [
        "put --create other fruit a b",
        "load --create other fruit rows.csv",
        "restore other rows.csv",
        "keyspaces other --create fruit",
    ] {
        sandbox.run(line).fails(5, "not a percolite store");
    }
    assert_eq!(fs::read_dir(sandbox.path().join("other")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(sandbox.path().join("empty")).unwrap().count(), 0);
    assert!(!sandbox.path().join("missing").exists());
}

#[test]
fn every_command_reports_a_busy_store() {
    let sandbox = Sandbox::with_shop();
    sandbox.file("rows.csv", "a,b\n");
    let _open = Store::open(sandbox.path().join("shop")).unwrap();
    for line in every(&LOOKING, "shop") {
        sandbox.run(&line).fails(4, "is open for writing in this or another process");
    }
    for line in every(&WRITING, "shop") {
        sandbox.run(&line).fails(4, "is already open");
    }
}

#[test]
fn read_only_commands_run_concurrently() {
    let sandbox = Sandbox::with_shop();
    let _open = Store::builder().read_only(true).open(sandbox.path().join("shop")).unwrap();
    assert_eq!(sandbox.ok("get shop fruit apple"), "red\n");
    sandbox.run("put shop fruit a b").fails(4, "is already open");
}

#[test]
fn the_error_of_an_unknown_keyspace_lists_the_others() {
    let sandbox = Sandbox::with_shop();
    sandbox.file("rows.csv", "a,b\n");
    for line in [
        "get shop frut a",
        "scan shop frut",
        "delete shop frut a",
        "put shop frut a b",
        "load shop frut rows.csv",
        "keyspaces shop --drop frut",
    ] {
        sandbox.run(line).fails(3, "keyspace \"frut\" not found; there are \"fruit\"");
    }
    for line in ["put shop frut a b", "load shop frut rows.csv"] {
        sandbox.run(line).fails(3, "; --create creates it");
    }
}

#[test]
fn an_invalid_command_line_is_exit_code_2() {
    let sandbox = Sandbox::with_shop();
    for (line, what) in [
        ("get --key-encoding hex shop fruit 0g", "is not valid hex"),
        ("put --value-encoding base64 shop fruit k ???", "is not valid base64"),
        ("scan --key-encoding hex shop fruit --from 1", "is not valid hex"),
        ("scan shop fruit --from b --to a", "--from is after --to"),
        ("scan shop fruit --prefix a --from b", "cannot be used with"),
        ("put shop fruit key", "the key \"key\" has no value"),
        ("put shop fruit a 1 b 2 a 3", "the key \"a\" is given twice"),
        ("put shop fruit a b --value-file x", "is for one key"),
        ("load shop fruit --batch 0", "--batch"),
        ("dump shop - --json", "goes to standard output"),
        ("get --at yesterday shop fruit apple", "not a relative time"),
        ("retention shop --set long", "--set"),
        ("retention shop --set 1d --disable", "cannot be used with"),
        ("fetch shop", "unrecognized subcommand"),
        ("get shop", "required arguments"),
        ("get", "were not provided: <STORE>, <KEYSPACE>, <KEY>...; see `percolite get --help`\n"),
        (
            "scan --prefx a shop fruit",
            "'--prefx' found; a similar argument exists: '--prefix'; see `percolite scan --help`\n",
        ),
        ("put shop fruit k v --compression zip", "[possible values: none, lz4]; see `percolite put --help`\n"),
        ("scann shop", "a similar subcommand exists: 'scan'; see `percolite --help`\n"),
        ("--store shop", "unexpected argument '--store' found; see `percolite --help`\n"),
    ] {
        sandbox.run(line).fails(2, what);
    }
    let two_lines = sandbox.command("get shop fruit apple").arg("--no\nsuch\n\noption").output().unwrap();
    Ran::of("an option of several lines", two_lines).fails(2, "unexpected argument");
}

#[test]
fn an_incomplete_store_can_be_created_again() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path().join("s")).unwrap();
    sandbox.file("s/PERCOLITE.new", "");
    sandbox.run("put s rows a b").fails(5, "was never finished: it is empty; --create creates a store there");
    sandbox.ok("put --create s rows a b");
}

#[test]
fn limits_are_in_the_error() {
    let sandbox = Sandbox::with_shop();
    sandbox.run(&format!("put shop fruit {} v", "k".repeat(17 << 10))).fails(1, "exceeds the limit of 16384 bytes");
    let mut empty = sandbox.command("put shop fruit");
    let ran = Ran::of("put an empty key", empty.args(["", "v"]).output().unwrap());
    ran.fails(1, "a key must not be empty");
    sandbox.run(&format!("keyspaces shop --create {}", "n".repeat(256))).fails(1, "1 to 255 bytes");
    sandbox.run("put shop fruit k --value-file missing").fails(1, "cannot read missing");
}

#[test]
fn an_endless_value_or_statement_is_refused() {
    let sandbox = Sandbox::with_shop();
    for (script, what) in [
        (
            "head -c 40m /dev/zero | PERCOLITE put shop fruit k --value-file -",
            "more than 33554432 bytes, the limit of a value",
        ),
        (
            "head -c 40m /dev/zero > big && PERCOLITE put shop fruit k --value-file big",
            "big has more than 33554432 bytes",
        ),
        ("yes | tr -d '\\n' | head -c 100m | PERCOLITE shell shop", "line 1 has more than 80.00 MiB"),
    ] {
        let run = script.replace("PERCOLITE", env!("CARGO_BIN_EXE_percolite"));
        let output = Command::new("sh").args(["-c", &run]).current_dir(sandbox.path()).output().unwrap();
        Ran::of(script, output).fails(1, what);
    }
}

/// Mounts the store read-only, because mode bits do not restrict root. The mount namespace ends
/// with the process.
#[test]
fn a_store_on_a_read_only_file_system_can_be_read() {
    let sandbox = Sandbox::with_shop();
    let inside = |line: &str| {
        let script = format!(
            "mount --bind -o ro shop shop && touch shop/x 2>/dev/null; exec {} {line}",
            env!("CARGO_BIN_EXE_percolite")
        );
        let output =
            Command::new("unshare").args(["--mount", "sh", "-c", &script]).current_dir(sandbox.path()).output();
        Ran::of(line, output.unwrap())
    };
    let can = Command::new("unshare")
        .args(["--mount", "sh", "-c", "mount --bind -o ro shop shop && ! touch shop/x"])
        .current_dir(sandbox.path())
        .output();
    if !can.is_ok_and(|can| can.status.success()) {
        eprintln!("SKIPPED: this machine does not allow mounts");
        return;
    }
    assert_eq!(inside("get shop fruit apple").succeeds(), "red\n");
    inside("verify shop").succeeds();
    inside("dump shop shop.dump").succeeds();
    assert_eq!(inside("locks shop").succeeds(), "");
    sandbox.file("rows.csv", "a,b\n");
    for line in WRITES {
        let err = inside(line).fails(1, "shop cannot be written to: ").err;
        assert!(err.contains("; make the file system writable; commands that only read work: get, "), "{line}: {err}");
        assert!(!err.contains("read-only, or"), "{line}: {err}");
    }
    let err = inside("dump shop shop/../shop/locks").err;
    assert!(err.contains("is inside the store"), "{err}");
    inside("man shop/man").fails(1, "; make the file system writable, or name a path on another one");
}

/// The commands that an error recommends, with this directory in place of NEW.
fn named(report: &str, new: &str) -> Vec<String> {
    let after = report.split("percolite ").skip(1);
    let commands = after.map(|rest| rest.split([';', ',', ')', ':']).next().unwrap().split(" says ").next().unwrap());
    let commands = commands.map(|command| command.split(" shows ").next().unwrap().trim().replace("NEW", new));
    commands.filter(|command| command.starts_with("verify") || command.starts_with("repair")).collect()
}

/// Flips bits in the middle of the largest file.
fn damage(files: Vec<std::path::PathBuf>) {
    let file = files.iter().max_by_key(|file| fs::metadata(file).unwrap().len()).unwrap();
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
    (middle..middle + 9).for_each(|at| bytes[at] ^= 0xff);
    // The file is replaced, not changed in place, because a checkpoint shares its tables with the
    // store by hard links.
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

#[test]
fn the_recommended_commands_help_with_any_damage() {
    let remove = |files: Vec<std::path::PathBuf>| files.iter().for_each(|file| fs::remove_file(file).unwrap());
    type Damage<'a> = &'a dyn Fn(&Sandbox);
    let cases: [(&str, i32, &[&str], Damage<'_>); 5] = [
        ("manifest", 6, &["repair"], &|sandbox| remove(sandbox.files("copy", |name| name.starts_with("MANIFEST-")))),
        ("CURRENT", 6, &["repair"], &|sandbox| remove(sandbox.files("copy", |name| name == "CURRENT"))),
        ("marker", 5, &["repair"], &|sandbox| remove(sandbox.files("copy", |name| name == "PERCOLITE"))),
        ("foreign marker", 5, &["repair"], &|sandbox| sandbox.file("copy/PERCOLITE", "something else")),
        ("tables", 6, &["verify", "repair"], &|sandbox| damage(sandbox.files("copy", |name| name.ends_with(".sst")))),
    ];
    for (what, code, commands, damage) in cases {
        let sandbox = Sandbox::new();
        let rows: String = (0..20_000).map(|n| format!("key{n:05}\tvalue {n}\n")).collect();
        sandbox.with_input("load --create shop fruit --format tsv", rows).succeeds();
        sandbox.ok("checkpoint shop copy");
        damage(&sandbox);
        for (n, line) in
            ["scan copy fruit --count", "delete copy fruit --prefix k", "dump copy copy.dump"].iter().enumerate()
        {
            let report = sandbox.run(line).fails(code, "").err;
            let named = named(&report, &format!("new{n}"));
            let words: Vec<&str> = named.iter().map(|command| command.split(' ').next().unwrap()).collect();
            assert_eq!(words, commands, "{what}: {report}");
            for command in named {
                let ran = sandbox.run(&command);
                // The recommended commands report the damage; a repair creates a store without
                // damage.
                assert!(matches!(ran.code, Some(0 | 6)), "{what}: {command}: {}", ran.err);
                if command.starts_with("repair") {
                    let rows: u32 = sandbox.ok(&format!("scan new{n} fruit --count")).trim().parse().unwrap();
                    assert!(rows > 10_000, "{what}: {rows} rows");
                    sandbox.ok(&format!("verify new{n}"));
                } else {
                    assert!(ran.code == Some(6) && ran.err.contains("found"), "{what}: {command}: {}", ran.err);
                }
            }
        }
    }
}

#[test]
fn errors_that_no_command_helps_with_recommend_none() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("checkpoint shop newer");
    sandbox.file("newer/PERCOLITE", "percolite store, format 9, build 0.1.0, wal 0123456789abcdef\n");
    fs::create_dir(sandbox.path().join("other")).unwrap();
    sandbox.file("other/precious.txt", "mine");
    let _open = Store::open(sandbox.path().join("shop")).unwrap();
    for (line, code) in [("get newer fruit apple", 5), ("get other fruit apple", 5), ("put shop fruit a b", 4)] {
        let report = sandbox.run(line).fails(code, "").err;
        assert!(named(&report, "new").is_empty(), "{report}");
    }
}

/// Runs the program as an unprivileged user, because mode bits do not restrict root.
#[test]
fn missing_permissions_are_in_the_error() {
    let sandbox = Sandbox::with_shop();
    let as_nobody = |line: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_percolite")]);
        Ran::of(line, command.args(line.split(' ')).current_dir(sandbox.path()).output().unwrap())
    };
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o755)).unwrap();
    if as_nobody("--version").code != Some(0) {
        eprintln!("SKIPPED: this machine does not allow another user id");
        return;
    }
    sandbox.file("rows.csv", "a,b\n");
    for line in WRITES {
        let err = as_nobody(line).fails(1, "shop cannot be written to: ").err;
        assert_eq!(err.matches("must be allowed to read and write").count(), 1, "{line}: {err}");
        assert!(err.contains("; commands that only read work: get, scan, dump, verify, locks"), "{line}: {err}");
    }
    ["get shop fruit apple", "scan shop fruit", "verify shop", "locks shop"].iter().for_each(|line| {
        as_nobody(line).succeeds();
    });
    let err = as_nobody("put --create new/store fruit a b").fails(1, "cannot be written to").err;
    assert!(!err.contains("only read"), "there is no store to read: {err}");
    as_nobody("dump shop shop.dump").fails(1, "cannot write shop.dump: Permission denied (os error 13); the user ");
    for file in sandbox.files("shop", |_| true) {
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let report = as_nobody("get shop fruit apple").fails(1, "Permission denied").err;
    assert!(named(&report, "new").is_empty(), "{report}");
    // As the error says.
    let chown = Command::new("chown").args(["-R", "65534:65534", "shop"]).current_dir(sandbox.path()).status();
    assert!(chown.unwrap().success());
    as_nobody("lock run shop job -- true").succeeds();
    as_nobody("put shop fruit a b").succeeds();
}

#[test]
fn an_unwritable_report_says_that_the_store_was_changed() {
    let sandbox = Sandbox::with_shop();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let err = |line: &str| {
        let out = sandbox.command(line).stdout(full()).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{line}");
        String::from_utf8(out.stderr).unwrap()
    };
    for line in [
        "put shop fruit plum blue",
        "delete shop fruit apple",
        "keyspaces shop --create more",
        "retention shop --set 7d",
    ] {
        let report = err(line);
        assert!(report.contains("standard output") && report.ends_with("; the store was changed\n"), "{report}");
    }
    assert_eq!(sandbox.ok("get shop fruit plum"), "blue\n");
    let report = err("get shop fruit plum");
    assert!(!report.contains("free some space") && !report.contains("changed"), "{report}");
}
