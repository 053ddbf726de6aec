//! The origin of restored rows: which dump was restored last, so that only the next incremental
//! dump is accepted.
//!
//! ```text
//!   restored      -> id of the source store (8, big-endian), end timestamp of the dump (8)
//!   restored/<id> -> id here of the keyspace that has this id in the source store
//! ```
//!
//! The origin is written by the transaction that makes the restored keyspaces visible, and replaced
//! by the next restore.

use std::collections::BTreeMap;

use crate::error::{ErrorKind, Result};
use crate::row::KeyspaceId;
use crate::store::catalog::entries::decode_id;
#[cfg(doc)]
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::read::snapshot::Snapshot;
use crate::store::txn::Txn;
use crate::timestamp::Timestamp;

const RESTORED_KEY: &[u8] = b"restored";
const RESTORED_PREFIX: &str = "restored/";

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct RestoreOrigin {
    pub store_id: u64,
    pub restored_ts: Timestamp,
    /// The ids of the restored keyspaces in this store, by their ids in the source store.
    pub keyspaces: BTreeMap<u32, KeyspaceId>,
}

impl RestoreOrigin {
    /// Reads the origin from the catalog. The read counts as a write, so the transaction conflicts
    /// with a concurrent restore.
    pub fn read(txn: &mut Txn, catalog: &Keyspace) -> Result<Option<Self>> {
        let Some(bytes) = txn.get_for_update(catalog, RESTORED_KEY)? else { return Ok(None) };
        let (store_id, restored_ts) = decode(&bytes)?;
        let mut keyspaces = BTreeMap::new();
        for row in txn.prefix(catalog, RESTORED_PREFIX) {
            let row = row?;
            keyspaces.insert(decode_source_id(row.key())?, decode_id(row.value())?);
        }
        Ok(Some(Self { store_id, restored_ts, keyspaces }))
    }

    /// See [`Store::restored_ts`].
    pub fn restored_ts(snapshot: &Snapshot, catalog: &Keyspace) -> Result<Option<Timestamp>> {
        let bytes = snapshot.get(catalog, RESTORED_KEY)?;
        bytes.map(|bytes| decode(&bytes).map(|(_, restored_ts)| restored_ts)).transpose()
    }

    /// Replaces the origin in the catalog; `None` deletes it.
    pub fn write(origin: Option<&Self>, txn: &mut Txn, catalog: &Keyspace) -> Result<()> {
        // Read for update, so that this restore conflicts with a concurrent one, whatever is
        // written below.
        txn.get_for_update(catalog, RESTORED_KEY)?;
        txn.delete_prefix(catalog, RESTORED_PREFIX)?;
        let Some(Self { store_id, restored_ts, keyspaces }) = origin else {
            return txn.delete(catalog, RESTORED_KEY);
        };
        txn.put(catalog, RESTORED_KEY, [store_id.to_be_bytes(), restored_ts.to_u64().to_be_bytes()].concat())?;
        let mut all = keyspaces.iter();
        all.try_for_each(|(source_id, id)| {
            txn.put(catalog, format!("{RESTORED_PREFIX}{source_id:010}"), id.0.to_be_bytes())
        })
    }
}

fn decode(bytes: &[u8]) -> Result<(u64, Timestamp)> {
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).ok();
    let parts = bytes.split_at_checked(size_of::<u64>()).and_then(|(id, ts)| number(id).zip(number(ts)));
    let corrupt = || ErrorKind::Corruption("corrupt restore origin in the catalog".into());
    parts.map(|(id, ts)| (id, Timestamp::from_u64(ts))).ok_or_else(|| corrupt().into())
}

fn decode_source_id(key: &[u8]) -> Result<u32> {
    let id = String::from_utf8_lossy(key.get(RESTORED_PREFIX.len()..).unwrap_or_default()).parse();
    id.map_err(|_| ErrorKind::Corruption(format!("invalid catalog entry \"{}\"", key.escape_ascii())).into())
}
