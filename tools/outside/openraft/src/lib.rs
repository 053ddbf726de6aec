//! A log and a state machine of `openraft` on percolite.
//!
//! Both lie in one store. What Raft must not forget (vote, entries, purge) is committed with a
//! sync before the call returns or its callback is called. An applied entry and its log id are one
//! transaction, so a crash never applies an entry twice. A snapshot of the state machine is a
//! snapshot of the store.

mod log;
mod state_machine;

pub use log::Log;
pub use state_machine::{Request, Response, StateMachine};

use std::io::Cursor;

use openraft::{AnyError, StorageError, StorageIOError};
use percolite::{AsyncStore, Error, Keyspace};
use serde::Serialize;
use serde::de::DeserializeOwned;

openraft::declare_raft_types!(
    /// Numbers as names of nodes, snapshots in memory.
    pub TypeConfig:
        D = Request,
        R = Response,
);

/// Opens the log and the state machine of a store.
pub async fn open(store: AsyncStore) -> percolite::Result<(Log, StateMachine)> {
    let log = Log::new(Table::open(&store, "log").await?, Table::open(&store, "log-state").await?);
    let rows = Table::open(&store, "rows").await?;
    let state = Table::open(&store, "state").await?;
    Ok((log, StateMachine::new(rows, state)))
}

/// A keyspace and the store that it belongs to.
#[derive(Clone)]
struct Table {
    store: AsyncStore,
    rows: Keyspace,
}

impl Table {
    async fn open(store: &AsyncStore, name: &str) -> percolite::Result<Self> {
        Ok(Self { store: store.clone(), rows: store.keyspace(name).await? })
    }

    async fn get<T: DeserializeOwned>(&self, key: &str) -> percolite::Result<Option<T>> {
        self.store.get(&self.rows, key).await?.map(|bytes| decode(&bytes)).transpose()
    }

    async fn put(&self, key: &'static str, value: &impl Serialize) -> percolite::Result<()> {
        let (rows, bytes) = (self.rows.clone(), encode(value)?);
        self.store.transact(move |txn| txn.put(&rows, key, &bytes)).await
    }
}

fn encode(value: &impl Serialize) -> percolite::Result<Vec<u8>> {
    bincode::serde::encode_to_vec(value, bincode::config::standard())
        .map_err(|error| percolite::ErrorKind::InvalidArgument(error.to_string()).into())
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> percolite::Result<T> {
    bincode::serde::decode_from_slice(bytes, bincode::config::standard())
        .map(|(value, _)| value)
        .map_err(|error| percolite::ErrorKind::Corruption(error.to_string()).into())
}

/// The error of a read or write in the form of `openraft`.
fn storage_error(of: fn(AnyError) -> StorageIOError<u64>) -> impl Fn(Error) -> StorageError<u64> {
    move |error| of(AnyError::new(&error)).into()
}
