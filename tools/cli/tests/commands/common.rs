//! A temporary directory, and the program run in it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub struct Sandbox(pub TempDir);

/// A name that a shell changes unless it is quoted.
pub const STORE_TO_QUOTE: &str = "it's a \"$HOME\" store";

impl Sandbox {
    /// The files of a store, in all of its directories, whose name passes the filter.
    pub fn files(&self, store: &str, filter: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let (mut files, mut dirs) = (Vec::new(), vec![self.path().join(store)]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else if filter(path.file_name().unwrap().to_str().unwrap()) {
                    files.push(path);
                }
            }
        }
        files.sort();
        files
    }

    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A sandbox with a store `shop` of two rows.
    pub fn with_shop() -> Self {
        let sandbox = Self::new();
        sandbox.ok("put --create shop fruit apple red pear yellow");
        sandbox
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path().join(name), content).unwrap();
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_percolite"));
        command.args(line.split_whitespace()).current_dir(self.path()).env("HOME", self.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, line: &str) -> Ran {
        Ran::of(line, self.command(line).output().unwrap())
    }

    /// Runs a command line in a shell, in which `percolite` is the program, and `$S` is
    /// [`STORE_TO_QUOTE`].
    pub fn in_shell(&self, line: &str) -> Ran {
        let script = format!("percolite() {{ '{}' \"$@\"; }}; {line}", env!("CARGO_BIN_EXE_percolite"));
        let mut shell = Command::new("sh");
        shell.args(["-ec", &script]).current_dir(self.path()).env("HOME", self.path()).env("S", STORE_TO_QUOTE);
        Ran::of(line, shell.stdin(Stdio::null()).output().unwrap())
    }

    pub fn with_input(&self, line: &str, input: impl AsRef<[u8]>) -> Ran {
        let mut child = self.command(line).stdin(Stdio::piped()).spawn().unwrap();
        // Writing fails if the program ends before it has read everything, which is a valid case.
        let _ = child.stdin.take().unwrap().write_all(input.as_ref());
        Ran::of(line, child.wait_with_output().unwrap())
    }

    /// Runs the line in a terminal with this input; the output is all that the terminal shows.
    pub fn in_terminal(&self, line: &str, typed: &str) -> Ran {
        let line = format!("{} {line}", env!("CARGO_BIN_EXE_percolite"));
        let mut script = Command::new("script");
        script.args(["-qec", &format!("stty cols 100; exec {line}"), "/dev/null"]).env("TERM", "xterm");
        script.current_dir(self.path()).env("HOME", self.path());
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
        Ran::of(&line, child.wait_with_output().unwrap())
    }

    /// Runs these puts in a shell, each in its own transaction, and kills the shell.
    pub fn kill_after(&self, store: &str, puts: impl IntoIterator<Item = String>) {
        let mut shell = self.command(&format!("shell {store}")).stdin(Stdio::piped()).spawn().unwrap();
        let puts: Vec<String> = puts.into_iter().collect();
        writeln!(shell.stdin.as_mut().unwrap(), "{}", puts.join("\n")).unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        puts.iter().for_each(|put| assert_eq!(lines.next().unwrap().unwrap(), "committed", "{put}"));
        shell.kill().unwrap();
        shell.wait().unwrap();
    }

    /// Runs the line and sends SIGINT as soon as the program handles that signal.
    pub fn interrupted(&self, line: &str) -> Ran {
        // The killer is started before the program, so that it can send the signal without a delay.
        let mut killer =
            Command::new("sh").args(["-c", "read pid; kill -INT $pid"]).stdin(Stdio::piped()).spawn().unwrap();
        let child = self.command(line).spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        let handles_sigint = || {
            let status = fs::read_to_string(&status).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim().to_owned();
            // SIGINT is signal 2, which is bit 1. A zombie has no signals.
            u64::from_str_radix(&caught, 16).unwrap() & 2 != 0 || status.contains("State:\tZ")
        };
        let since = Instant::now();
        while !handles_sigint() {
            assert!(since.elapsed() < Duration::from_secs(20), "{line} installs no signal handler");
        }
        writeln!(killer.stdin.take().unwrap(), "{}", child.id()).unwrap();
        assert!(killer.wait().unwrap().success());
        Ran::of(line, child.wait_with_output().unwrap())
    }

    /// Asserts that the line succeeds without output on standard error, and returns its output.
    pub fn ok(&self, line: &str) -> String {
        self.run(line).succeeds()
    }

    pub fn json(&self, line: &str) -> Vec<serde_json::Value> {
        self.ok(line).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub struct Ran {
    line: String,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(line: &str, output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { line: line.into(), code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    pub fn succeeds(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{}: {}", self.line, self.out);
        self.out
    }

    /// Asserts the exit code, and an error message of one line that contains this text.
    pub fn fails(self, code: i32, text: &str) -> Self {
        assert_eq!(self.code, Some(code), "{}: {}{}", self.line, self.out, self.err);
        assert!(self.err.contains(text), "{}: wanted {text:?} in {}", self.line, self.err);
        assert!(self.err.starts_with("error: ") && self.err.lines().count() == 1, "{}", self.err);
        self
    }
}
