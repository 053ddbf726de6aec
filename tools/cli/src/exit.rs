//! Exit codes: the kinds of errors that a script can distinguish.

use std::fmt;

use percolite::ErrorKind;

/// The exit codes; [`TABLE`] has their meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Busy = 4,
    NotAStore = 5,
    Corrupt = 6,
    Conflict = 7,
    LockHeld = 8,
    NotExecutable = 126,
    CommandNotFound = 127,
    Interrupted = 130,
}

/// The table of exit codes, for `--help` and the man pages.
pub const TABLE: &str = "\
Exit codes:
    0  done
    1  failed: a disk error, an exceeded limit, a read-only store, …
    2  invalid command line
    3  not found: a key, a keyspace, a transaction or a token
    4  the store is open in another process
    5  not a store or not a dump, or one of another format
    6  a store or a dump is damaged
    7  transaction conflict: retries exhausted
    8  a lock is held elsewhere, or was lost
  126  `lock run`: the command cannot be executed
  127  `lock run`: the command was not found
  130  interrupted; the message says what was committed";

/// An error with an exit code.
#[derive(Debug)]
pub struct ExitError {
    pub code: Code,
    text: String,
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ExitError {}

impl Code {
    /// An error with this code.
    pub fn error(self, text: impl Into<String>) -> anyhow::Error {
        ExitError { code: self, text: text.into() }.into()
    }

    /// The exit code of an error: that of the first cause in its chain that has an exit code.
    pub fn of(err: &anyhow::Error) -> Self {
        let coded = |cause: &(dyn std::error::Error + 'static)| {
            let code = cause.downcast_ref::<ExitError>().map(|error| error.code);
            code.or_else(|| cause.downcast_ref::<percolite::Error>().map(|err| Self::of_kind(err.kind())))
        };
        err.chain().find_map(coded).unwrap_or(Self::Failed)
    }

    pub fn of_kind(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::KeyspaceNotFound(_) => Self::NotFound,
            ErrorKind::AlreadyOpen(_) => Self::Busy,
            ErrorKind::UnrecognizedFormat(_) => Self::NotAStore,
            ErrorKind::Corruption(_) => Self::Corrupt,
            ErrorKind::Conflict(_) | ErrorKind::RetriesExhausted { .. } => Self::Conflict,
            ErrorKind::LockNotAvailable(_) | ErrorKind::LockLost(_) | ErrorKind::Deadlock(_) => Self::LockHeld,
            ErrorKind::Cancelled(_) => Self::Interrupted,
            _ => Self::Failed,
        }
    }
}
