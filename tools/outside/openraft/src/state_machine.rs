//! The state machine: rows that requests set.

use std::io::Cursor;
use std::sync::Arc;

use openraft::storage::RaftStateMachine;
use openraft::{
    BasicNode, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError,
    StorageIOError, StoredMembership,
};
use percolite::Txn;
use serde::{Deserialize, Serialize};

use crate::{Table, TypeConfig, decode, encode, storage_error};

const APPLIED: &str = "applied";
const SNAPSHOT: &str = "snapshot";

/// Sets a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The key of the row.
    pub key: String,
    /// Its new value.
    pub value: String,
}

/// The value that was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response(pub Option<String>);

/// What was applied last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Applied {
    log_id: Option<LogId<u64>>,
    membership: StoredMembership<u64, BasicNode>,
}

/// A snapshot as it is stored: its description, and the rows as bytes.
#[derive(Serialize, Deserialize)]
struct StoredSnapshot {
    meta: SnapshotMeta<u64, BasicNode>,
    rows: Vec<u8>,
}

/// The state machine of a node. Clones are the same state machine.
#[derive(Clone)]
pub struct StateMachine {
    rows: Table,
    state: Table,
}

impl StateMachine {
    pub(crate) fn new(rows: Table, state: Table) -> Self {
        Self { rows, state }
    }

    async fn applied(&self) -> percolite::Result<Applied> {
        Ok(self.state.get(APPLIED).await?.unwrap_or_default())
    }

    /// Applies entries, and notes the last of them, in one transaction.
    fn apply_in(&self, txn: &mut Txn, entries: &[Entry<TypeConfig>]) -> percolite::Result<Vec<Response>> {
        let mut applied: Applied =
            txn.get(&self.state.rows, APPLIED)?.map(|bytes| decode(&bytes)).transpose()?.unwrap_or_default();
        let mut responses = Vec::new();
        for entry in entries {
            let mut replaced = None;
            match &entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(request) => {
                    replaced = txn.get(&self.rows.rows, &request.key)?.map(|old| decode(&old)).transpose()?;
                    txn.put(&self.rows.rows, &request.key, encode(&request.value)?)?;
                }
                EntryPayload::Membership(membership) => {
                    applied.membership = StoredMembership::new(Some(entry.log_id), membership.clone());
                }
            }
            applied.log_id = Some(entry.log_id);
            responses.push(Response(replaced));
        }
        txn.put(&self.state.rows, APPLIED, encode(&applied)?)?;
        Ok(responses)
    }

    async fn build(&self) -> percolite::Result<StoredSnapshot> {
        let view = self.rows.store.snapshot().await?;
        let applied: Applied =
            view.get(&self.state.rows, APPLIED).await?.map(|bytes| decode(&bytes)).transpose()?.unwrap_or_default();
        let mut rows: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut scan = view.range(&self.rows.rows, ..);
        while let Some(row) = scan.next().await {
            let (key, value) = row?.into_parts();
            rows.push((key, value.to_vec()));
        }
        let snapshot_id = format!("{}", view.read_ts());
        let meta = SnapshotMeta { last_log_id: applied.log_id, last_membership: applied.membership, snapshot_id };
        let snapshot = StoredSnapshot { meta, rows: encode(&rows)? };
        self.state.put(SNAPSHOT, &snapshot).await?;
        Ok(snapshot)
    }

    async fn install(&self, snapshot: StoredSnapshot) -> percolite::Result<()> {
        let rows: Arc<Vec<(Vec<u8>, Vec<u8>)>> = Arc::new(decode(&snapshot.rows)?);
        let SnapshotMeta { last_log_id: log_id, last_membership: membership, .. } = snapshot.meta.clone();
        let (applied, snapshot) = (encode(&Applied { log_id, membership })?, encode(&snapshot)?);
        let machine = self.clone();
        self.rows
            .store
            .transact(move |txn| {
                txn.delete_range(&machine.rows.rows, ..)?;
                for (key, value) in &*rows {
                    txn.put(&machine.rows.rows, key, value)?;
                }
                txn.put(&machine.state.rows, APPLIED, &applied)?;
                txn.put(&machine.state.rows, SNAPSHOT, &snapshot)
            })
            .await
    }
}

impl From<StoredSnapshot> for Snapshot<TypeConfig> {
    fn from(snapshot: StoredSnapshot) -> Self {
        Self { meta: snapshot.meta, snapshot: Box::new(Cursor::new(snapshot.rows)) }
    }
}

impl RaftSnapshotBuilder<TypeConfig> for StateMachine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError<u64>> {
        self.build().await.map(Into::into).map_err(storage_error(StorageIOError::read_state_machine))
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>), StorageError<u64>> {
        let applied = self.applied().await.map_err(storage_error(StorageIOError::read_state_machine))?;
        Ok((applied.log_id, applied.membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Response>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (machine, entries) = (self.clone(), entries.into_iter().collect::<Vec<_>>());
        let apply = self.rows.store.transact(move |txn| machine.apply_in(txn, &entries));
        apply.await.map_err(storage_error(StorageIOError::write_state_machine))
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError<u64>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<u64>> {
        let snapshot = StoredSnapshot { meta: meta.clone(), rows: snapshot.into_inner() };
        self.install(snapshot).await.map_err(storage_error(StorageIOError::write_state_machine))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError<u64>> {
        let snapshot = self.state.get::<StoredSnapshot>(SNAPSHOT).await;
        let snapshot = snapshot.map_err(storage_error(StorageIOError::read_state_machine))?;
        Ok(snapshot.map(Into::into))
    }
}
