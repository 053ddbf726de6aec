//! Exit codes: what a script can tell apart.

use std::fmt;

use percolite::ErrorKind;

/// How the program ends, and what `--help` says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Failed = 1,
    Usage = 2,
    Missing = 3,
    Busy = 4,
    NotAStore = 5,
    Damaged = 6,
    Conflict = 7,
    LockHeld = 8,
    NotExecutable = 126,
    NoCommand = 127,
    Interrupted = 130,
}

/// For `--help`, the man page and the README.
pub const TABLE: &str = "\
Exit codes:
    0  done
    1  failed: the disk, a limit, a store that is read-only, …
    2  a command line that makes no sense
    3  what was asked for is not there: a key, a keyspace, a transaction, a token
    4  the store is open in another process
    5  the folder is no store, or the file no dump, or it is one of another format
    6  a store or a dump is damaged
    7  given up after conflicts with other transactions
    8  a lock is held elsewhere, or was lost
  126  what `lock run` is to run is no program
  127  what `lock run` is to run is not there
  130  interrupted; of what changes a store, what is done and what is not was said";

/// An error that knows its exit code.
#[derive(Debug)]
pub struct Coded {
    pub code: Code,
    text: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Coded {}

impl Code {
    /// An error with this code.
    pub fn error(self, text: impl Into<String>) -> anyhow::Error {
        Coded { code: self, text: text.into() }.into()
    }

    /// What an error comes to.
    pub fn of(why: &anyhow::Error) -> Self {
        let coded = |cause: &(dyn std::error::Error + 'static)| {
            let told = cause.downcast_ref::<Coded>().map(|coded| coded.code);
            told.or_else(|| cause.downcast_ref::<percolite::Error>().map(|why| Self::of_kind(why.kind())))
        };
        why.chain().find_map(coded).unwrap_or(Self::Failed)
    }

    pub fn of_kind(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::KeyspaceNotFound(_) => Self::Missing,
            ErrorKind::AlreadyOpen(_) => Self::Busy,
            ErrorKind::UnrecognizedFormat(_) => Self::NotAStore,
            ErrorKind::Corruption(_) => Self::Damaged,
            ErrorKind::Conflict(_) | ErrorKind::RetriesExhausted { .. } => Self::Conflict,
            ErrorKind::LockNotAvailable(_) | ErrorKind::LockLost(_) | ErrorKind::Deadlock(_) => Self::LockHeld,
            ErrorKind::Cancelled(_) => Self::Interrupted,
            _ => Self::Failed,
        }
    }
}
