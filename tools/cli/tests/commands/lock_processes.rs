//! lock run: what its command starts, how all of it ends, and who runs next.

use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use percolite::Store;
use percolite::env::{BootClock, Env, JoinHandle, Parker, SystemEnv};

use crate::common::{Ran, Sandbox};
use crate::lock::{WAITS, ends, kill, wait_for};

/// Starts processes that work on: in the background, in another session, and without the parent
/// that has started them. Each writes to its file `beat.X`.
const STARTS_WORKERS: &str = "\
    work='while [ ! -e enough ]; do echo beat >> beat.$0 || exit; sleep 0.02; done'
    sh -c \"$work\" background &
    setsid sh -c \"$work\" session &
    (setsid nohup sh -c \"$work\" orphan > nohup.out 2>&1 &)
    until [ -e beat.background ] && [ -e beat.session ] && [ -e beat.orphan ]; do sleep 0.02; done
    echo $PERCOLITE_LOCK_TOKEN > token";

/// Counts the beats twice. The counts are the same if nothing works.
const COUNTS: &str = "cat beat.* | wc -l; sleep 0.4; cat beat.* | wc -l";

/// Takes the lock, and checks that nothing works while it is held.
#[track_caller]
fn assert_nothing_works(sandbox: &Sandbox, what: &str) {
    let counts = ends(sandbox.lock_run("shop job --wait 50s", COUNTS)).succeeds();
    let counts: Vec<u64> = counts.lines().map(|count| count.trim().parse().unwrap()).collect();
    assert!(counts.len() == 2 && counts[0] == counts[1] && counts[0] > 0, "{what}: {counts:?}");
}

fn sandbox_with_workers(line: &str, then: &str) -> (Sandbox, std::process::Child) {
    let sandbox = Sandbox::with_shop();
    let run = sandbox.lock_run(line, &format!("{STARTS_WORKERS}; {then}"));
    (sandbox, run)
}

#[test]
fn nothing_that_a_command_started_works_when_another_holds_the_lock() {
    let (sandbox, run) = sandbox_with_workers("shop job", "exit 5");
    wait_for("the workers do not run", || sandbox.has("token"));
    assert_nothing_works(&sandbox, "the command has ended");
    assert_eq!(ends(run).code, Some(5));
    for (what, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("KILL", 137)] {
        let (sandbox, run) = sandbox_with_workers("shop job --ttl 5s", "exec sleep 60");
        wait_for("the workers do not run", || sandbox.has("token"));
        kill(&format!("-{what}"), run.id());
        assert_nothing_works(&sandbox, what);
        // A process that was killed has no code.
        assert_eq!(ends(run).code, Some(code).filter(|code| *code != 137), "{what}");
    }
    let (sandbox, run) = sandbox_with_workers("shop job --ttl 5s", "exec sleep 60");
    wait_for("the workers do not run", || sandbox.has("token"));
    kill("-KILL", sandbox.inner_process("job"));
    assert_nothing_works(&sandbox, "the inner process is killed");
    ends(run).fails(8, "was ended by signal 9, and has ended its command");
}

#[test]
fn a_lock_that_was_released_elsewhere_is_granted_when_the_command_has_ended() {
    for forced in [false, true] {
        // The lease would be renewed after half an hour.
        let (sandbox, run) = sandbox_with_workers("shop job --ttl 1h", "exec sleep 60");
        wait_for("the workers do not run", || sandbox.read("token").ends_with('\n'));
        let token = sandbox.read("token");
        if forced {
            let store = sandbox.open();
            assert!(store.force_unlock("job", token.trim_end().parse().unwrap()).unwrap());
            store.close().unwrap();
        } else {
            sandbox.ok(&format!("lock release shop job {token}"));
        }
        assert_nothing_works(&sandbox, "released by its token");
        ends(run).fails(8, "no grant of the lock has this token; terminated sh");
    }
}

#[test]
fn a_shared_command_that_lost_its_lock_keeps_only_exclusive_ones_out() {
    let (sandbox, run) = sandbox_with_workers("shop job --ttl 1h --shared", "exec sleep 60");
    wait_for("the workers do not run", || sandbox.has("token"));
    assert_eq!(ends(sandbox.lock_run("shop job --shared --wait 50s", "echo beside")).succeeds(), "beside\n");
    sandbox.run("lock run shop job --wait 0s -- true").fails(8, "is held by \"percolite lock run\"");
    kill("-TERM", run.id());
    assert_nothing_works(&sandbox, "a shared lock");
    ends(run);
}

/// The lease cannot be renewed, and could be taken over by the program that has the store open.
#[test]
fn a_command_ends_before_its_lease_if_the_store_is_open_elsewhere() {
    let (sandbox, run) = sandbox_with_workers("shop job --ttl 10s", "exec sleep 60");
    wait_for("the workers do not run", || sandbox.has("token"));
    let store = sandbox.open();
    let guard = store.lock("job").unwrap();
    let count = || ["background", "session", "orphan"].map(|worker| sandbox.read(&format!("beat.{worker}")).len());
    let before = count();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(count(), before, "the command works while a program holds the lock");
    drop(guard);
    store.close().unwrap();
    ends(run).fails(8, "could not be renewed before it expires: the store is open in another process; terminated sh");
}

/// Kills both processes of `lock run` at once, and waits until the lease has ended.
fn kill_both(sandbox: &Sandbox, mut run: std::process::Child, lease: Duration) {
    let inner = sandbox.inner_process("job");
    kill("-STOP", run.id());
    kill("-KILL", inner);
    run.kill().unwrap();
    run.wait().unwrap();
    std::thread::sleep(lease);
}

/// The processes that an error recommends to kill.
fn killed_by_advice(ran: &Ran) -> Vec<String> {
    let pids = ran.err.split_once("; to end it: kill ").unwrap_or_else(|| panic!("no advice in {}", ran.err)).1;
    pids.split(';').next().unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Some may have ended meanwhile.
fn kill_all(pids: impl IntoIterator<Item = String>) {
    let _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status();
}

#[test]
fn what_survives_lock_run_keeps_the_next_command_out_and_is_named() {
    let (sandbox, run) = sandbox_with_workers("shop job --ttl 5s", "exec sleep 60");
    wait_for("the workers do not run", || sandbox.has("token"));
    kill_both(&sandbox, run, Duration::from_secs(5));
    sandbox.run("lock acquire shop job --ttl 1h --wait 0s").fails(8, "still runs: process ");
    let ran = sandbox.run("lock run shop job --wait 500ms -- true").fails(8, "(sleep)");
    // The command and its three workers, and what these run at this moment.
    let pids = killed_by_advice(&ran);
    assert!(pids.len() >= 4, "{}", ran.err);
    kill_all(pids);
    assert_nothing_works(&sandbox, "the survivors have ended");
}

/// Closes all files but the standard ones, as daemons and Python's `subprocess` do.
const CLOSES_FILES: &str = "for fd in $(seq 3 99); do eval \"exec $fd>&-\"; done;";

/// A loop that works in a session of its own, started by a command that waits for it without any
/// file of `lock run`. Both are started with this environment.
fn command_without_files(environment: &str) -> String {
    let work = "echo $$ > pid; while [ ! -e enough ]; do echo beat >> beat.closed || exit; sleep 0.02; done";
    format!(
        "{environment} setsid bash -c '{CLOSES_FILES} {work}' <&- > /dev/null 2>&1 & \
             until [ -e beat.closed ]; do sleep 0.02; done; exec bash -c '{CLOSES_FILES} exec sleep 60'"
    )
}

#[test]
fn what_survives_lock_run_without_its_files_is_ended_by_the_next_holder() {
    for (mode, next) in [("", ""), ("--shared", ""), ("", "--shared")] {
        let sandbox = Sandbox::with_shop();
        let run = sandbox.lock_run(&format!("shop job --ttl 5s {mode}"), &command_without_files(""));
        wait_for("it does not work", || sandbox.has("beat.closed"));
        kill_both(&sandbox, run, Duration::from_secs(5));
        let ran = sandbox.run(&format!("lock run shop job {next} --wait 500ms -- true")).fails(8, "(sleep)");
        assert!(killed_by_advice(&ran).contains(&sandbox.read("pid").trim_end().to_owned()), "{}", ran.err);
        let ran = ends(sandbox.lock_run(&format!("shop job {next} --wait 50s"), COUNTS));
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(ran.err.starts_with("warning: a killed `lock run` has left processes under lock"), "{}", ran.err);
        let counts: Vec<&str> = ran.out.split_whitespace().collect();
        assert!(counts.len() == 2 && counts[0] == counts[1], "{mode} {next}: {counts:?}");
        assert_eq!(std::fs::read_dir(sandbox.path().join("shop/locks")).unwrap().count(), 0, "{mode} {next}");
    }
}

#[test]
fn shared_commands_do_not_wait_for_what_a_shared_one_has_left() {
    let sandbox = Sandbox::with_shop();
    let run = sandbox.lock_run("shop job --ttl 5s --shared", &command_without_files(""));
    wait_for("it does not work", || sandbox.has("beat.closed"));
    kill_both(&sandbox, run, Duration::from_secs(5));
    assert_eq!(sandbox.ok("lock run shop job --shared --wait 0s -- echo beside"), "beside\n");
    sandbox.file("enough", "");
}

#[test]
fn a_survivor_that_was_found_once_is_found_when_its_parent_has_ended() {
    let sandbox = Sandbox::with_shop();
    let run = sandbox.lock_run("shop job --ttl 5s", &command_without_files("env -i"));
    wait_for("it does not work", || sandbox.has("beat.closed"));
    kill_both(&sandbox, run, Duration::from_secs(5));
    let ran = sandbox.run("lock run shop job --wait 0s -- true").fails(8, "(sleep)");
    let (pids, worker) = (killed_by_advice(&ran), sandbox.read("pid").trim_end().to_owned());
    assert!(pids.contains(&worker), "{}", ran.err);
    kill_all(pids.into_iter().filter(|pid| *pid != worker));
    let ran = sandbox.run("lock run shop job --wait 500ms -- true").fails(8, "still runs");
    assert!(killed_by_advice(&ran).contains(&worker), "{}", ran.err);
    let ran = ends(sandbox.lock_run("shop job --wait 50s", COUNTS));
    let counts: Vec<&str> = ran.out.split_whitespace().collect();
    assert!(counts.len() == 2 && counts[0] == counts[1], "{counts:?} {}", ran.err);
}

#[test]
fn a_survivor_with_another_environment_whose_parent_has_ended_is_found() {
    let sandbox = Sandbox::with_shop();
    let run = sandbox.lock_run("shop job --ttl 5s", &command_without_files("env -i"));
    wait_for("it does not work", || sandbox.has("beat.closed"));
    // What is started in the last second is not found, as docs/command-line.md says.
    std::thread::sleep(Duration::from_secs(3));
    let command = children_of(sandbox.inner_process("job"));
    kill_both(&sandbox, run, Duration::ZERO);
    kill_all(command);
    std::thread::sleep(Duration::from_secs(5));
    let ran = sandbox.run("lock run shop job --wait 0s -- true").fails(8, "still runs");
    assert!(killed_by_advice(&ran).contains(&sandbox.read("pid").trim_end().to_owned()), "{}", ran.err);
    sandbox.file("enough", "");
    wait_for("the worker does not end", || sandbox.run("lock run shop job --wait 0s -- true").code == Some(0));
}

#[test]
fn a_pipe_in_the_place_of_a_file_of_a_lock_is_an_error() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("lock run shop job -- cp -r shop/locks seen");
    for name in sandbox.files("seen", |name| !name.contains("exclusive")) {
        let file = sandbox.path().join("shop/locks").join(name.file_name().unwrap());
        let _ = std::fs::create_dir(sandbox.path().join("shop/locks"));
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        sandbox.run("lock run shop job --wait 1s -- true").fails(1, "it is not a regular file; remove it");
        std::fs::remove_file(file).unwrap();
    }
    sandbox.ok("lock run shop job -- true");
}

fn children_of(process: u64) -> Vec<String> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    children.split_whitespace().map(str::to_owned).collect()
}

/// A job that another process runs later has the environment of the command, as with `at`.
#[test]
fn what_runs_after_lock_run_has_ended_regularly_does_not_count() {
    let sandbox = Sandbox::with_shop();
    let marks = "PERCOLITE_LOCK_MARKS";
    let value = sandbox.ok(&format!("lock run shop job -- printenv {marks}"));
    let mut job = Command::new("sleep").arg("60").env(marks, value.trim_end()).spawn().unwrap();
    assert_eq!(sandbox.ok("lock run shop job --wait 0s -- echo granted"), "granted\n");
    job.kill().unwrap();
    job.wait().unwrap();
}

#[test]
fn both_processes_of_lock_run_say_what_they_are() {
    let sandbox = Sandbox::with_shop();
    let run = sandbox.lock_run("shop job", &format!("echo > running; {WAITS}"));
    wait_for("it does not run", || sandbox.has("running"));
    let of = |pid: u64, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let inner = sandbox.inner_process("job");
    assert_eq!((of(inner, "comm"), of(run.id().into(), "comm")), ("percolite\n".into(), "percolite\n".into()));
    assert!(of(inner, "cmdline").starts_with("percolite: keeper of lock \"job\":\0lock\0run\0"));
    assert!(of(run.id().into(), "cmdline").contains("percolite\0lock\0run\0"));
    sandbox.file("enough", "");
    ends(run).succeeds();
}

#[test]
fn a_process_that_ignores_term_is_killed_after_the_command() {
    let sandbox = Sandbox::with_shop();
    let script = "setsid sh -c \"trap '' TERM; while :; do echo beat >> beat.deaf; sleep 0.02; done\" & \
                  until [ -e beat.deaf ]; do sleep 0.02; done; echo done";
    let run = sandbox.lock_run("shop job", script);
    wait_for("it does not run", || sandbox.has("beat.deaf"));
    assert_nothing_works(&sandbox, "a process that ignores TERM");
    assert_eq!(ends(run).succeeds(), "done\n");
}

#[test]
fn lock_run_within_lock_run_has_processes_of_its_own() {
    let sandbox = Sandbox::with_shop();
    let inner = "$percolite lock run shop inner -- sh -c 'env | grep -c PERCOLITE_LOCK_RUN; exit 6'";
    let ran = ends(sandbox.lock_run("shop outer", inner));
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(6), "0\n", ""));
}

#[test]
fn no_files_of_turns_are_left() {
    let sandbox = Sandbox::with_shop();
    let left = || std::fs::read_dir(sandbox.path().join("shop/locks")).unwrap().count();
    for name in ["one", "two", "three"] {
        sandbox.ok(&format!("lock run shop {name} -- true"));
    }
    assert_eq!(left(), 0);
    let token = sandbox.ok("lock acquire shop four --ttl 1h");
    sandbox.run("lock run shop four --wait 100ms -- true").fails(8, "is held");
    sandbox.ok(&format!("lock release shop four {token}"));
    assert_eq!(left(), 0);
}

#[test]
fn waiting_commands_run_in_the_order_of_their_arrival() {
    let sandbox = Sandbox::with_shop();
    let holder = sandbox.lock_run("shop job", &format!("echo > running; {WAITS}"));
    wait_for("it does not run", || sandbox.has("running"));
    // The kernel lists the processes that hold or wait for each file.
    let waiting = || {
        let entries = std::fs::read_dir(sandbox.path().join("shop/locks")).unwrap().flatten();
        let queue = entries.map(|entry| entry.path()).find(|path| path.extension().unwrap() == "queue");
        let queue = queue.map_or(0, |queue| std::fs::metadata(queue).unwrap().ino());
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().filter(|line| line.contains(&format!(":{queue} "))).count()
    };
    let mut commands = Vec::new();
    for number in 1..=8 {
        commands.push(sandbox.lock_run("shop job --wait 50s", &format!("echo {number} >> order")));
        wait_for("the command does not wait", || waiting() == number);
    }
    sandbox.file("enough", "");
    ends(holder).succeeds();
    commands.into_iter().for_each(|command| assert_eq!(ends(command).succeeds(), ""));
    assert_eq!(sandbox.read("order").split_whitespace().collect::<String>(), "12345678");
}

#[test]
fn of_many_waiting_commands_none_gives_up() {
    let sandbox = Sandbox::with_shop();
    let holder = sandbox.lock_run("shop job", &format!("echo > running; {WAITS}"));
    wait_for("it does not run", || sandbox.has("running"));
    let commands: Vec<_> =
        (0..32).map(|_| sandbox.lock_run("shop job --wait 55s", "mkdir alone && sleep 0.02 && rmdir alone")).collect();
    std::thread::sleep(Duration::from_secs(1));
    sandbox.file("enough", "");
    ends(holder).succeeds();
    commands.into_iter().for_each(|command| assert_eq!(ends(command).succeeds(), ""));
}

/// The clocks of this machine, with a wall clock that is two hours ahead.
struct Ahead(SystemEnv);

impl Env for Ahead {
    fn unix_millis(&self) -> u64 {
        self.0.unix_millis() + 2 * 3_600_000
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn boot_clock(&self) -> Option<BootClock> {
        self.0.boot_clock()
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn sleep(&self, time: Duration) {
        self.0.sleep(time);
    }

    fn parker(&self) -> Arc<dyn Parker> {
        self.0.parker()
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        self.0.spawn(name, work)
    }
}

#[test]
fn a_lease_granted_while_the_clock_was_ahead_ends_after_its_time() {
    let sandbox = Sandbox::with_shop();
    let ahead = || Store::builder().env(Arc::new(Ahead(SystemEnv::default()))).open(sandbox.path().join("shop"));
    let store = ahead().unwrap();
    store.get_lock("job", Duration::from_secs(4)).unwrap().unwrap();
    store.close().unwrap();
    sandbox.run("lock run shop job --wait 0s -- true").fails(8, "is held");
    assert_eq!(sandbox.ok("lock run shop job --wait 50s -- echo mine"), "mine\n");
    // A clock that jumps ahead while a lease is held does not end it.
    let token = sandbox.ok("lock acquire shop job --ttl 1h");
    let store = ahead().unwrap();
    assert!(store.try_lock("job").unwrap().is_none());
    store.close().unwrap();
    assert_eq!(sandbox.token_of("job").unwrap(), token.trim_end());
}

/// Ctrl-Z stops `lock run` and its command, `fg` continues them.
#[test]
fn a_job_is_stopped_and_continued_at_a_terminal() {
    let sandbox = Sandbox::with_shop();
    sandbox.file("command", format!("echo > running; {WAITS}; read line; echo \"read $line\""));
    let percolite = env!("CARGO_BIN_EXE_percolite");
    let mut terminal = Command::new("env");
    terminal.args(["--default-signal=INT,TSTP,TTIN,TTOU", "script", "-qefc", "exec sh -im", "/dev/null"]);
    terminal.current_dir(sandbox.path()).env("PS1", "$ ").env_remove("ENV");
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    let mut types = |keys_typed: &str| std::io::Write::write_all(&mut keys, keys_typed.as_bytes()).unwrap();
    types(&format!("{percolite} lock run shop nightly -- sh command\n"));
    wait_for("it does not run", || sandbox.has("running"));
    let inner = sandbox.inner_process("nightly");
    let state_of = |pid: u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    types("\x1a");
    wait_for("it is not stopped", || state_of(inner) == 'T');
    types("fg\n");
    wait_for("it does not continue", || state_of(inner) != 'T');
    // The command is in the foreground: it reads from the terminal.
    sandbox.file("enough", "");
    std::thread::sleep(Duration::from_millis(300));
    types("a line\nexit\n");
    drop(keys);
    let shown = terminal.wait_with_output().unwrap().stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("read a line"), "{shown}");
    assert_eq!(sandbox.token_of("nightly"), None);
}
