//! What goes wrong below the store: one kind of system call on one kind of file, at its n-th time.
//!
//! `strace` does it, so nothing in the store or in RocksDB knows. It counts by thread: the n-th time of any of them.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

/// The number of files of a kind that are watched; segments of the log are numbered from one, and so are all files of RocksDB.
const FILES: u32 = 999;

/// `strace` counts no further.
const TIMES_MAX: usize = 65535;

macro_rules! named_enum {
    ($(#[$about:meta])* $kind:ident { $($variant:ident $word:literal $text:literal)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $(#[doc = $text] $variant,)* }

        impl $kind {
            /// Its word in a case.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The one of this word.
            pub fn from_name(name: &str) -> Option<Self> {
                [$(Self::$variant,)*].into_iter().find(|one| one.name() == name)
            }
        }
    };
}

named_enum! {
    /// Which calls fail.
    Syscall {
        Write "write" "Bytes are written."
        Sync "sync" "What was written is made durable."
        Rename "rename" "It gets the name that counts."
        Create "create" "It is created."
        Delete "delete" "It is no longer needed."
    }
}

named_enum! {
    /// On which files.
    File {
        Log "log" "The write-ahead log."
        Table "table" "Rows that were flushed or compacted."
        Manifest "manifest" "Which tables there are."
        Current "current" "Which manifest counts, before it has that name."
        Options "options" "How it was opened, before it has that name."
        Marker "marker" "The store's own marker, before the store is there."
        Folder "folder" "The store's folder, and those in it."
    }
}

named_enum! {
    /// With which error; or the process dies there, which is how it is killed inside RocksDB.
    Errno {
        Eio "EIO" "The disk is broken."
        Enospc "ENOSPC" "The disk is full."
        Kill "KILL" "The process dies at the call."
    }
}

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which calls.
    pub syscall: Syscall,
    /// On which files.
    pub file: File,
    /// With which error.
    pub errno: Errno,
    /// At which time, counted from one.
    pub nth: usize,
    /// And at all later ones, too.
    pub persistent: bool,
}

impl Fault {
    /// Whether the store cannot go on after it: the log is what it lives by.
    pub fn stops_store(self) -> bool {
        self.file == File::Log && matches!(self.syscall, Syscall::Write | Syscall::Sync)
    }

    /// A command under which the fault happens to a store in `folder`; what was done is noted in `notes`.
    pub fn command(self, arguments: &[String], folder: &Path, log: &Path) -> Command {
        let calls = match self.syscall {
            Syscall::Write => "write,pwrite64,writev,pwritev",
            Syscall::Sync => "fsync,fdatasync",
            Syscall::Rename => "rename,renameat,renameat2",
            Syscall::Create => "openat",
            Syscall::Delete => "unlink,unlinkat",
        };
        let (nth, persistent) = (self.nth, if self.persistent { "+" } else { "" });
        let what = match self.errno {
            Errno::Kill => "signal=SIGKILL".to_owned(),
            errno => format!("error={}", errno.name()),
        };
        let mut command = Command::new("strace");
        command.args(["-f", "-qqq", "-o"]).arg(log);
        if self.errno != Errno::Kill {
            // Only calls of this kind are stopped at, which is much faster; but signals are not injected then.
            command.arg("--seccomp-bpf");
        }
        if self.file == File::Folder {
            command.arg("-P").arg(folder);
        }
        for name in self.names() {
            command.arg("-P").arg(folder.join(name));
        }
        command.arg("-e").arg(format!("trace={calls}"));
        command.arg("-e").arg(format!("inject={calls}:{what}:when={nth}{persistent}"));
        command.args(arguments);
        command
    }

    /// Whether the notes say that it happened. A file is also opened to be read, which is no creation.
    pub fn was_injected(self, log: &str) -> bool {
        let is_it = |call: &str| self.syscall != Syscall::Create || call.contains("O_CREAT");
        if self.errno == Errno::Kill {
            let killed = log.contains("+++ killed by SIGKILL +++");
            // The call at which it was killed has no answer; others may not have one either.
            killed && log.lines().any(|call| is_unanswered(call, log) && is_it(call))
        } else {
            log.lines().any(|call| call.contains("(INJECTED)") && is_it(call))
        }
    }

    fn names(self) -> Vec<String> {
        let numbered = |name: fn(u32) -> String| (1..=FILES).map(name).collect();
        match self.file {
            File::Log => numbered(|number| format!("log/{number:010}.segment")),
            File::Table => numbered(|number| format!("tables/{number:06}.sst")),
            File::Manifest => numbered(|number| format!("tables/MANIFEST-{number:06}")),
            File::Current => numbered(|number| format!("tables/{number:06}.dbtmp")),
            File::Options => numbered(|number| format!("tables/OPTIONS-{number:06}.dbtmp")),
            File::Marker => vec!["PERCOLITE.new".into()],
            File::Folder => vec!["log".into(), "tables".into()],
        }
    }
}

/// Whether a noted call has no answer. One that others came in between with has it on a line of its own.
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
            format!("{text:?} is no fault: write CALL.FILE.ERROR.N, as in write.log.EIO.3, or with a + from there on")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_was_killed_at_a_call_that_has_no_answer() {
        let fault: Fault = "create.table.KILL.1".parse().unwrap();
        let call = |end: &str| format!("7  openat(3, \"000009.sst\", O_WRONLY|O_CREAT|O_TRUNC, 0644{end}\n");
        let killed = "8  +++ killed by SIGKILL +++\n";
        assert!(fault.was_injected(&(call(") = ?") + killed)));
        assert!(fault.was_injected(&(call(" <unfinished ...>") + killed)));
        assert!(!fault.was_injected(&(call(") = 5") + killed)), "it was answered");
        assert!(!fault.was_injected(&(call(" <unfinished ...>") + "7  <... openat resumed>) = 5\n" + killed)));
        assert!(!fault.was_injected(&call(") = ?")), "nobody was killed");
        let reads = format!("7  openat(3, \"000009.sst\", O_RDONLY) = ?\n{killed}");
        assert!(!fault.was_injected(&reads), "it was opened to be read");
    }
}
