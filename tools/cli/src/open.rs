//! Opening a store, and the messages and advice when that fails.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use percolite::{Builder, Error, ErrorKind, Keyspace, Store, StoreStatus};

use crate::advice::{self, is_store};
use crate::duration;
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::process;
use crate::progress::Progress;
pub use crate::quoting::shell_quoted;
use crate::tuning::Tuning;

/// How long to wait for a process that has a store open and publishes no status: one that opens it
/// for a moment only, as `lock` does, or has just opened it.
const UNPUBLISHED_WAIT: Duration = Duration::from_secs(1);
/// How often a wait checks what it waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// [`close_after_cleanup`] stops waiting after this time without progress, because the background
/// cleanup retries failed work without end.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The argument STORE.
#[derive(clap::Args)]
pub struct StoreDir {
    /// The directory of the store
    #[arg(value_name = "STORE")]
    pub path: PathBuf,
}

/// A store, or the status that is published by the process that has it open.
pub enum StoreOrStatus {
    /// No other process has the store open for writing.
    Store(Store),
    /// Another process has the store open and publishes its status.
    Status(Box<StoreStatus>),
}

/// An opened store, or `Busy` if another process has it open.
pub enum StoreOrBusy {
    /// Accepted data losses are not printed yet: the caller prints them ([`warn_data_loss`]).
    Store(Store),
    Busy,
}

impl StoreDir {
    /// Opens the store read-only: nothing in the directory changes.
    pub fn open_read_only(&self) -> Result<Store> {
        self.open_read_only_quiet().map(warn_data_loss)
    }

    /// Like [`Self::open_read_only`], but prints no warning about accepted data losses.
    pub fn open_read_only_quiet(&self) -> Result<Store> {
        Store::builder().read_only(true).open(&self.path).map_err(|err| open_error(&self.path, err))
    }

    /// Opens the store read-only, or reads the published status if another process has it open.
    /// Prints a warning if that process hangs, and none about accepted data losses.
    pub fn open_or_status(&self) -> Result<StoreOrStatus> {
        let since = Instant::now();
        loop {
            let err = match Store::builder().read_only(true).open(&self.path) {
                Ok(store) => return Ok(StoreOrStatus::Store(store)),
                Err(err) if matches!(err.kind(), ErrorKind::AlreadyOpen(_)) => err,
                Err(err) => return Err(open_error(&self.path, err)),
            };
            if let Some(status) = StoreStatus::read_from(&self.path)? {
                if let Some(hang) = process::hang_note(&self.path, &status) {
                    eprintln!("warning: {hang}");
                }
                return Ok(StoreOrStatus::Status(Box::new(status)));
            }
            if since.elapsed() > UNPUBLISHED_WAIT || process::is_holder_stopped(&self.path) {
                return Err(Code::Busy.error(format!(
                    "{}; it publishes no status: commands do, and a program does with \
                     Builder::status_file_interval(Duration::from_secs(1))",
                    text_of(&err)
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Opens the store read-only; returns `Busy` if another process has it open.
    pub fn try_open_read_only(&self) -> Result<StoreOrBusy> {
        or_busy(Store::builder().read_only(true).open(&self.path)).map_err(|err| open_error(&self.path, err))
    }

    /// Fails if there is no store at this path.
    pub fn check_is_store(&self) -> Result<()> {
        if !is_store(&self.path) {
            // Opening the path read-only returns an error that says what is there instead.
            drop(self.open_read_only_quiet()?);
        }
        Ok(())
    }

    /// Opens an existing store for writing; returns `Busy` if another process has it open.
    pub fn try_open(&self, builder: Builder) -> Result<StoreOrBusy> {
        self.check_is_store()?;
        or_busy(builder.open(&self.path)).map_err(|err| write_error(&self.path, err))
    }

    /// The error if a store is still busy after a wait.
    pub fn busy_error(&self, waited: Duration) -> anyhow::Error {
        let waited = duration::human_duration(waited);
        Code::Busy.error(format!("{} is open in another process; waited {waited} for it", self.path.display()))
    }

    /// Opens an existing store for writing, with these options.
    pub fn open_with(&self, options: impl FnOnce(Builder) -> Builder) -> Result<Store> {
        self.check_is_store()?;
        open_for_writing(&self.path, options(Store::builder()))
    }

    /// Opens the store for writing; a missing store is an error unless `create`.
    pub fn open(&self, create: bool) -> Result<Store> {
        self.open_tuned(create, &Tuning::default())
    }

    /// Like [`Self::open`], with the options of commands that write much.
    pub fn open_tuned(&self, create: bool, tuning: &Tuning) -> Result<Store> {
        if !create && !is_store(&self.path) {
            // There is no store at this path. Opening the path read-only returns an error that says
            // what is there instead.
            return match Store::builder().read_only(true).open(&self.path) {
                Ok(_) => open_for_writing(&self.path, tuning.builder()),
                Err(err) if is_absent_or_empty(&self.path) || is_incomplete(&self.path) => {
                    Err(Code::NotAStore.error(format!("{}; --create creates a store there", text_of(&err))))
                }
                Err(err) => Err(open_error(&self.path, err)),
            };
        }
        open_for_writing(&self.path, tuning.builder())
    }
}

fn or_busy(opened: Result<Store, Error>) -> Result<StoreOrBusy, Error> {
    match opened {
        Ok(store) => Ok(StoreOrBusy::Store(store)),
        Err(err) if matches!(err.kind(), ErrorKind::AlreadyOpen(_)) => Ok(StoreOrBusy::Busy),
        Err(err) => Err(err),
    }
}

fn open_for_writing(dir: &Path, builder: Builder) -> Result<Store> {
    builder.open(dir).map(warn_data_loss).map_err(|err| write_error(dir, err))
}

/// Prints a warning for each accepted data loss. The exit code does not depend on these losses.
pub fn warn_data_loss(store: Store) -> Store {
    for loss in store.data_losses() {
        let dir = loss.file.parent().and_then(Path::parent).map(shell_quoted).unwrap_or_default();
        eprintln!("warning: {loss}; percolite verify {dir} shows it, see percolite verify --help");
    }
    store
}

fn text_of(err: &Error) -> String {
    advice::of_library(&err.to_string())
}

/// The error of an opening that failed, with advice for a damaged store.
fn open_error(dir: &Path, err: Error) -> anyhow::Error {
    let text = text_of(&err);
    match err.kind() {
        ErrorKind::UnrecognizedFormat(what) if what.contains("Builder::repair") => {
            Code::NotAStore.error(format!("{text}; if this was a store: percolite repair {} NEW", shell_quoted(dir)))
        }
        ErrorKind::Corruption(what) => {
            let ways = recovery_advice(dir);
            let accept = loss_fingerprint(what).map(|loss| {
                format!(", or, without these commits: percolite accept-data-loss {} {loss}", shell_quoted(dir))
            });
            Code::Corrupt.error(format!("{text}; the store does not open; {ways}{}", accept.unwrap_or_default()))
        }
        _ => err.into(),
    }
}

/// The fingerprint of the data loss in a corruption error's text, if the WAL has lost commits.
fn loss_fingerprint(what: &str) -> Option<&str> {
    what.split_once("(loss ")?.1.get(..16)
}

/// The advice for a damaged store.
pub fn recovery_advice(dir: &Path) -> String {
    format!("go back to a checkpoint or a dump, or else: percolite repair {} NEW", shell_quoted(dir))
}

fn is_absent_or_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir)
        .map_or_else(|err| err.kind() == std::io::ErrorKind::NotFound, |mut found| found.next().is_none())
}

/// Whether the creation of the store was interrupted. Such a store is empty and can be created
/// again.
pub fn is_incomplete(dir: &Path) -> bool {
    dir.join("PERCOLITE.new").exists()
}

/// The error of an opening for writing that failed.
fn write_error(dir: &Path, err: Error) -> anyhow::Error {
    let is_read_only =
        |text: &str| ["Read-only file system", "Permission denied"].iter().any(|cause| text.contains(cause));
    if matches!(err.kind(), ErrorKind::Io(text) if is_read_only(text)) {
        return advice::not_writable(dir, &text_of(&err));
    }
    open_error(dir, err)
}

/// Waits for the background cleanup of large transactions' row locks, then closes the store. An
/// interrupt ends the wait without harm: the transactions are already durable, and the next opening
/// for writing removes the remaining locks.
pub fn close_after_cleanup(store: Store) -> Result<()> {
    if store.stats().cleanup_pending > 0 {
        let interrupt = Interrupt::watch()?;
        let progress = Progress::items("rows");
        let (mut cleaned, mut last_progress) = (0, Instant::now());
        loop {
            let stats = store.stats();
            if stats.cleanup_pending == 0 || last_progress.elapsed() > CLEANUP_TIMEOUT {
                break;
            }
            if stats.cleanup_rows > cleaned {
                (cleaned, last_progress) = (stats.cleanup_rows, Instant::now());
            }
            if interrupt.is_requested() {
                store.close()?;
                return Err(Code::Interrupted.error(
                    "interrupted after the commit, which is durable; \
                     remaining row locks are released when the store is next opened for writing",
                ));
            }
            progress.expect(stats.large_rows_locked, "");
            progress.set(cleaned, "rows unlocked after the commit");
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    Ok(store.close()?)
}

/// Rejects a new directory inside the store's directory.
pub fn reject_nested(store: &Path, new: &Path) -> Result<()> {
    let Ok(store) = store.canonicalize() else { return Ok(()) };
    // The new path may not exist yet, so its deepest existing ancestor is compared.
    let above = std::path::absolute(new).ok().and_then(|new| new.ancestors().find_map(|part| part.canonicalize().ok()));
    if above.is_some_and(|above| above.starts_with(&store)) {
        return Err(Code::Failed.error(format!("{} is inside the store: name a path outside", new.display())));
    }
    Ok(())
}

/// Like [`keyspace`], for commands with the option --create: the error for a missing keyspace names
/// this option.
pub fn keyspace_to_write(store: &Store, name: &str, create: bool) -> Result<Keyspace> {
    keyspace(store, name, create).map_err(|err| match Code::of(&err) {
        Code::NotFound => Code::NotFound.error(format!("{err}; --create creates it")),
        _ => err,
    })
}

/// The keyspace of this name; a missing one is created if `create`, else an error.
pub fn keyspace(store: &Store, name: &str, create: bool) -> Result<Keyspace> {
    if create {
        return Ok(store.keyspace(name)?);
    }
    match store.existing_keyspace(name) {
        Err(err) if matches!(err.kind(), ErrorKind::KeyspaceNotFound(_)) => {
            let names = store.keyspace_names()?;
            let existing = match names.as_slice() {
                [] => "the store has none yet".to_owned(),
                some => format!(
                    "there are {}",
                    some.iter().take(20).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
                ),
            };
            Err(Code::NotFound.error(format!("{err}; {existing}")))
        }
        found => Ok(found?),
    }
}
