//! Opening a store, and what to say when that fails.

use std::path::{Path, PathBuf};

use anyhow::Result;
use percolite::{Builder, Error, ErrorKind, Keyspace, Store};

use crate::exit::Code;

/// The store's folder.
#[derive(clap::Args)]
pub struct Folder {
    /// The store's folder
    #[arg(value_name = "STORE")]
    pub folder: PathBuf,
}

impl Folder {
    /// To look: nothing in the folder is changed.
    pub fn look(&self) -> Result<Store> {
        Ok(Store::builder().read_only(true).open(&self.folder)?)
    }

    /// To write to a store that is there, with options of its own.
    pub fn write_with(&self, options: impl FnOnce(Builder) -> Builder) -> Result<Store> {
        if !is_store(&self.folder) {
            drop(self.look()?);
        }
        options(Store::builder()).open(&self.folder).map_err(|why| may_not_write(&self.folder, why))
    }

    /// To write to a store that is there, or to make one if `create` is said.
    pub fn write(&self, create: bool) -> Result<Store> {
        if !create && !is_store(&self.folder) {
            // Looking says best what there is instead.
            return match Store::builder().read_only(true).open(&self.folder) {
                Ok(_) => Ok(Store::open(&self.folder)?),
                Err(why) if is_missing(&self.folder) => {
                    Err(Code::NotAStore.error(format!("{why}; to make a store there, say --create")))
                }
                Err(why) => Err(why.into()),
            };
        }
        Store::open(&self.folder).map_err(|why| may_not_write(&self.folder, why))
    }
}

fn is_store(folder: &Path) -> bool {
    folder.join("PERCOLITE").exists()
}

fn is_missing(folder: &Path) -> bool {
    std::fs::read_dir(folder)
        .map_or_else(|why| why.kind() == std::io::ErrorKind::NotFound, |mut found| found.next().is_none())
}

fn may_not_write(folder: &Path, why: Error) -> anyhow::Error {
    let read_only = matches!(why.kind(), ErrorKind::Io(text) if text.contains("Read-only file system") || text.contains("Permission denied"));
    if read_only {
        let what =
            format!("{} cannot be written to ({why}); looking at it works: get, scan, dump, verify", folder.display());
        return Code::Failed.error(what);
    }
    why.into()
}

/// A keyspace that is there, or is made if `create` is said.
pub fn keyspace(store: &Store, name: &str, create: bool) -> Result<Keyspace> {
    if create {
        return Ok(store.keyspace(name)?);
    }
    match store.existing_keyspace(name) {
        Err(why) if matches!(why.kind(), ErrorKind::NoSuchKeyspace(_)) => {
            let names = store.keyspaces()?;
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
