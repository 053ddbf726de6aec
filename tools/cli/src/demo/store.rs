//! The directory and the keyspaces of the demo.
//!
//! The directory is a temporary one, removed at the end, or one that the user has named. The demo
//! empties its keyspaces at the start, so it must not run on a user's store. A store of the demo
//! has an empty marker keyspace; any other store with keyspaces is rejected.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use percolite::{Keyspace, Store};

const MARKER_KEYSPACE: &str = "percolite demo";
const RECORDS: &str = "records";
const INDEX: &str = "index";
const ACCOUNTS: &str = "accounts";
const HOT: &str = "hot accounts";

/// The directory of the store.
pub struct DemoDir {
    path: PathBuf,
    remove: bool,
}

impl DemoDir {
    /// The directory that the user has named, or a new temporary one.
    pub fn new(named: Option<&Path>, keep: bool) -> Result<Self> {
        if let Some(path) = named {
            return Ok(Self { path: path.to_owned(), remove: false });
        }
        let name = format!("percolite-demo-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create the directory {}", path.display()))?;
        Ok(Self { path, remove: !keep })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory is removed at the end.
    pub fn is_temporary(&self) -> bool {
        self.remove
    }
}

impl Drop for DemoDir {
    fn drop(&mut self) {
        if self.remove
            && let Err(err) = std::fs::remove_dir_all(&self.path)
        {
            eprintln!("warning: cannot remove {}: {err}", self.path.display());
        }
    }
}

/// The demo's keyspaces.
#[derive(Clone)]
pub struct Keyspaces {
    /// The data set. Key: the key of a record; value: the record as a JSON object.
    pub records: Keyspace,
    /// The secondary index. Key: an indexed value, a zero byte, the key of a record; value: that
    /// key.
    pub index: Keyspace,
    /// Many accounts. Key: a number of four digits; value: the balance.
    pub accounts: Keyspace,
    /// A few accounts, on which transfers conflict. Key and value are as in `accounts`.
    pub hot: Keyspace,
}

impl Keyspaces {
    /// Creates the keyspaces, and empties existing ones.
    pub fn create(store: &Store) -> Result<Self> {
        let existing = store.keyspace_names()?;
        if let Some(other) = existing.first().filter(|_| !existing.iter().any(|name| name == MARKER_KEYSPACE)) {
            bail!("the store has other data (keyspace {other:?}); use a separate directory for the demo");
        }
        store.keyspace(MARKER_KEYSPACE)?;
        for name in [RECORDS, INDEX, ACCOUNTS, HOT] {
            if existing.iter().any(|other| other == name) {
                store.drop_keyspace(name)?;
            }
        }
        Self::open(store)
    }

    /// Opens the keyspaces.
    pub fn open(store: &Store) -> Result<Self> {
        Ok(Self {
            records: store.keyspace(RECORDS)?,
            index: store.keyspace(INDEX)?,
            accounts: store.keyspace(ACCOUNTS)?,
            hot: store.keyspace(HOT)?,
        })
    }

    /// All of them.
    pub fn all(&self) -> [&Keyspace; 4] {
        [&self.records, &self.index, &self.accounts, &self.hot]
    }
}
