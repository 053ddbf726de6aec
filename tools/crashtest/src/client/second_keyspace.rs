//! Operations on the second keyspace: clients drop, truncate, rename and recreate it while others
//! write to it.

use percolite::{Error, ErrorKind, Keyspace, Txn};

use super::{Client, WRITE_TO_DROPPED, ignore_too_old, tolerate};
use crate::key_encoding::encode_key;

/// The second keyspace, so that transactions span two keyspaces. It is created before
/// [`ROWS`](super::ROWS), so its rows sort first and become primaries.
pub const SECOND: &str = "second";
/// The name to which the second keyspace is renamed.
pub const RENAMED: &str = "renamed";

impl Client<'_> {
    /// Drops or truncates the second keyspace. [`Client::create_second`] recreates a dropped one.
    ///
    /// # Errors
    /// Errors of the store, except those of a concurrent drop by another client.
    pub fn drop_second(&mut self) -> Result<(), Error> {
        if self.store.stats().history_start_ts.is_some() && self.rng.one_in(2) {
            // The digest contains the dropped rows, which must stay readable in the history.
            self.record_digest(&self.store.snapshot()?)?;
        }
        let second = self.second.take().filter(|_| !self.renames);
        let open_txn = match &second {
            Some(second) if self.rng.one_in(2) => Some(self.write_second(second)),
            _ => None,
        };
        let dropped = if self.rng.one_in(3) {
            self.store.truncate_keyspace(SECOND).map(|emptied| self.second = Some(emptied))
        } else {
            self.store.drop_keyspace(SECOND)
        };
        match dropped {
            // Another client has dropped the keyspace, or the drop has failed and could be retried.
            Err(error) if matches!(error.kind(), ErrorKind::KeyspaceNotFound(_)) || error.is_retryable() => {
                return Ok(());
            }
            dropped => dropped?,
        }
        if let Some(second) = &second {
            let now = self.store.begin()?.start_ts();
            self.history_digests.dropped.lock().insert(second.id(), now);
        }
        self.dropped = second;
        match open_txn.transpose() {
            Ok(Some(txn)) => match txn.commit() {
                Ok(_) => Err(ErrorKind::Corruption(WRITE_TO_DROPPED.into()).into()),
                Err(error) => tolerate(error).map(drop),
            },
            Ok(None) => Ok(()),
            Err(error) => tolerate(error).map(drop),
        }
    }

    /// Drops or renames the second keyspace and recreates it. An error about a snapshot that is too
    /// old is ignored.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn replace_second(&mut self, renames: bool) -> Result<(), Error> {
        let replaced = if renames { self.rename_second() } else { self.drop_second() };
        ignore_too_old(replaced.and_then(|()| self.create_second()))
    }

    /// At random, renames the second keyspace to [`RENAMED`], writes to a keyspace of this name, or
    /// drops it. So a rename may find a keyspace of this name, which it must not replace.
    ///
    /// # Errors
    /// Errors of the store, except those of concurrent operations of other clients.
    pub fn rename_second(&mut self) -> Result<(), Error> {
        let done = match self.rng.below(3) {
            0 => self.store.rename_keyspace(SECOND, RENAMED).map(drop),
            1 => {
                let renamed = self.store.keyspace(RENAMED)?;
                self.store.transact(|txn| txn.put(&renamed, encode_key("renamed"), "renamed"))
            }
            _ => self.store.drop_keyspace(RENAMED),
        };
        match done {
            // The new name exists already.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidArgument(_)) => Ok(()),
            Err(error) => tolerate(error).map(drop),
            Ok(()) => Ok(()),
        }
    }

    /// Begins a transaction that writes to the second keyspace. The keyspace is about to be dropped
    /// or truncated, so the transaction must not commit.
    fn write_second(&mut self, second: &Keyspace) -> Result<Txn, Error> {
        let mut txn = self.store.begin_with(self.options())?;
        txn.put(second, encode_key(&self.rng.below(3).to_string()), "dropped")?;
        Ok(txn)
    }

    /// Creates the second keyspace if it is missing.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn create_second(&mut self) -> Result<(), Error> {
        self.second = Some(self.store.keyspace(SECOND)?);
        Ok(())
    }
}
