//! Limits of the operating system that a store can reach, and what to raise when it does.

use std::borrow::Cow;
#[cfg(feature = "rocks")]
use std::path::Path;

const NO_SPACE: &str = "No space left on device";
const QUOTA_EXCEEDED: &str = "Disk quota exceeded";

/// The texts of errors by which the operating system says that something ran out, and the advice.
/// RocksDB's errors have these texts, too.
const ADVICE: &[(&str, &str)] = &[
    ("Too many open files in system", "the machine's limit of open files is reached: raise fs.file-max"),
    ("Too many open files", "raise the process's limit of open files (ulimit -n, LimitNOFILE)"),
    (
        NO_SPACE,
        "free at least 3 MiB on this disk, or inodes (df -i); if the store opens, rows can be deleted and keyspaces \
         dropped",
    ),
    (
        QUOTA_EXCEEDED,
        "free space within the quota, or raise it; if the store opens, rows can be deleted and keyspaces dropped",
    ),
    ("File too large", "raise the process's limit of file size (ulimit -f, LimitFSIZE)"),
    ("cannot start a thread", "raise the limit of threads (ulimit -u, TasksMax, pids.max) or of memory (ulimit -v)"),
    ("Cannot allocate memory", "raise the process's limit of memory (ulimit -v, MemoryMax), or use a smaller budget"),
];

/// Whether an error says that a limit of the operating system was reached.
#[cfg(feature = "rocks")]
pub fn is_limit_reached(error: &str) -> bool {
    ADVICE.iter().any(|(text, _)| error.contains(text))
}

/// Whether an error says that the disk, or the quota of a user or a project, is used up.
#[cfg(feature = "rocks")]
pub fn is_out_of_space(error: &str) -> bool {
    [NO_SPACE, QUOTA_EXCEEDED].iter().any(|text| error.contains(text))
}

/// Appends to an error what can be done about it, if a limit of the operating system was reached.
pub fn with_advice(error: impl Into<String>) -> String {
    let error = error.into();
    let found = ADVICE.iter().find(|(text, _)| error.contains(text));
    let Some((text, advice)) = found.filter(|(_, advice)| !error.contains(advice)) else { return error };
    let limit = if text.starts_with("Too many open files") { open_files_text() } else { "".into() };
    format!("{error}; {limit}{advice}")
}

fn open_files_text() -> Cow<'static, str> {
    #[cfg(all(unix, feature = "rocks"))]
    if let Some(limit) = open_files_limit() {
        return format!("this process may have {limit} files open: ").into();
    }
    "".into()
}

/// How many files this process may have open; `None` if there is no limit.
#[cfg(all(unix, feature = "rocks"))]
pub fn open_files_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(all(not(unix), feature = "rocks"))]
pub fn open_files_limit() -> Option<u64> {
    None
}

/// How large a file this process may write, in bytes; `None` if there is no limit.
#[cfg(all(unix, feature = "rocks"))]
pub fn file_size_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

#[cfg(all(not(unix), feature = "rocks"))]
pub fn file_size_limit() -> Option<u64> {
    None
}

/// The bytes that are free on the directory's disk for processes without privileges; `None` if
/// unknown.
#[cfg(all(unix, feature = "rocks"))]
pub fn free_bytes(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(all(not(unix), feature = "rocks"))]
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// A limit of this process's memory, in bytes.
#[cfg(feature = "rocks")]
pub struct MemoryLimit {
    /// As a user sets it.
    pub name: &'static str,
    /// Whether address space counts that is reserved and cannot be written yet.
    pub counts_reserved: bool,
    pub most: u64,
    pub used: u64,
}

/// The limits of memory that this process has, where the system tells what is in use.
#[cfg(all(unix, feature = "rocks"))]
pub fn memory_limits() -> Vec<MemoryLimit> {
    use rustix::process::{Resource, getrlimit};
    let limits = [
        ("ulimit -v, LimitAS", true, getrlimit(Resource::As).current, "VmSize:"),
        ("ulimit -d, LimitDATA", false, getrlimit(Resource::Data).current, "VmData:"),
    ];
    let limited = limits.into_iter().filter_map(|(name, counts_reserved, most, field)| {
        let most = most?;
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let kib = status.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB"))?;
        Some(MemoryLimit { name, counts_reserved, most, used: kib.parse::<u64>().ok()?.saturating_mul(1 << 10) })
    });
    limited.collect()
}

#[cfg(all(not(unix), feature = "rocks"))]
pub fn memory_limits() -> Vec<MemoryLimit> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_gets_the_advice_for_its_limit_once() {
        for (text, advice) in ADVICE {
            let error = with_advice(format!("cannot write: {text} (os error 1)"));
            assert!(error.ends_with(advice), "{error}");
            assert_eq!(with_advice(error.clone()), error);
        }
        assert_eq!(with_advice("cannot write: Input/output error"), "cannot write: Input/output error");
    }
}
