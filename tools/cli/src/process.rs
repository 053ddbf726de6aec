//! Other processes: which of them has a store open, and whether it runs.
//!
//! The lock of a store's marker says that a process has the store open, not which one. Linux lists
//! the locks of all processes in `/proc/locks`, by device and inode. The marker has another name
//! while the store is created, and RocksDB has a lock of its own, which also names the process
//! beneath which the marker was replaced. In that list a process of another
//! container has no id, and on some file systems the device is not that of the file. A process is
//! named only if the device is the same, or if the process is seen to have the file open.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use percolite::StoreStatus;
use rustix::fs::{major, minor};
use rustix::process::Pid;

use crate::duration::human_duration;
use crate::quoting::shell_quoted;

/// A published status may be this much older than its interval: the background worker has other
/// work, and rounds of half a second.
const LATE_AFTER: Duration = Duration::from_secs(3);

/// The files that a process locks while it has a store open, and the kind of the lock. The
/// unfinished name comes first, because the file is renamed from it to the other one.
const LOCKED_FILES: [(&str, &str); 3] = [("PERCOLITE.new", "FLOCK"), ("PERCOLITE", "FLOCK"), ("tables/LOCK", "POSIX")];

/// Said of the holder if no process has the lock.
const NOT_SEEN: &str =
    "; which process had it open cannot be seen from here, or it has closed the store meanwhile: try again";

/// A process that has a store open.
struct Holder {
    pid: u32,
    is_writer: bool,
}

/// What the system says of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Stopped,
    WaitsForDisk,
    /// It runs, or waits for something else; or it cannot be seen.
    Other,
}

/// Which process has the busy store open, and what can be asked about it: to be appended to an
/// error.
pub fn busy_note(dir: &Path) -> String {
    let holders = holders(dir);
    let what = match holders.as_slice() {
        [] => return NOT_SEEN.into(),
        [holder] if holder.is_writer => format!("{} has it open", describe(holder.pid, dir)),
        [holder] => format!("{} has it open read-only", describe(holder.pid, dir)),
        some => {
            let each = some.iter().map(|holder| describe(holder.pid, dir)).collect::<Vec<_>>();
            format!("{} have it open read-only", each.join(", "))
        }
    };
    let publishes = StoreStatus::read_from(dir)
        .is_ok_and(|status| status.is_some_and(|status| holders.iter().any(|holder| holder.pid == status.pid)));
    let stopped: Vec<String> = holders
        .iter()
        .map(|holder| holder.pid)
        .filter(|pid| is_number_stopped(*pid))
        .map(|pid| pid.to_string())
        .collect();
    let ask = if !stopped.is_empty() {
        format!("; it hangs until it continues: kill -CONT {}", stopped.join(" "))
    } else if publishes {
        format!("; percolite top {} shows what it does", shell_quoted(dir))
    } else {
        String::new()
    };
    format!("; {what}{ask}")
}

/// Whether a process that has the store open is stopped, so that waiting for it does not help.
pub fn is_holder_stopped(dir: &Path) -> bool {
    holders(dir).iter().any(|holder| is_number_stopped(holder.pid))
}

fn is_number_stopped(pid: u32) -> bool {
    state(pid) == State::Stopped
}

/// Why the process that has published this status seems to hang, if it does.
pub fn hang_note(dir: &Path, status: &StoreStatus) -> Option<String> {
    // A process with this id is another one if it does not have the lock.
    let is_holder = holders(dir).iter().any(|holder| holder.pid == status.pid);
    let state = if is_holder { state(status.pid) } else { State::Other };
    let pid = status.pid;
    if state == State::Stopped {
        return Some(format!("process {pid} is stopped, and everything that waits for it hangs: kill -CONT {pid}"));
    }
    let age = status.taken_at.elapsed().unwrap_or_default();
    let interval = status.publish_interval?;
    (age > interval.saturating_add(LATE_AFTER)).then(|| {
        let why = if state == State::WaitsForDisk { "it waits for its disk" } else { "it, or its disk, hangs" };
        let (age, interval) = (human_duration(age), human_duration(interval));
        format!("process {pid} has published no status for {age}, instead of every {interval}: {why}")
    })
}

/// The process with its name and, if it does not run, why. A lock outlives the process that took it
/// in a process that was forked from it, which cannot use the store.
fn describe(pid: u32, dir: &Path) -> String {
    if fs::exists(format!("/proc/{pid}")).unwrap_or(true) {
        return describe_running(pid);
    }
    let heir = fs::metadata(dir.join("PERCOLITE")).ok().and_then(|marker| {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.find(|number| has_open(*number, &marker))
    });
    let heir = heir.map_or_else(|| "a process".to_owned(), describe_running);
    format!("{heir}, which has inherited the lock of process {pid} that has ended,")
}

/// The processes with their names.
pub fn names(processes: &[Pid]) -> String {
    let each = processes.iter().filter_map(|pid| u32::try_from(pid.as_raw_pid()).ok()).map(describe_running);
    each.map(|text| text.trim_end_matches(',').to_owned()).collect::<Vec<_>>().join(", ")
}

/// The other processes that have this file open, as far as they can be seen.
pub fn that_have_open(file: &Path) -> Vec<Pid> {
    let Ok(file) = fs::metadata(file) else { return Vec::new() };
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others = numbers.filter(|number| *number != std::process::id() && has_open(*number, &file));
    others.filter_map(|number| Pid::from_raw(i32::try_from(number).ok()?)).collect()
}

/// Whether the process is stopped, as by Ctrl-Z.
pub fn is_stopped(pid: Pid) -> bool {
    u32::try_from(pid.as_raw_pid()).is_ok_and(is_number_stopped)
}

fn describe_running(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = match name.trim_end() {
        "" => String::new(),
        name => format!(" ({})", name.escape_debug()),
    };
    let state = if is_number_stopped(pid) { ", which is stopped," } else { "" };
    format!("process {pid}{name}{state}")
}

fn state(pid: u32) -> State {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may have brackets itself.
    match stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()) {
        Some('T' | 't') => State::Stopped,
        Some('D') => State::WaitsForDisk,
        _ => State::Other,
    }
}

/// The processes that have the store locked, as far as they can be seen.
fn holders(dir: &Path) -> Vec<Holder> {
    let found = LOCKED_FILES.iter().filter_map(|(name, kind)| Some((fs::metadata(dir.join(name)).ok()?, *kind)));
    let files: Vec<(Metadata, &str)> = found.collect();
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let lines = locks.lines().flat_map(|line| files.iter().filter_map(move |(file, kind)| holder(line, file, kind)));
    let mut holders: Vec<Holder> = lines.filter(|holder| holder.pid != std::process::id()).collect();
    holders.sort_by_key(|holder| (holder.pid, !holder.is_writer));
    holders.dedup_by_key(|holder| holder.pid);
    holders
}

/// The holder in a line of `/proc/locks`, such as `1: FLOCK  ADVISORY  WRITE 2087 fe:00:131 0 EOF`;
/// `None` if it has another file, or if the line is of a lock that is waited for.
fn holder(line: &str, file: &Metadata, kind: &str) -> Option<Holder> {
    let mut words = line.split_whitespace().skip(1);
    let kind = words.next().filter(|found| *found == kind);
    kind.and_then(|_| words.next())?;
    let is_writer = words.next()? == "WRITE";
    let pid = words.next()?.parse().ok().filter(|pid| *pid > 0)?;
    let (device, inode) = words.next()?.rsplit_once(':')?;
    let is_same_device = device == format!("{:02x}:{:02x}", major(file.dev()), minor(file.dev()));
    (inode.parse() == Ok(file.ino()) && (is_same_device || has_open(pid, file))).then_some(Holder { pid, is_writer })
}

fn has_open(pid: u32, file: &Metadata) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|open| fs::metadata(open.path()).ok())
        .any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
}
