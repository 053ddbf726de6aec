//! Of which dump the store holds what, so that the increment that follows can be told from any other.
//!
//! ```text
//!   restored          -> number of the store that was dumped (8, big-endian), and the moment (8)
//!   restored/<number> -> number here of the keyspace that has this number there
//! ```
//!
//! It is written in the transaction that makes the restored keyspaces visible, and replaced by the next restore.

use std::collections::BTreeMap;

use crate::error::{ErrorKind, Result};
use crate::row::KeyspaceId;
use crate::store::catalog::decode_id;
use crate::store::{Keyspace, Store, Txn};
use crate::timestamp::Timestamp;

const RESTORED_KEY: &[u8] = b"restored";
const RESTORED_PREFIX: &str = "restored/";

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct RestoreOrigin {
    pub store_id: u64,
    pub restored_ts: Timestamp,
    /// Numbers there, and here.
    pub keyspaces: BTreeMap<u32, KeyspaceId>,
}

impl RestoreOrigin {
    /// What the catalog says, kept from changing until the transaction commits.
    pub fn read(txn: &mut Txn, catalog: &Keyspace) -> Result<Option<Self>> {
        let Some(bytes) = txn.get_for_update(catalog, RESTORED_KEY)? else { return Ok(None) };
        let (source, moment) = decode(&bytes)?;
        let mut keyspaces = BTreeMap::new();
        for row in txn.prefix(catalog, RESTORED_PREFIX) {
            let (key, number) = row?;
            keyspaces.insert(read_number(&key)?, decode_id(&number)?);
        }
        Ok(Some(Self { store_id: source, restored_ts: moment, keyspaces }))
    }

    /// Puts this, or nothing, in the place of what the catalog says.
    pub fn write(origin: Option<&Self>, txn: &mut Txn, catalog: &Keyspace) -> Result<()> {
        // Whatever else is restored meanwhile is a conflict, also where nothing changes.
        txn.get_for_update(catalog, RESTORED_KEY)?;
        txn.delete_prefix(catalog, RESTORED_PREFIX)?;
        let Some(Self { store_id: source, restored_ts: moment, keyspaces }) = origin else {
            return txn.delete(catalog, RESTORED_KEY);
        };
        txn.put(catalog, RESTORED_KEY, [source.to_be_bytes(), moment.to_u64().to_be_bytes()].concat())?;
        let mut all = keyspaces.iter();
        all.try_for_each(|(there, here)| {
            txn.put(catalog, format!("{RESTORED_PREFIX}{there:010}"), here.0.to_be_bytes())
        })
    }
}

impl Store {
    /// Up to which moment of the store that was dumped this one holds what [`Store::restore`] has brought; `None` when nothing was
    /// restored, or a dump in format 1. The next increment must begin there. What was written here since does not change it.
    ///
    /// # Errors
    /// Those of reading.
    pub fn restored_ts(&self) -> Result<Option<Timestamp>> {
        let bytes = self.snapshot()?.get(&self.catalog(), RESTORED_KEY)?;
        bytes.map(|bytes| decode(&bytes).map(|(_, moment)| moment)).transpose()
    }
}

fn decode(bytes: &[u8]) -> Result<(u64, Timestamp)> {
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).ok();
    let parts =
        bytes.split_at_checked(size_of::<u64>()).and_then(|(source, moment)| number(source).zip(number(moment)));
    let damaged = || ErrorKind::Corruption("the catalog's note on what was restored is damaged".into());
    parts.map(|(source, moment)| (source, Timestamp::from_u64(moment))).ok_or_else(|| damaged().into())
}

fn read_number(key: &[u8]) -> Result<u32> {
    let number = String::from_utf8_lossy(key.get(RESTORED_PREFIX.len()..).unwrap_or_default()).parse();
    number.map_err(|_| ErrorKind::Corruption(format!("catalog entry {}", key.escape_ascii())).into())
}
