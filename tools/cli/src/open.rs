//! Opening a store, and what to say when that fails.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use percolite::{Builder, Error, ErrorKind, Keyspace, Store, StoreStatus};

use crate::exit::Code;
use crate::history;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::tuning::Tuning;

/// How often to look whether the background is done.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Background work that fails is tried again and again; who waits for it does so no longer than this.
const STUCK: Duration = Duration::from_secs(30);

/// The store's folder.
#[derive(clap::Args)]
pub struct Folder {
    /// The store's folder
    #[arg(value_name = "STORE")]
    pub folder: PathBuf,
}

/// What can be seen of a store from outside.
pub enum Seen {
    /// Nobody has it open for writing.
    Closed(Store),
    /// Somebody has, and says what it does.
    Open(Box<StoreStatus>),
}

/// What opening a store comes to that another process may have open.
pub enum Opened {
    /// Losses of commits that were accepted are for the caller to tell.
    Store(Store),
    Busy,
}

impl Folder {
    /// To look: nothing in the folder is changed.
    pub fn look(&self) -> Result<Store> {
        self.look_silently().map(telling_lost)
    }

    /// The same where losses of commits that were accepted are told elsewhere.
    pub fn look_silently(&self) -> Result<Store> {
        Store::builder().read_only(true).open(&self.folder).map_err(|why| does_not_open(&self.folder, why))
    }

    /// To look, if need be with the eyes of the process that has it open. Losses of commits that were accepted are for the caller to tell.
    pub fn look_in(&self) -> Result<Seen> {
        let why = match Store::builder().read_only(true).open(&self.folder) {
            Ok(store) => return Ok(Seen::Closed(store)),
            Err(why) if matches!(why.kind(), ErrorKind::AlreadyOpen(_)) => why,
            Err(why) => return Err(does_not_open(&self.folder, why)),
        };
        match StoreStatus::read_from(&self.folder)? {
            Some(status) => Ok(Seen::Open(Box::new(status))),
            None => Err(Code::Busy.error(format!(
                "{why}; what that process does it does not say (yet): a program does so, a second after it has opened the store, with Builder::publish_status(Duration::from_secs(1))"
            ))),
        }
    }

    /// To look, where a store that another process has open is for the caller to wait for.
    pub fn look_unless_busy(&self) -> Result<Opened> {
        unless_busy(Store::builder().read_only(true).open(&self.folder)).map_err(|why| does_not_open(&self.folder, why))
    }

    /// To write to a store that is there, in the same way.
    pub fn write_unless_busy(&self, builder: Builder) -> Result<Opened> {
        if !is_store(&self.folder) {
            // Looking says best what there is instead.
            drop(self.look_silently()?);
        }
        unless_busy(builder.open(&self.folder)).map_err(|why| may_not_write(&self.folder, why))
    }

    /// What is said when it was busy all the time.
    pub fn still_open(&self, waited: Duration) -> anyhow::Error {
        let what = format!(
            "{} is open in another process; waited {} for it",
            self.folder.display(),
            history::readable(waited)
        );
        Code::Busy.error(what)
    }

    /// To write to a store that is there, with options of its own.
    pub fn write_with(&self, options: impl FnOnce(Builder) -> Builder) -> Result<Store> {
        if !is_store(&self.folder) {
            drop(self.look_silently()?);
        }
        opened(&self.folder, options(Store::builder()))
    }

    /// To write to a store that is there, or to make one if `create` is said.
    pub fn write(&self, create: bool) -> Result<Store> {
        self.write_tuned(create, &Tuning::default())
    }

    /// The same, with the options of those commands that write much.
    pub fn write_tuned(&self, create: bool, tuning: &Tuning) -> Result<Store> {
        if !create && !is_store(&self.folder) {
            // Looking says best what there is instead.
            return match Store::builder().read_only(true).open(&self.folder) {
                Ok(_) => opened(&self.folder, tuning.builder()),
                Err(why) if is_missing(&self.folder) || is_unfinished(&self.folder) => {
                    Err(Code::NotAStore.error(format!("{why}; to make a store there, say --create")))
                }
                Err(why) => Err(does_not_open(&self.folder, why)),
            };
        }
        opened(&self.folder, tuning.builder())
    }
}

fn unless_busy(opened: Result<Store, Error>) -> Result<Opened, Error> {
    match opened {
        Ok(store) => Ok(Opened::Store(store)),
        Err(why) if matches!(why.kind(), ErrorKind::AlreadyOpen(_)) => Ok(Opened::Busy),
        Err(why) => Err(why),
    }
}

fn opened(folder: &Path, builder: Builder) -> Result<Store> {
    builder.open(folder).map(telling_lost).map_err(|why| may_not_write(folder, why))
}

/// Tells people without which acknowledged commits the store was opened, which no exit code says.
pub fn telling_lost(store: Store) -> Store {
    for lost in store.data_losses() {
        let folder = lost.file.parent().and_then(Path::parent).map(quoted).unwrap_or_default();
        eprintln!("warning: {lost}; percolite verify {folder} shows it, and its --help says what to do");
    }
    store
}

/// An error of opening. Of a damaged store nothing can be asked then, and only what is left of it can be had.
fn does_not_open(folder: &Path, why: Error) -> anyhow::Error {
    match why.kind() {
        ErrorKind::Corruption(what) => {
            let ways = backup_or_repair(folder);
            let accept = lost_commits(what)
                .map(|loss| format!(", or without these commits: percolite accept-loss {} {loss}", quoted(folder)));
            Code::Damaged.error(format!("{why}; it does not open; {ways}{}", accept.unwrap_or_default()))
        }
        _ => why.into(),
    }
}

/// The fingerprint of the loss that the error names, if the log has lost commits.
fn lost_commits(what: &str) -> Option<&str> {
    what.split_once("(loss ")?.1.get(..16)
}

/// What to do about a store that is damaged.
pub fn backup_or_repair(folder: &Path) -> String {
    format!("go back to a checkpoint or a dump, or else: percolite repair {} NEW", quoted(folder))
}

/// A folder as a shell takes it.
pub fn quoted(folder: &Path) -> String {
    let folder = folder.display().to_string();
    shlex::try_quote(&folder).map_or_else(|_| folder.clone(), Into::into)
}

fn is_store(folder: &Path) -> bool {
    folder.join("PERCOLITE").exists()
}

fn is_missing(folder: &Path) -> bool {
    std::fs::read_dir(folder)
        .map_or_else(|why| why.kind() == std::io::ErrorKind::NotFound, |mut found| found.next().is_none())
}

/// Whether making it was cut short. It is empty then, and may be made again.
pub fn is_unfinished(folder: &Path) -> bool {
    folder.join("PERCOLITE.new").exists()
}

fn may_not_write(folder: &Path, why: Error) -> anyhow::Error {
    let read_only = matches!(why.kind(), ErrorKind::Io(text) if text.contains("Read-only file system") || text.contains("Permission denied"));
    if read_only {
        let what =
            format!("{} cannot be written to ({why}); looking at it works: get, scan, dump, verify", folder.display());
        return Code::Failed.error(what);
    }
    does_not_open(folder, why)
}

/// Waits until the rows of large transactions are unlocked, which goes on in the background behind their commit, and closes the
/// store. Whoever does not want to wait loses nothing.
pub fn finish(store: Store) -> Result<()> {
    if store.stats().cleanup_pending > 0 {
        let interrupt = Interrupt::watch()?;
        let progress = Progress::of("rows");
        let (mut ended, mut moved) = (0, Instant::now());
        loop {
            let stats = store.stats();
            if stats.cleanup_pending == 0 || moved.elapsed() > STUCK {
                break;
            }
            if stats.cleanup_rows > ended {
                (ended, moved) = (stats.cleanup_rows, Instant::now());
            }
            if interrupt.is_wanted() {
                store.close()?;
                return Err(Code::Interrupted.error(
                    "interrupted behind the commit, so nothing is lost: all of it is in, and the rows that are still locked are unlocked when the store is next opened for writing",
                ));
            }
            progress.expect(stats.large_rows_locked, "");
            progress.at(ended, "rows unlocked after the commit");
            std::thread::sleep(LOOK_EVERY);
        }
    }
    Ok(store.close()?)
}

/// Refuses a new folder in a store's own.
pub fn refuse_inside(store: &Path, new: &Path) -> Result<()> {
    let Ok(store) = store.canonicalize() else { return Ok(()) };
    // Of the new one there may be no more than the beginning.
    let above = std::path::absolute(new).ok().and_then(|new| new.ancestors().find_map(|part| part.canonicalize().ok()));
    if above.is_some_and(|above| above.starts_with(&store)) {
        let what = format!("{} lies in the store's own folder: name one outside", new.display());
        return Err(Code::Failed.error(what));
    }
    Ok(())
}

/// As [`keyspace`], for commands that have an option to make it.
pub fn keyspace_to_write(store: &Store, name: &str, create: bool) -> Result<Keyspace> {
    keyspace(store, name, create).map_err(|why| match Code::of(&why) {
        Code::Missing => Code::Missing.error(format!("{why}; --create makes it")),
        _ => why,
    })
}

/// A keyspace that is there, or is made if `create` is said.
pub fn keyspace(store: &Store, name: &str, create: bool) -> Result<Keyspace> {
    if create {
        return Ok(store.keyspace(name)?);
    }
    match store.existing_keyspace(name) {
        Err(why) if matches!(why.kind(), ErrorKind::KeyspaceNotFound(_)) => {
            let names = store.keyspace_names()?;
            let there_are = match names.as_slice() {
                [] => "the store has none yet".to_owned(),
                some => format!(
                    "there are {}",
                    some.iter().take(20).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
                ),
            };
            Err(Code::Missing.error(format!("{why}; {there_are}")))
        }
        found => Ok(found?),
    }
}
