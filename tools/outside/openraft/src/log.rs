//! The log: a row for each entry, named by its index.

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{Entry, LogId, LogState, OptionalSend, RaftLogReader, StorageError, StorageIOError, Vote};

use crate::{Table, TypeConfig, decode, encode, storage_error};

const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";

/// The log of a node. Clones are readers of the same log.
#[derive(Clone)]
pub struct Log {
    entries: Table,
    state: Table,
}

impl Log {
    pub(crate) fn new(entries: Table, state: Table) -> Self {
        Self { entries, state }
    }

    fn range(&self, from: Bound<u64>, to: Bound<u64>) -> percolite::AsyncScan {
        let key = |index: u64| index.to_be_bytes().to_vec();
        self.entries.store.range(&self.entries.rows, (from.map(key), to.map(key)))
    }

    async fn entries_in(&self, from: Bound<u64>, to: Bound<u64>) -> percolite::Result<Vec<Entry<TypeConfig>>> {
        let mut scan = self.range(from, to);
        let mut entries = Vec::new();
        while let Some(row) = scan.next().await {
            entries.push(decode(row?.value())?);
        }
        Ok(entries)
    }

    async fn last_entry(&self) -> percolite::Result<Option<Entry<TypeConfig>>> {
        let mut scan = self.range(Bound::Unbounded, Bound::Unbounded).rev();
        scan.next().await.map(|row| decode(row?.value())).transpose()
    }
}

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<TypeConfig>>, StorageError<u64>> {
        let (from, to) = (range.start_bound().cloned(), range.end_bound().cloned());
        self.entries_in(from, to).await.map_err(storage_error(StorageIOError::read_logs))
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError<u64>> {
        let read_error = storage_error(StorageIOError::read_logs);
        let last_purged_log_id: Option<LogId<u64>> = self.state.get(PURGED).await.map_err(&read_error)?;
        let last = self.last_entry().await.map_err(read_error)?;
        let last_log_id = last.map(|entry| entry.log_id).or(last_purged_log_id);
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), StorageError<u64>> {
        self.state.put(VOTE, vote).await.map_err(storage_error(StorageIOError::write_vote))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, StorageError<u64>> {
        self.state.get(VOTE).await.map_err(storage_error(StorageIOError::read_vote))
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<(), StorageError<u64>> {
        self.state.put(COMMITTED, &committed).await.map_err(storage_error(StorageIOError::write_logs))
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>, StorageError<u64>> {
        let committed = self.state.get::<Option<LogId<u64>>>(COMMITTED).await;
        Ok(committed.map_err(storage_error(StorageIOError::read_logs))?.flatten())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let rows = self.entries.rows.clone();
        let write_error = storage_error(StorageIOError::write_logs);
        let entries: Result<Vec<_>, _> =
            entries.into_iter().map(|entry| Ok((entry.log_id.index.to_be_bytes(), encode(&entry)?))).collect();
        let entries = entries.map_err(&write_error)?;
        let write = self
            .entries
            .store
            .transact(move |txn| entries.iter().try_for_each(|(key, bytes)| txn.put(&rows, key, bytes)));
        write.await.map_err(write_error)?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        let rows = self.entries.rows.clone();
        let from = log_id.index.to_be_bytes();
        let delete = self.entries.store.transact(move |txn| txn.delete_range(&rows, from..).map(drop));
        delete.await.map_err(storage_error(StorageIOError::write_logs))
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        let (rows, state) = (self.entries.rows.clone(), self.state.rows.clone());
        let to = log_id.index.to_be_bytes();
        let write_error = storage_error(StorageIOError::write_logs);
        let purged = encode(&log_id).map_err(&write_error)?;
        let delete = self.entries.store.transact(move |txn| {
            txn.delete_range(&rows, ..=to)?;
            txn.put(&state, PURGED, &purged)
        });
        delete.await.map_err(write_error)
    }
}
