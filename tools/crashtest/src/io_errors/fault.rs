//! A fault below the store: the n-th system call of one kind on one kind of file fails.
//!
//! `strace` injects the fault, so neither the store nor RocksDB is changed. `strace` counts the
//! calls of each thread separately: in every thread that makes n such calls, the n-th fails.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

/// The highest file number that is watched. `strace` must get the names of files before they exist.
/// So for each kind of numbered file it gets all names from number 1, where the log and RocksDB
/// begin, to this number.
const FILES: u32 = 999;

/// The descriptors by which a store reaches its directories: it opens them first.
const DESCRIPTORS: std::ops::RangeInclusive<u32> = 3..=12;

/// The largest number of a call that `strace` accepts.
const TIMES_MAX: usize = 65535;

macro_rules! named_enum {
    ($(#[$about:meta])* $kind:ident { $($variant:ident $word:literal $text:literal)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $(#[doc = $text] $variant,)* }

        impl $kind {
            /// Its name in the text of a case.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The value with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                [$(Self::$variant,)*].into_iter().find(|one| one.name() == name)
            }
        }
    };
}

named_enum! {
    /// The kind of system call that fails.
    Syscall {
        Write "write" "Writes bytes."
        Sync "sync" "Makes written bytes durable."
        Rename "rename" "Renames the file to its final name."
        Create "create" "Creates the file."
        Delete "delete" "Deletes the file."
        Read "read" "Reads bytes."
    }
}

named_enum! {
    /// The kind of file on which the call fails.
    File {
        Log "log" "The write-ahead log."
        Record "record" "The sync record of the log."
        Table "table" "Rows that were flushed or compacted."
        Manifest "manifest" "The list of tables."
        Current "current" "The name of the current manifest, before its rename."
        Options "options" "The options of RocksDB, before their rename."
        Marker "marker" "The store's marker, before its rename."
        Directory "directory" "The store's directory and its subdirectories."
    }
}

named_enum! {
    /// The error of the call. `KILL` is no error: the process is killed at the call, even if the
    /// call is inside RocksDB.
    Errno {
        Eio "EIO" "An I/O error."
        Enospc "ENOSPC" "The disk is full."
        Kill "KILL" "The process is killed at the call."
    }
}

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of system call.
    pub syscall: Syscall,
    /// The kind of file.
    pub file: File,
    /// The error.
    pub errno: Errno,
    /// Which call fails, counted from one.
    pub nth: usize,
    /// Whether all later calls fail, too.
    pub persistent: bool,
}

impl Fault {
    /// Whether the store must stop after the fault: without a working log it cannot continue.
    pub fn stops_store(self) -> bool {
        matches!(self.file, File::Log | File::Record) && matches!(self.syscall, Syscall::Write | Syscall::Sync)
    }

    /// A command that runs `arguments` with the fault, on a store in `store_dir`. `strace` writes
    /// its output to `log`.
    pub fn command(self, arguments: &[String], store_dir: &Path, log: &Path) -> Command {
        let calls = match self.syscall {
            Syscall::Write => "write,pwrite64,writev,pwritev",
            Syscall::Sync => "fsync,fdatasync",
            Syscall::Rename => "rename,renameat,renameat2",
            Syscall::Create => "openat",
            Syscall::Delete => "unlink,unlinkat",
            Syscall::Read => "read,pread64,readv,preadv",
        };
        let (nth, persistent) = (self.nth, if self.persistent { "+" } else { "" });
        let what = match self.errno {
            Errno::Kill => "signal=SIGKILL".to_owned(),
            errno => format!("error={}", errno.name()),
        };
        let mut command = Command::new("strace");
        command.args(["-f", "-qqq", "-o"]).arg(log);
        if self.errno != Errno::Kill {
            // With seccomp `strace` stops the process only at calls of this kind, which is much
            // faster. But with seccomp it injects no signals.
            command.arg("--seccomp-bpf");
        }
        if self.file == File::Directory {
            command.arg("-P").arg(store_dir);
        }
        for name in self.names() {
            // A call on an open file matches by the file's path, others by the path that they get.
            if matches!(self.syscall, Syscall::Write | Syscall::Sync | Syscall::Read) {
                command.arg("-P").arg(store_dir.join(name));
                continue;
            }
            let file = name.rsplit('/').next().unwrap_or(&name);
            for number in DESCRIPTORS {
                command.arg("-P").arg(format!("/proc/self/fd/{number}/{file}"));
            }
        }
        command.arg("-e").arg(format!("trace={calls}"));
        command.arg("-e").arg(format!("inject={calls}:{what}:when={nth}{persistent}"));
        command.args(arguments);
        command
    }

    /// Whether the log of `strace` contains the fault. A failed `openat` without `O_CREAT` does not
    /// count: it was not to create a file.
    pub fn was_injected(self, log: &str) -> bool {
        let is_it = |call: &str| self.syscall != Syscall::Create || call.contains("O_CREAT");
        if self.errno == Errno::Kill {
            let killed = log.contains("+++ killed by SIGKILL +++");
            // The log of `strace` has no result for the call at which the process was killed, and
            // may have none for concurrent calls. So any unanswered call of this kind counts.
            killed && log.lines().any(|call| is_unanswered(call, log) && is_it(call))
        } else {
            log.lines().any(|call| call.contains("(INJECTED)") && is_it(call))
        }
    }

    fn names(self) -> Vec<String> {
        let numbered = |name: fn(u32) -> String| (1..=FILES).map(name).collect();
        match self.file {
            File::Log => numbered(|number| format!("wal/{number:010}.segment")),
            File::Record => vec!["wal/synced".into()],
            File::Table => numbered(|number| format!("tables/{number:06}.sst")),
            File::Manifest => numbered(|number| format!("tables/MANIFEST-{number:06}")),
            File::Current => numbered(|number| format!("tables/{number:06}.dbtmp")),
            File::Options => numbered(|number| format!("tables/OPTIONS-{number:06}.dbtmp")),
            File::Marker => vec!["PERCOLITE.new".into()],
            File::Directory => vec!["wal".into(), "tables".into()],
        }
    }
}

/// Whether a logged call has no result. If calls of other threads came in between, the log has the
/// result on a later line.
fn is_unanswered(call: &str, log: &str) -> bool {
    let thread = |line: &str| line.split(' ').next().map(str::to_owned);
    let goes_on = |line: &str| line.contains(" resumed>") && !line.ends_with("= ?") && thread(line) == thread(call);
    call.ends_with("= ?") || call.ends_with("<unfinished ...>") && !log.lines().any(goes_on)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { syscall, file, errno, nth, persistent } = self;
        let persistent = if *persistent { "+" } else { "" };
        write!(f, "{}.{}.{}.{nth}{persistent}", syscall.name(), file.name(), errno.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let words: Vec<&str> = text.split('.').collect();
            let [syscall, file, errno, times] = words.as_slice() else { return None };
            let nth = times.strip_suffix('+');
            Some(Self {
                syscall: Syscall::from_name(syscall)?,
                file: File::from_name(file)?,
                errno: Errno::from_name(errno)?,
                nth: nth.unwrap_or(times).parse().ok().filter(|nth| (1..=TIMES_MAX).contains(nth))?,
                persistent: nth.is_some(),
            })
        };
        read().ok_or_else(|| {
            format!("invalid fault {text:?}; expected CALL.FILE.ERROR.N, as in write.log.EIO.3, with a + for all later calls")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_found_at_a_call_without_a_result() {
        let fault: Fault = "create.table.KILL.1".parse().unwrap();
        let call = |end: &str| format!("7  openat(3, \"000009.sst\", O_WRONLY|O_CREAT|O_TRUNC, 0644{end}\n");
        let killed = "8  +++ killed by SIGKILL +++\n";
        assert!(fault.was_injected(&(call(") = ?") + killed)));
        assert!(fault.was_injected(&(call(" <unfinished ...>") + killed)));
        assert!(!fault.was_injected(&(call(") = 5") + killed)), "the call has a result");
        assert!(!fault.was_injected(&(call(" <unfinished ...>") + "7  <... openat resumed>) = 5\n" + killed)));
        assert!(!fault.was_injected(&call(") = ?")), "no process was killed");
        let reads = format!("7  openat(3, \"000009.sst\", O_RDONLY) = ?\n{killed}");
        assert!(!fault.was_injected(&reads), "the file was opened for reading");
    }
}
