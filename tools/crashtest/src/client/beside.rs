//! What becomes of the keyspace beside: clients drop it, empty it, rename it, and make it again, while others write to it.

use percolite::{Error, ErrorKind, Keyspace, Txn};

use super::{Client, WRITTEN_TO_GONE, may_happen, unless_too_old};
use crate::keys::stored;

/// The one beside it, which comes and goes, so that transactions span two. It is created first and thus holds the primary
/// of those that do.
pub const BESIDE: &str = "beside";
/// The name that the one beside gets where keyspaces are renamed.
pub const ASIDE: &str = "aside";

impl Client<'_> {
    /// Drops the keyspace beside, and goes on without it until [`Client::create_beside`]; or has an empty one take its place.
    ///
    /// # Errors
    /// Those of the store, but not that another client has dropped it just now.
    pub fn drop_beside(&mut self) -> Result<(), Error> {
        if self.store.stats().history_start_ts.is_some() && self.dice.one_in(2) {
            // With what is dropped, which is not to go before the past in which it was there.
            self.memorise(&self.store.snapshot()?)?;
        }
        let beside = self.beside.take().filter(|_| !self.renames);
        let writes = match &beside {
            Some(beside) if self.dice.one_in(2) => Some(self.write_beside(beside)),
            _ => None,
        };
        let dropped = if self.dice.one_in(3) {
            self.store.truncate_keyspace(BESIDE).map(|emptied| self.beside = Some(emptied))
        } else {
            self.store.drop_keyspace(BESIDE)
        };
        match dropped {
            // Another client is about to drop it, or gives that up.
            Err(why) if matches!(why.kind(), ErrorKind::KeyspaceNotFound(_)) || why.is_retryable() => return Ok(()),
            dropped => dropped?,
        }
        if let Some(beside) = &beside {
            let now = self.store.begin()?.start_ts();
            self.past.dropped.lock().insert(beside.id(), now);
        }
        self.gone = beside;
        match writes.transpose() {
            Ok(Some(txn)) => match txn.commit() {
                Ok(_) => Err(ErrorKind::Corruption(WRITTEN_TO_GONE.into()).into()),
                Err(why) => may_happen(why).map(drop),
            },
            Ok(None) => Ok(()),
            Err(why) => may_happen(why).map(drop),
        }
    }

    /// Drops or renames the keyspace beside, and makes it again; too slow for the age limit is no error.
    ///
    /// # Errors
    /// Those of the store.
    pub fn replace_beside(&mut self, renames: bool) -> Result<(), Error> {
        let gone = if renames { self.rename_beside() } else { self.drop_beside() };
        unless_too_old(gone.and_then(|()| self.create_beside()))
    }

    /// Renames the keyspace beside, or makes or drops one of the name that it would get. No row of one that is there may be lost by that.
    ///
    /// # Errors
    /// Those of the store, but not that another client was first.
    pub fn rename_beside(&mut self) -> Result<(), Error> {
        let done = match self.dice.below(3) {
            0 => self.store.rename_keyspace(BESIDE, ASIDE).map(drop),
            1 => {
                let aside = self.store.keyspace(ASIDE)?;
                self.store.transact(|txn| txn.put(&aside, stored("aside"), "aside"))
            }
            _ => self.store.drop_keyspace(ASIDE),
        };
        match done {
            // It is there already.
            Err(why) if matches!(why.kind(), ErrorKind::InvalidArgument(_)) => Ok(()),
            Err(why) => may_happen(why).map(drop),
            Ok(()) => Ok(()),
        }
    }

    /// A transaction that is not to commit: what it has written to is about to go.
    fn write_beside(&mut self, beside: &Keyspace) -> Result<Txn, Error> {
        let mut txn = self.store.begin_with(self.options())?;
        txn.put(beside, stored(&self.dice.below(3).to_string()), "gone")?;
        Ok(txn)
    }

    /// Creates the keyspace beside, if it is not there.
    ///
    /// # Errors
    /// Those of the store.
    pub fn create_beside(&mut self) -> Result<(), Error> {
        self.beside = Some(self.store.keyspace(BESIDE)?);
        Ok(())
    }
}
