//! What becomes of the keyspace beside: clients drop it, empty it, rename it, and make it again, while others write to it.

use percolite::{Error, ErrorKind, Keyspace, Txn};

use super::{Client, WRITE_TO_DROPPED, ignore_too_old, tolerate};
use crate::key_encoding::encode_key;

/// The one beside it, which comes and goes, so that transactions span two. It is created first and thus holds the primary
/// of those that do.
pub const SECOND: &str = "second";
/// The name that the one beside gets where keyspaces are renamed.
pub const RENAMED: &str = "renamed";

impl Client<'_> {
    /// Drops the keyspace beside, and goes on without it until [`Client::create_beside`]; or has an empty one take its place.
    ///
    /// # Errors
    /// Those of the store, but not that another client has dropped it just now.
    pub fn drop_second(&mut self) -> Result<(), Error> {
        if self.store.stats().history_start_ts.is_some() && self.rng.one_in(2) {
            // With what is dropped, which is not to go before the past in which it was there.
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
            // Another client is about to drop it, or gives that up.
            Err(why) if matches!(why.kind(), ErrorKind::KeyspaceNotFound(_)) || why.is_retryable() => return Ok(()),
            dropped => dropped?,
        }
        if let Some(second) = &second {
            let now = self.store.begin()?.start_ts();
            self.past.dropped.lock().insert(second.id(), now);
        }
        self.dropped = second;
        match open_txn.transpose() {
            Ok(Some(txn)) => match txn.commit() {
                Ok(_) => Err(ErrorKind::Corruption(WRITE_TO_DROPPED.into()).into()),
                Err(why) => tolerate(why).map(drop),
            },
            Ok(None) => Ok(()),
            Err(why) => tolerate(why).map(drop),
        }
    }

    /// Drops or renames the keyspace beside, and makes it again; too slow for the age limit is no error.
    ///
    /// # Errors
    /// Those of the store.
    pub fn replace_second(&mut self, renames: bool) -> Result<(), Error> {
        let replaced = if renames { self.rename_second() } else { self.drop_second() };
        ignore_too_old(replaced.and_then(|()| self.create_second()))
    }

    /// Renames the keyspace beside, or makes or drops one of the name that it would get. No row of one that is there may be lost by that.
    ///
    /// # Errors
    /// Those of the store, but not that another client was first.
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
            // It is there already.
            Err(why) if matches!(why.kind(), ErrorKind::InvalidArgument(_)) => Ok(()),
            Err(why) => tolerate(why).map(drop),
            Ok(()) => Ok(()),
        }
    }

    /// A transaction that is not to commit: what it has written to is about to go.
    fn write_second(&mut self, second: &Keyspace) -> Result<Txn, Error> {
        let mut txn = self.store.begin_with(self.options())?;
        txn.put(second, encode_key(&self.rng.below(3).to_string()), "gone")?;
        Ok(txn)
    }

    /// Creates the keyspace beside, if it is not there.
    ///
    /// # Errors
    /// Those of the store.
    pub fn create_second(&mut self) -> Result<(), Error> {
        self.second = Some(self.store.keyspace(SECOND)?);
        Ok(())
    }
}
