//! Where the demo's store lives: a directory of its own under the temporary ones, gone at the end, or one that the user named,
//! which stays.
//!
//! The demo empties its own keyspaces at the start, so it must never be let loose on somebody's store. A store that it has
//! made carries an empty keyspace as a sign; any other store that holds something is refused.

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

/// The store's directory.
pub struct DemoDir {
    path: PathBuf,
    remove: bool,
}

impl DemoDir {
    /// The directory that the user named, or a fresh one.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it goes at the end.
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
    /// The data set: a record's key, and the record as a JSON object.
    pub records: Keyspace,
    /// The secondary index: an indexed value, a zero byte and a record's key; and that key again.
    pub index: Keyspace,
    /// Many accounts: a number of four digits, and the balance.
    pub accounts: Keyspace,
    /// Few accounts, which everybody wants.
    pub hot: Keyspace,
}

impl Keyspaces {
    /// New and empty.
    pub fn create(store: &Store) -> Result<Self> {
        let there = store.keyspace_names()?;
        if let Some(other) = there.first().filter(|_| !there.iter().any(|name| name == MARKER_KEYSPACE)) {
            bail!("the store holds other data (keyspace {other:?}); the demo wants a directory of its own");
        }
        store.keyspace(MARKER_KEYSPACE)?;
        for name in [RECORDS, INDEX, ACCOUNTS, HOT] {
            if there.iter().any(|old| old == name) {
                store.drop_keyspace(name)?;
            }
        }
        Self::open(store)
    }

    /// Those that are there.
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
