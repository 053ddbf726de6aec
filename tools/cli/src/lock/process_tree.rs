//! The processes that a command has started, down to the last one, and their end.
//!
//! This process is a *child subreaper*: a process whose parent has ended becomes its child,
//! whatever session and process group it is in. So all that the command has started stays below
//! this process and is found in `/proc`, and when this process has no children, nothing of it runs.
//!
//! Not among them is what another process starts on the command's behalf: a daemon, `at`, `cron`, a
//! container engine, another machine. On systems other than Linux only the command itself is.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};

/// The time between SIGTERM and SIGKILL.
pub const KILL_DELAY: Duration = Duration::from_secs(10);
/// The command gets SIGTERM this long before what it has started, which it may end itself.
const OTHERS_DELAY: Duration = Duration::from_secs(1);
/// Processes that run this long after SIGKILL are reported.
const REPORT_DELAY: Duration = Duration::from_secs(2);

/// A command, and everything that it has started. This process must have no other children.
pub struct ProcessTree {
    command: Pid,
    status: Option<WaitStatus>,
}

impl ProcessTree {
    /// Must be called before the command is started.
    pub fn prepare() -> Result<()> {
        #[cfg(target_os = "linux")]
        {
            fs::metadata("/proc/self/stat").context("`lock run` finds the processes of its command in /proc")?;
            rustix::process::set_child_subreaper(Some(getpid())).context("cannot become a child subreaper")?;
        }
        Ok(())
    }

    pub fn of(command: &Child) -> Self {
        Self { command: Pid::from_child(command), status: None }
    }

    /// Reaps what has ended. Returns whether nothing of the tree is left.
    pub fn reap(&mut self) -> Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.command => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(false),
                Err(Errno::CHILD) => return Ok(true),
                Err(err) => return Err(err).context("cannot wait for the command"),
            }
        }
    }

    /// How the command has ended; `None` while it runs.
    pub fn status(&self) -> Option<WaitStatus> {
        self.status
    }

    /// The command, as long as no other process can have its pid.
    pub fn command(&self) -> Option<Pid> {
        Some(self.command).filter(|_| self.status.is_none())
    }
}

/// The end of a tree: SIGTERM to each process once, to the command first, and SIGKILL to all from a
/// time on.
pub struct Ending {
    terminated: HashSet<Pid>,
    began: Instant,
    pub kill_at: Instant,
    is_reported: bool,
}

impl Ending {
    pub fn by(kill_at: Instant) -> Self {
        Self { terminated: HashSet::new(), began: Instant::now(), kill_at, is_reported: false }
    }

    /// Signals what runs at this moment; `command` is the one to begin with. To be repeated until
    /// nothing runs, because processes may be started meanwhile.
    pub fn step(&mut self, running: &[Pid], command: Option<Pid>) {
        let now = Instant::now();
        for pid in running {
            let is_next = command.is_none_or(|command| command == *pid) || now >= self.began + OTHERS_DELAY;
            // A process of another user, as of `sudo`, cannot be signalled: it is waited for.
            if now >= self.kill_at {
                let _ = kill_process(*pid, Signal::KILL);
            } else if is_next && self.terminated.insert(*pid) {
                let _ = kill_process(*pid, Signal::TERM);
            }
        }
        if now >= self.kill_at + REPORT_DELAY && !self.is_reported && !running.is_empty() {
            self.is_reported = true;
            let running: Vec<String> = running.iter().map(|pid| pid.as_raw_pid().to_string()).collect();
            eprintln!(
                "warning: the command has started processes that cannot be ended, waiting: {}",
                running.join(", ")
            );
        }
    }
}

/// Whether a descendant of this process has the file open.
pub fn is_open_in_tree(file: &Path) -> bool {
    let Ok(wanted) = fs::metadata(file) else { return false };
    let is_it = |found: fs::Metadata| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino());
    descendants().iter().any(|pid| {
        let open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())).into_iter().flatten().flatten();
        open.into_iter().any(|descriptor| fs::metadata(descriptor.path()).is_ok_and(is_it))
    })
}

/// The descendants of this process that have not ended.
pub fn descendants() -> Vec<Pid> {
    below(vec![getpid()])
}

/// The descendants of these processes that have not ended.
pub fn below(mut roots: Vec<Pid>) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for pid in all() {
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    while let Some(parent) = roots.pop() {
        let below = children.remove(&parent).unwrap_or_default();
        found.extend_from_slice(&below);
        roots.extend(below);
    }
    found
}

/// All processes that can be seen.
pub fn all() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

fn parent_of(pid: Pid) -> Option<Pid> {
    Pid::from_raw(stat_field(pid, 4)?.parse().ok()?)
}

/// When a process was started that has not ended, in ticks since the start of the system. A later
/// process may have the same pid, but not the same time.
pub fn started_at(pid: Pid) -> Option<u64> {
    let has_ended = stat_field(pid, 3)? == "Z";
    stat_field(pid, 22)?.parse().ok().filter(|_| !has_ended)
}

/// A field of `/proc/PID/stat`, by its number in the manual page, which is at least 3.
fn stat_field(pid: Pid, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The name of the program, field 2, is in parentheses and may contain anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(number - 3).map(str::to_owned)
}
