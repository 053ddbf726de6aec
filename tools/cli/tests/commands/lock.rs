//! lock acquire, release and run, and locks: named locks among processes.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use percolite::Store;

use crate::common::{Ran, Sandbox};

/// The timeout of each wait in a test.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub fn wait_for(failure: &str, mut is_reached: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_reached() {
        assert!(since.elapsed() < TEST_TIMEOUT, "{failure}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Sandbox {
    /// Starts `lock run` with a shell script, in which `$percolite` is the program. Signals have
    /// their default action, even if the process that runs the tests ignores them.
    pub fn lock_run(&self, line: &str, script: &str) -> Child {
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_percolite"), "lock", "run"]);
        command.args(line.split_whitespace()).args(["--", "sh", "-c", script]).current_dir(self.path());
        command.env("percolite", env!("CARGO_BIN_EXE_percolite")).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub fn has(&self, file: &str) -> bool {
        self.path().join(file).exists()
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path().join(file)).unwrap_or_default()
    }

    /// The token of the holder of a lock, as `locks` shows it. `None` if the lock is not held, and
    /// while another process has the store open.
    pub fn token_of(&self, name: &str) -> Option<String> {
        self.held_lock(name).map(|lock| lock["token"].as_str().unwrap().to_owned())
    }

    /// A lock that is held, as `locks` shows it.
    fn held_lock(&self, name: &str) -> Option<serde_json::Value> {
        let ran = self.run("locks shop --json");
        let shown = ran.out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut held = shown.filter(|lock| lock["kind"] == "named" && lock["target"] == name);
        held.next()
    }

    /// The inner process of the `lock run` that holds the lock: the one that renews it.
    pub fn inner_process(&self, name: &str) -> u64 {
        let mut held = None;
        wait_for("the lock is not held", || {
            held = self.held_lock(name);
            held.is_some()
        });
        held.unwrap()["holder"]["pid"].as_u64().unwrap()
    }

    /// The token of a lock that is held; retries while another process has the store open.
    pub fn token_of_held(&self, name: &str) -> String {
        let mut token = None;
        wait_for("the lock is not held", || {
            token = self.token_of(name);
            token.is_some()
        });
        token.unwrap()
    }

    /// Opens the store; retries while another process has it open.
    pub fn open(&self) -> Store {
        let since = Instant::now();
        loop {
            match Store::open(self.path().join("shop")) {
                Ok(store) => return store,
                Err(err) => assert!(since.elapsed() < TEST_TIMEOUT, "{err}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub fn kill(signal: &str, pid: impl ToString) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// A shell loop that ends when a file `enough` exists, or else after more than [`TEST_TIMEOUT`].
pub const WAITS: &str = "n=0; while [ ! -e enough ] && [ $n -lt 2000 ]; do sleep 0.05; n=$((n + 1)); done";

/// Waits for the end of the process, up to [`TEST_TIMEOUT`].
pub fn ends(mut child: Child) -> Ran {
    let since = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if since.elapsed() > TEST_TIMEOUT {
            // The output is not read: the read could block, because the command may still run with
            // the pipes open.
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the process does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ran::of("lock run", child.wait_with_output().unwrap())
}

#[test]
fn eight_processes_run_one_migration_once() {
    let sandbox = Sandbox::with_shop();
    // The command does not use the store, so only the lock makes processes wait. The sleep between
    // the check of `done` and its creation gives other processes time to run.
    let migrate = "test -e done || { sleep 0.2; echo $PERCOLITE_LOCK_TOKEN >> ran; : > done; }; echo $PERCOLITE_LOCK_TOKEN >> tokens";
    let all: Vec<Child> = (0..8).map(|_| sandbox.lock_run("shop migration --wait 50s", migrate)).collect();
    all.into_iter().for_each(|child| assert_eq!(ends(child).succeeds(), ""));
    assert_eq!(sandbox.read("ran").lines().count(), 1, "{}", sandbox.read("ran"));
    let tokens = sandbox.read("tokens");
    let mut sorted: Vec<&str> = tokens.lines().collect();
    sorted.sort_by_key(|token| {
        let (millis, count) = token.split_once('.').unwrap();
        (millis.parse::<u64>().unwrap(), count.parse::<u64>().unwrap())
    });
    sorted.dedup();
    assert_eq!((sorted.len(), sorted), (8, tokens.lines().collect()), "later holders have greater tokens");
}

#[test]
fn a_killed_holder_keeps_the_lock_until_its_lease_expires() {
    let sandbox = Sandbox::with_shop();
    let mut holder = sandbox.lock_run("shop nightly --ttl 4s", "echo $$ > running; exec sleep 60");
    wait_for("it does not run", || sandbox.read("running").ends_with('\n'));
    let inner = sandbox.inner_process("nightly");
    // The lease of four seconds is renewed after half of that, so at least two seconds are left.
    let killed_at = Instant::now();
    // Either process alone would end the command, and the outer one's end releases the lock.
    kill("-STOP", holder.id());
    kill("-KILL", inner);
    holder.kill().unwrap();
    holder.wait().unwrap();
    sandbox.run("lock acquire shop nightly --ttl 1h --wait 0s").fails(8, "percolite lock run");
    kill("-KILL", sandbox.read("running").trim_end());
    let next = sandbox.run("lock acquire shop nightly --ttl 1h --wait 50s");
    let waited = killed_at.elapsed();
    assert_eq!(sandbox.token_of("nightly").unwrap(), next.succeeds().trim_end());
    assert!(waited > Duration::from_millis(1900), "the lease had not expired: {waited:?}");
}

#[test]
fn a_command_that_keeps_the_store_open_is_not_terminated() {
    let sandbox = Sandbox::with_shop();
    let script = "{ sleep 3; echo put fruit kiwi green; sleep 1; } | $percolite shell shop && echo done";
    let ran = ends(sandbox.lock_run("shop nightly --ttl 1s", script));
    assert_eq!((ran.code, ran.out.lines().last()), (Some(0), Some("done")), "{} {}", ran.out, ran.err);
    let expired = "warning: lock \"nightly\" expired before the command ended";
    assert!(ran.err.starts_with(expired) && ran.err.contains("; another process may have held it"), "{}", ran.err);
    assert_eq!(sandbox.ok("get shop fruit kiwi"), "green\n");
}

#[test]
fn a_command_is_terminated_when_another_token_holds_the_lock() {
    let sandbox = Sandbox::with_shop();
    let script = format!("trap 'echo got TERM; exit 0' TERM; echo > running; {WAITS}");
    let holder = sandbox.lock_run("shop nightly --ttl 4s", &script);
    wait_for("it does not run", || sandbox.has("running"));
    let store = sandbox.open();
    let token = store.lock_holders("nightly").unwrap()[0].token.unwrap();
    assert!(store.force_unlock("nightly", token).unwrap());
    let other = store.get_lock("nightly", Duration::from_secs(3600)).unwrap().unwrap();
    store.close().unwrap();
    let ran = ends(holder).fails(8, &format!("token {other}"));
    assert_eq!(ran.out, "got TERM\n");
    // `lock run` has not released the lock that `other` now holds.
    assert_eq!(sandbox.token_of("nightly").unwrap(), other.to_string());
}

#[test]
fn a_signal_ends_the_wait_immediately() {
    let sandbox = Sandbox::with_shop();
    let token = sandbox.ok("lock acquire shop nightly --ttl 1h");
    for signal in ["-INT", "-TERM", "-HUP"] {
        let waiting = sandbox.lock_run("shop nightly --wait 1h", "echo > running");
        wait_for_signal_handler(&waiting);
        // After this pause, the waiting process sleeps until the lease expires.
        std::thread::sleep(Duration::from_millis(300));
        let since = Instant::now();
        kill(signal, waiting.id());
        ends(waiting).fails(130, "interrupted");
        assert!(since.elapsed() < Duration::from_secs(10), "{signal}: {:?}", since.elapsed());
    }
    assert!(!sandbox.has("running"));
    assert_eq!(sandbox.token_of("nightly").unwrap(), token.trim_end());
}

#[test]
fn a_token_releases_once() {
    let sandbox = Sandbox::with_shop();
    let token = sandbox.ok("lock acquire shop nightly --ttl 1h");
    assert_eq!(token.lines().count(), 1, "{token}");
    let release = format!("lock release shop nightly {token}");
    assert_eq!(sandbox.ok(&release), "");
    let no_grant = format!("no grant of lock \"nightly\" has the token {}; the lock is ", token.trim_end());
    sandbox.run(&release).fails(3, &format!("{no_grant}not held; percolite locks shop shows the holders"));
    // The same token does not release the next grant of the lock either.
    let second = sandbox.ok("lock acquire shop nightly --ttl 1h");
    let report = sandbox.run(&release).fails(3, &format!("{no_grant}held by \"percolite lock acquire\", process ")).err;
    assert!(report.contains(&format!(", token {}, ", second.trim_end())), "{report}");
    assert_eq!(sandbox.token_of("nightly").unwrap(), second.trim_end());
}

#[test]
fn a_signal_reaches_the_command_and_the_lock_is_released() {
    let sandbox = Sandbox::with_shop();
    for (signal, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
        let name = signal.trim_start_matches('-');
        let script = format!("trap 'echo got {name}; exit 7' {name}; echo > running; {WAITS}");
        let holder = sandbox.lock_run("shop nightly --ttl 1h", &script);
        wait_for("it does not run", || sandbox.has("running"));
        kill(signal, holder.id());
        let ran = ends(holder);
        assert_eq!((ran.code, ran.out, ran.err.as_str()), (Some(7), format!("got {name}\n"), ""));
        let token = sandbox.ok("lock acquire shop nightly --ttl 1h --wait 0s");
        sandbox.ok(&format!("lock release shop nightly {token}"));
        fs::remove_file(sandbox.path().join("running")).unwrap();
        // A command without a handler is ended by the signal.
        let holder = sandbox.lock_run("shop nightly --ttl 1h", "echo > running; exec sleep 60");
        wait_for("it does not run", || sandbox.has("running"));
        kill(signal, holder.id());
        assert_eq!(ends(holder).code, Some(128 + number), "{signal}");
        assert_eq!(sandbox.token_of("nightly"), None);
        fs::remove_file(sandbox.path().join("running")).unwrap();
    }
}

/// Waits until the process handles SIGINT.
fn wait_for_signal_handler(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    wait_for("it installs no signal handler", || {
        let status = fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(caught, 16).unwrap() & 2 != 0
    });
}

#[test]
fn ctrl_c_at_a_terminal_reaches_the_command_once() {
    let sandbox = Sandbox::with_shop();
    // A shell runs between `script` and `lock run`, because `script` stops itself if its child is
    // stopped.
    let percolite = env!("CARGO_BIN_EXE_percolite");
    sandbox.file("typed", format!("trap : INT\n{percolite} lock run shop nightly -- sh command\nexit $?\n"));
    let command = format!("trap 'echo got it; : > got' INT; : > running; {WAITS}; echo end");
    sandbox.file("command", command);
    let mut terminal = Command::new("env");
    terminal
        .args(["--default-signal=INT", "script", "-qefc", "exec sh typed", "/dev/null"])
        .current_dir(sandbox.path());
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    wait_for("it does not run", || sandbox.has("running"));
    let holder = sandbox.json("locks shop --json")[0]["holder"]["pid"].as_u64().unwrap();
    // `lock run` is stopped, so that the command receives the terminal's signal before `lock run`
    // could forward one.
    kill("-STOP", holder);
    let mut typed = terminal.stdin.take().unwrap();
    std::io::Write::write_all(&mut typed, b"\x03").unwrap();
    wait_for("the command was not interrupted", || sandbox.has("got"));
    kill("-CONT", holder);
    std::thread::sleep(Duration::from_millis(500));
    sandbox.file("enough", "");
    let Output { status, stdout, .. } = terminal.wait_with_output().unwrap();
    let shown = String::from_utf8(stdout).unwrap();
    assert_eq!((status.code(), shown.matches("got it").count()), (Some(0), 1), "{shown}");
    assert!(shown.contains("end"), "{shown}");
    assert_eq!(sandbox.token_of("nightly"), None);
}

#[test]
fn an_ignored_signal_is_ignored_by_the_command_too() {
    let sandbox = Sandbox::with_shop();
    let script = format!("echo > running; {WAITS}; echo done");
    let mut command = Command::new("env");
    command.args(["--ignore-signal=HUP", env!("CARGO_BIN_EXE_percolite"), "lock", "run", "shop", "nightly", "--"]);
    command.args(["sh", "-c", &script]).current_dir(sandbox.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let holder = command.spawn().unwrap();
    wait_for("it does not run", || sandbox.has("running"));
    kill("-HUP", holder.id());
    std::thread::sleep(Duration::from_millis(200));
    sandbox.file("enough", "");
    assert_eq!(ends(holder).succeeds(), "done\n");
}

#[test]
fn lock_run_renews_the_lock_and_releases_it_at_the_end() {
    let sandbox = Sandbox::with_shop();
    let holder = sandbox.lock_run("shop nightly --ttl 2s", &format!("echo > running; {WAITS}; echo done"));
    wait_for("it does not run", || sandbox.has("running"));
    let since = Instant::now();
    let token = sandbox.token_of_held("nightly");
    while since.elapsed() < Duration::from_secs(5) {
        // Waiting processes do not delay the renewal.
        sandbox
            .run("lock acquire shop nightly --ttl 1h --wait 300ms")
            .fails(8, "lock \"nightly\" is held by \"percolite lock run\"");
    }
    assert_eq!(sandbox.token_of_held("nightly"), token);
    sandbox.file("enough", "");
    assert_eq!(ends(holder).succeeds(), "done\n");
    assert_eq!(sandbox.token_of("nightly"), None);
}

#[test]
fn a_lock_that_is_not_renewed_in_time_is_lost() {
    let sandbox = Sandbox::with_shop();
    let holder = sandbox.lock_run("shop nightly --ttl 4s", &format!("echo > running; {WAITS}"));
    wait_for("it does not run", || sandbox.has("running"));
    let inner = sandbox.inner_process("nightly");
    kill("-STOP", inner);
    std::thread::sleep(Duration::from_millis(4500));
    kill("-CONT", inner);
    ends(holder).fails(8, "is lost: it expired before it could be renewed; terminated sh");
}

#[test]
fn a_release_by_the_command_itself_is_a_warning() {
    let sandbox = Sandbox::with_shop();
    let ran =
        ends(sandbox.lock_run("shop nightly", "$percolite lock release shop nightly $PERCOLITE_LOCK_TOKEN; exit 5"));
    assert_eq!((ran.code, ran.out.as_str()), (Some(5), ""), "{}", ran.err);
    assert!(ran.err.starts_with("warning: lock \"nightly\" was released by its token"), "{}", ran.err);
}

#[test]
fn a_lease_that_expires_after_the_command_is_no_warning() {
    let sandbox = Sandbox::with_shop();
    let holder = sandbox.lock_run("shop nightly --ttl 6s", &format!("echo > running; {WAITS}"));
    wait_for("it does not run", || sandbox.has("running"));
    // The store is open elsewhere until the lease has expired, so the lock cannot be released.
    let store = sandbox.open();
    sandbox.file("enough", "");
    assert_eq!(ends(holder).succeeds(), "");
    store.close().unwrap();
}

#[test]
fn a_command_that_does_not_end_when_the_lock_is_lost_is_killed() {
    let sandbox = Sandbox::with_shop();
    let script = format!("trap '' TERM; echo $PERCOLITE_LOCK_TOKEN > token; {WAITS}");
    let holder = sandbox.lock_run("shop nightly --ttl 2s", &script);
    wait_for("it does not run", || sandbox.read("token").ends_with('\n'));
    let since = Instant::now();
    sandbox.ok(&format!("lock release shop nightly {}", sandbox.read("token")));
    ends(holder).fails(8, "terminated sh; percolite locks shop shows the holders");
    assert!(since.elapsed() > Duration::from_secs(9), "{:?}", since.elapsed());
}

#[test]
fn lock_run_has_the_exit_code_of_its_command() {
    let sandbox = Sandbox::with_shop();
    assert_eq!(ends(sandbox.lock_run("shop nightly", "exit 42")).code, Some(42));
    assert_eq!(ends(sandbox.lock_run("shop nightly", "kill -9 $$")).code, Some(128 + 9));
    sandbox.run("lock run shop nightly -- ./no-such-program").fails(127, "./no-such-program cannot be run");
    sandbox.file("text", "no program");
    sandbox.run("lock run shop nightly -- ./text").fails(126, "./text cannot be run");
    sandbox.run("lock run shop nightly").fails(2, "<COMMAND>");
    assert_eq!(sandbox.token_of("nightly"), None);
}

/// A command that keeps the store open for longer than the lease, and renews the lease itself. It
/// is this test program.
#[test]
fn a_command_attaches_the_lock_by_its_token() {
    if let Some(token) = std::env::var_os("PERCOLITE_LOCK_TOKEN") {
        let store = Store::open("shop").unwrap();
        let token = token.into_string().unwrap().parse().unwrap();
        let guard = store.attach_lock("nightly", token).unwrap();
        std::thread::sleep(Duration::from_secs(4));
        assert!(guard.is_held());
        guard.detach().unwrap();
        store.close().unwrap();
        fs::write("done", "").unwrap();
        return;
    }
    let sandbox = Sandbox::with_shop();
    let tests = std::env::current_exe().unwrap();
    let script = format!("exec {} --exact lock::a_command_attaches_the_lock_by_its_token", tests.display());
    let ran = ends(sandbox.lock_run("shop nightly --ttl 2s", &script));
    assert_eq!((ran.code, ran.err.as_str(), sandbox.has("done")), (Some(0), "", true), "{}", ran.out);
    assert_eq!(sandbox.token_of("nightly"), None);
}

#[test]
fn shared_locks_coexist_and_exclude_exclusive_locks() {
    let sandbox = Sandbox::with_shop();
    let tokens =
        ["a", "b"].map(|reason| sandbox.ok(&format!("lock acquire shop nightly --ttl 1h --shared --reason {reason}")));
    let held = sandbox.run("lock acquire shop nightly --ttl 1h --wait 0s").fails(8, "(\"a\"), token ").err;
    assert!(held.contains("; by ") && held.contains("(\"b\")"), "{held}");
    for token in &tokens {
        sandbox.ok(&format!("lock release shop nightly {token}"));
    }
    sandbox.ok("lock acquire shop nightly --ttl 1h --wait 0s");
    sandbox.run("lock acquire shop nightly --ttl 1h --wait 0s --shared").fails(8, "percolite locks shop");
}

#[test]
fn lock_commands_wait_for_a_busy_store_up_to_wait() {
    let sandbox = Sandbox::with_shop();
    let store = Store::open(sandbox.path().join("shop")).unwrap();
    for line in ["lock acquire shop nightly --ttl 1h --wait 500ms", "lock run shop nightly --wait 0s -- true"] {
        sandbox.run(line).fails(4, "shop is open in another process; waited ");
    }
    sandbox
        .run("lock release shop nightly 5.0 --wait 0s")
        .fails(4, "shop is open in another process; waited 0s for it");
    let waiting = sandbox.lock_run("shop nightly", "echo done");
    wait_for_signal_handler(&waiting);
    std::thread::sleep(Duration::from_millis(300));
    store.close().unwrap();
    assert_eq!(ends(waiting).succeeds(), "done\n");
}

/// The bounds of --ttl.
const TTL_BOUNDS: &str = "it must be a time with a unit, from 100 ms to 366 days, for example 1h 30m";

#[test]
fn invalid_lock_commands_are_refused() {
    let sandbox = Sandbox::with_shop();
    for (line, code, what) in [
        ("lock acquire shop nightly", 2, "--ttl"),
        ("lock acquire shop nightly --ttl 1ms", 2, TTL_BOUNDS),
        ("lock acquire shop nightly --ttl long", 2, TTL_BOUNDS),
        ("lock acquire shop nightly --ttl 0", 2, TTL_BOUNDS),
        ("lock acquire shop nightly --ttl 1y", 2, TTL_BOUNDS),
        ("lock run shop nightly --ttl -5s -- true", 2, TTL_BOUNDS),
        ("lock acquire shop nightly --ttl 1h --wait -1s", 2, "'-1s' for '--wait <TIME>': it must not be negative"),
        ("lock run shop nightly --wait -1s -- true", 2, "it must not be negative"),
        ("lock release shop nightly 5.0 --wait -1s", 2, "it must not be negative"),
        ("lock acquire shop nightly --ttl 1h --wait 1y", 2, "it must be a time such as 200ms, 90s, 1h 30m or 7d"),
        ("lock release shop nightly yesterday", 2, "not a timestamp"),
        ("lock acquire missing nightly --ttl 1h", 5, "no directory"),
        ("lock release missing nightly 5.0", 5, "no directory"),
        ("lock run missing nightly -- true", 5, "no directory"),
        ("locks shop --tree --resolve", 2, "cannot be used with"),
    ] {
        sandbox.run(line).fails(code, what);
    }
    for name in ["", "a\tb", "a\n\nb", &"x".repeat(256)] {
        for (command, options) in [("acquire", "--ttl 1h"), ("run", "-- true"), ("release", "5.0")] {
            let mut command = sandbox.command(&format!("lock {command} shop"));
            let ran = command.arg(name).args(options.split(' ')).output().unwrap();
            Ran::of(name, ran).fails(2, "<NAME>");
        }
    }
    let ran = sandbox.run(&format!("lock acquire shop nightly --ttl 1h --reason {}", "x".repeat(256)));
    ran.fails(2, "at most 255 bytes");
    assert!(!sandbox.has("missing"));
}

#[test]
fn a_lock_is_released_if_its_token_cannot_be_printed() {
    let sandbox = Sandbox::with_shop();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = sandbox.command("lock acquire shop nightly --ttl 1h").stdout(full).output().unwrap();
    Ran::of("lock acquire", ran).fails(1, "cannot write to standard output");
    assert_eq!(sandbox.token_of("nightly"), None);
}
