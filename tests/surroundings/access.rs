//! Directories as they are found: rights, owners, mount points, and file systems that lack a call.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use percolite::ErrorKind;

use crate::rows::{append, append_until_error, assert_rows, create, small};
use crate::{DIRECTORY, SCENARIO, Scenario, as_root, scenario, unix};

pub const SCENARIOS: &[Scenario] = &[
    as_root("a_parent_that_can_be_searched_only", search_only_parent),
    as_root("a_parent_that_can_be_written_and_not_read", write_only_parent),
    as_root("directories_that_everybody_may_write", sticky_parent),
    as_root("a_store_of_another_user", store_of_another),
    as_root("files_and_directories_without_the_right_to_write", modes),
    as_root("the_umask_forbids_everything_to_a_user", umask_of_user),
    as_root("a_first_attempt_without_rights", first_attempt),
    scenario("a_mount_point_with_lost_and_found", lost_and_found),
    scenario("a_file_system_without_locks", no_locks),
    scenario("a_file_system_that_cannot_sync_directories", no_directory_sync),
    scenario("a_file_system_without_hard_links", no_hard_links),
    scenario("each_sync_of_a_creation_fails", failing_creation),
    scenario("a_repair_that_cannot_create_a_store", failing_repair),
];

pub const HELPERS: &[Scenario] = &[
    scenario("creates", creates),
    scenario("creates_with_umask", creates_with_umask),
    scenario("opens", opens),
    scenario("opens_read_only", opens_read_only),
    scenario("makes_a_checkpoint", makes_checkpoint),
    scenario("repairs", repairs),
    scenario("opens_and_changes_its_user", opens_and_changes_its_user),
];

const OTHER_USER: u32 = 65534;

/// A copy of this program that every user may run.
pub fn program_for_all(place: &Path) -> PathBuf {
    let program = place.join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    program
}

/// Gives every file and directory all rights.
pub fn allow_everything(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| allow_everything(&entry.unwrap().path()));
    }
}

fn command(program: &Path, name: &str, path: &Path, user: Option<u32>) -> Command {
    let mut command = Command::new(program);
    command.env(SCENARIO, name).env(DIRECTORY, path);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command
}

fn output(mut command: Command) -> (bool, String) {
    let ended = command.output().unwrap();
    let text = [ended.stdout, ended.stderr].concat();
    (ended.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Runs a helper, which must succeed; returns what it prints.
#[track_caller]
pub fn run(program: &Path, name: &str, path: &Path, user: Option<u32>) -> String {
    let (succeeded, text) = output(command(program, name, path, user));
    assert!(succeeded, "{name}: {text}");
    text
}

/// Runs a helper, whose error must contain these parts, twice with the same result.
#[track_caller]
fn fails(program: &Path, name: &str, path: &Path, user: Option<u32>, parts: &[&str]) {
    let mut before = None;
    for attempt in 0..2 {
        let (succeeded, text) = output(command(program, name, path, user));
        assert!(!succeeded, "attempt {attempt} of {name} succeeded");
        let error = text.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or_else(|| panic!("{text}"));
        for part in parts {
            assert!(error.contains(part), "{name} without {part:?}: {error}");
        }
        let error = without_times(error);
        assert_eq!(*before.get_or_insert(error.clone()), error, "the second attempt differs");
    }
}

/// The error without the times in the names of RocksDB's old logs.
fn without_times(error: &str) -> String {
    error
        .split('/')
        .map(|name| if name.starts_with("LOG.old.") { "LOG.old" } else { name })
        .collect::<Vec<_>>()
        .join("/")
}

/// Ends a helper with an error, in one line.
fn or_print<T>(result: Result<T, percolite::Error>) -> T {
    result.unwrap_or_else(|error| {
        println!("error: {error}");
        std::process::exit(1);
    })
}

fn creates(path: &Path) {
    let store = or_print(small().open(path));
    let rows = or_print(store.keyspace("rows"));
    or_print(append(&store, &rows, 0..10));
    or_print(store.close());
}

fn creates_with_umask(path: &Path) {
    unix::umask(0o777);
    creates(path);
}

fn opens(path: &Path) {
    let store = or_print(small().open(path));
    let rows = or_print(store.keyspace("rows"));
    or_print(append(&store, &rows, 10..20));
    or_print(store.close());
}

fn opens_read_only(path: &Path) {
    let store = or_print(small().read_only(true).open(path));
    let rows = or_print(store.keyspace("rows"));
    println!("{}", store.range(&rows, ..).unwrap().filter(|row| row.is_ok()).count());
}

fn makes_checkpoint(path: &Path) {
    let store = or_print(small().open(path));
    or_print(store.checkpoint(path.with_extension("copy")));
    or_print(store.close());
}

fn opens_and_changes_its_user(path: &Path) {
    let store = small().open(path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    unix::become_user(OTHER_USER);
    let (number, error) = append_until_error(&store, &rows, 10);
    assert!(matches!(error.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_)), "{error}");
    store.close().unwrap_err();
    println!("{number}");
}

fn directory(path: PathBuf, mode: u32, owner: u32) -> PathBuf {
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    chown(&path, Some(owner), Some(owner)).unwrap();
    path
}

fn search_only_parent(place: &Path) {
    let program = program_for_all(place);
    let hosts = directory(place.join("hosts"), 0o711, 0);
    let site = directory(hosts.join("site"), 0o755, OTHER_USER);
    run(&program, "creates", &site, Some(OTHER_USER));
    assert_rows(&site, 10);
    let deep = directory(hosts.join("deep"), 0o755, OTHER_USER);
    run(&program, "creates", &deep.join("new/store"), Some(OTHER_USER));
    assert_rows(&deep.join("new/store"), 10);
    chown(&hosts, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    fs::set_permissions(&hosts, Permissions::from_mode(0o311)).unwrap();
    run(&program, "creates", &hosts.join("own"), Some(OTHER_USER));
    run(&program, "makes_a_checkpoint", &hosts.join("own"), Some(OTHER_USER));
    assert_rows(&hosts.join("own"), 10);
    assert_rows(&hosts.join("own.copy"), 10);
}

fn write_only_parent(place: &Path) {
    let program = program_for_all(place);
    let parent = directory(place.join("inbox"), 0o733, 0);
    run(&program, "creates", &parent.join("store"), Some(OTHER_USER));
    assert_rows(&parent.join("store"), 10);
}

fn sticky_parent(place: &Path) {
    let program = program_for_all(place);
    let shared = directory(place.join("shared"), 0o1777, 0);
    run(&program, "creates", &shared.join("store"), Some(OTHER_USER));
    let of_root = directory(shared.join("of root"), 0o1777, 0);
    run(&program, "creates", &of_root, Some(OTHER_USER));
    run(&program, "opens", &of_root, Some(OTHER_USER));
    assert_rows(&shared.join("store"), 10);
    assert_rows(&of_root, 20);
}

fn store_of_another(place: &Path) {
    let program = program_for_all(place);
    let path = place.join("store");
    create(&path, 10);
    let marker = path.join("PERCOLITE").display().to_string();
    fails(&program, "opens", &path, Some(OTHER_USER), &["cannot open", &marker, "Permission denied", "read and write"]);
    assert_eq!(run(&program, "opens_read_only", &path, Some(OTHER_USER)).trim(), "10");
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    let path_text = path.display().to_string();
    fails(&program, "opens", &path, Some(OTHER_USER), &[&path_text, "Permission denied"]);
    fails(&program, "opens_read_only", &path, Some(OTHER_USER), &[&path_text, "Permission denied"]);
    assert_rows(&path, 10);
}

fn modes(place: &Path) {
    let program = program_for_all(place);
    let home = directory(place.join("home"), 0o755, OTHER_USER);
    let path = home.join("store");
    run(&program, "creates", &path, Some(OTHER_USER));
    for (name, mode, usual) in
        [("PERCOLITE", 0o444, 0o644), ("wal", 0o555, 0o755), ("tables", 0o555, 0o755), ("", 0o600, 0o755)]
    {
        let changed = path.join(name);
        fs::set_permissions(&changed, Permissions::from_mode(mode)).unwrap();
        let named = changed.display().to_string().trim_end_matches('/').to_owned();
        fails(&program, "opens", &path, Some(OTHER_USER), &[&named, "ermission denied"]);
        fs::set_permissions(&changed, Permissions::from_mode(usual)).unwrap();
    }
    // No file is created in the store's own directory once the store exists.
    fs::set_permissions(&path, Permissions::from_mode(0o555)).unwrap();
    run(&program, "opens", &path, Some(OTHER_USER));
    assert_rows(&path, 20);
    fs::set_permissions(&home, Permissions::from_mode(0o555)).unwrap();
    let copy = path.with_extension("copy").display().to_string();
    fails(&program, "makes_a_checkpoint", &path, Some(OTHER_USER), &[&copy, "Permission denied"]);
}

fn umask_of_user(place: &Path) {
    let program = program_for_all(place);
    let home = directory(place.join("home"), 0o755, OTHER_USER);
    let path = home.join("store").display().to_string();
    fails(&program, "creates_with_umask", &home.join("store"), Some(OTHER_USER), &[&path, "ermission denied"]);
    assert!(!home.join("store").exists(), "the first attempt leaves a directory");
    run(&program, "creates", &home.join("store"), Some(OTHER_USER));
    assert_rows(&home.join("store"), 10);
}

fn first_attempt(place: &Path) {
    let program = program_for_all(place);
    let home = directory(place.join("home"), 0o555, OTHER_USER);
    let path = home.join("a/store");
    fails(&program, "creates", &path, Some(OTHER_USER), &[&path.display().to_string(), "Permission denied"]);
    fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
    run(&program, "creates", &path, Some(OTHER_USER));
    assert_rows(&path, 10);
}

fn lost_and_found(place: &Path) {
    let path = place.join("mount");
    fs::create_dir_all(path.join("lost+found")).unwrap();
    fs::write(path.join("lost+found/#17"), "x").unwrap();
    let error = small().read_only(true).open(&path).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{error}");
    create(&path, 10);
    assert_rows(&path, 10);
    assert!(path.join("lost+found/#17").exists());
    // A file of that name belongs to another program.
    fs::create_dir(place.join("other")).unwrap();
    fs::write(place.join("other/lost+found"), "x").unwrap();
    let error = small().open(place.join("other")).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnrecognizedFormat(_)), "{error}");
}

/// A command under `strace`, which lets calls of the system fail.
pub fn faulty(inject: &str, paths: &[&Path], name: &str, path: &Path) -> Command {
    let mut command = Command::new("strace");
    command.args(["-f", "-qqq", "-o", "/dev/null"]);
    inject.split(' ').for_each(|inject| _ = command.args(["-e", &format!("inject={inject}")]));
    for path in paths {
        command.arg("-P").arg(path);
    }
    command.arg(std::env::current_exe().unwrap()).env(SCENARIO, name).env(DIRECTORY, path);
    command
}

#[track_caller]
fn fails_alike(mut attempt: impl FnMut() -> Command, parts: &[&str]) {
    let mut before = None;
    for _ in 0..2 {
        let (succeeded, text) = output(attempt());
        assert!(!succeeded, "it succeeded");
        let error = text.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or_else(|| panic!("{text}"));
        for part in parts {
            assert!(error.contains(part), "without {part:?}: {error}");
        }
        assert_eq!(*before.get_or_insert(error.to_owned()), error, "the second attempt differs");
    }
}

fn no_locks(place: &Path) {
    for errno in ["ENOLCK", "EOPNOTSUPP", "ENOSYS"] {
        let path = place.join(errno);
        let attempt = || faulty(&format!("flock:error={errno}"), &[], "creates", &path);
        fails_alike(attempt, &["cannot lock", errno, "does not support locks"]);
        create(&path, 10);
        let attempt = || faulty(&format!("flock:error={errno}"), &[], "opens_read_only", &path);
        fails_alike(attempt, &["cannot lock", errno, "does not support locks"]);
    }
}

fn no_directory_sync(place: &Path) {
    for part in ["", "wal", "tables"] {
        let path = place.join(format!("store_{part}"));
        let synced = if part.is_empty() { path.clone() } else { path.join(part) };
        let attempt = || faulty("fsync,fdatasync:error=EINVAL", &[&synced], "creates", &path);
        let named = synced.display().to_string();
        fails_alike(attempt, &[&named, "Invalid argument"]);
        create(&path, 10);
        assert_rows(&path, 10);
    }
}

fn no_hard_links(place: &Path) {
    for errno in ["EXDEV", "EOPNOTSUPP", "EPERM", "EMLINK"] {
        let path = place.join(errno);
        create(&path, 3000);
        let (succeeded, text) = output(faulty(&format!("link,linkat:error={errno}"), &[], "makes_a_checkpoint", &path));
        let copy = path.with_extension("copy");
        if succeeded {
            assert_rows(&copy, 3000);
        } else {
            assert!(text.contains(&copy.display().to_string()) && text.contains("hard links"), "{errno}: {text}");
            assert!(!copy.exists(), "{errno}");
        }
        assert_rows(&path, 3000);
    }
}

/// Whichever sync fails, the next attempt with the same fault fails alike, and the one without it
/// creates the store.
fn failing_creation(place: &Path) {
    let mut failed = 0;
    for nth in 1..40 {
        let path = place.join(nth.to_string());
        let fault = format!("fsync:error=EIO:when={nth}");
        let (succeeded, text) = output(faulty(&fault, &[], "creates", &path));
        if succeeded {
            continue;
        }
        failed += 1;
        let (succeeded, again) = output(faulty(&fault, &[], "creates", &path));
        assert!(!succeeded, "call {nth}: {text}");
        assert!(text.contains("error: ") && again.contains("error: "), "call {nth}: {text}\n{again}");
        create(&path, 10);
        assert_rows(&path, 10);
    }
    assert!(failed > 5, "{failed} creations failed");
}

fn repairs(path: &Path) {
    or_print(small().repair(path, path.with_extension("repaired"), |_| ()));
}

/// Nothing is left of the new store.
fn failing_repair(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    fails_alike(|| faulty("fsync:error=EIO", &[], "repairs", &path), &["store.repaired", "Input/output error"]);
    assert!(!path.with_extension("repaired").exists());
    small().repair(&path, path.with_extension("repaired"), |_| ()).unwrap();
    assert_rows(&path.with_extension("repaired"), 10);
}
