//! Dumps: all rows of a snapshot, or the rows changed since an earlier one, as a stream of bytes.
//!
//! A dump has rows, not versions or cells, so it can be restored by later versions of this program
//! and into a store with any options. [`blocks`] is the format; [`mod@write`] writes dumps, and
//! [`restore`] restores them.
//!
//! **An incremental dump** has what was committed after a timestamp, its start, and up to the
//! snapshot. One pass over the newest versions finds these changes ([`changes`]). A deletion is
//! found by its tombstone. Tombstones are kept only as long as the history, so a start before the
//! history is refused. Keyspaces are identified by their ids, which the catalog never reuses. A
//! keyspace that the catalog did not list at the start is new, and is dumped whole.

mod blocks;
mod changes;
mod restore;
mod write;

use std::time::SystemTime;

use crate::engine::Compression;
use crate::timestamp::Timestamp;

/// Options of [`Snapshot::dump_with`](crate::store::Snapshot::dump_with). By default a dump is full
/// and compressed with LZ4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct DumpOptions {
    compression: Compression,
    since: Option<DumpBase>,
}

impl DumpOptions {
    /// The compression of blocks. A block that would not become smaller is stored uncompressed.
    pub fn compression(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// Makes the dump incremental: it has only commits after a timestamp, or after the end of
    /// another dump.
    pub fn since(self, since: impl Into<DumpBase>) -> Self {
        Self { since: Some(since.into()), ..self }
    }
}

/// The start of an incremental dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DumpBase {
    /// A timestamp. It must be exactly the [`DumpStats::read_ts`] of the dump that the incremental
    /// dump is to follow.
    Timestamp(Timestamp),
    /// The end of a dump of the same store.
    Dump(DumpHeader),
}

impl From<Timestamp> for DumpBase {
    fn from(ts: Timestamp) -> Self {
        Self::Timestamp(ts)
    }
}

impl From<SystemTime> for DumpBase {
    fn from(time: SystemTime) -> Self {
        Self::Timestamp(time.into())
    }
}

impl From<DumpHeader> for DumpBase {
    fn from(header: DumpHeader) -> Self {
        Self::Dump(header)
    }
}

/// The header of a dump, its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpHeader {
    /// The store's id: a random number that a store gets when it is created. Checkpoints of the
    /// store and copies of its directory have the same id. `None` in dumps of stores on a shared
    /// engine. Also `None` if the first opening of the store was interrupted before the store had
    /// an id, and the store has only been opened read-only since.
    pub store_id: Option<u64>,
    /// The timestamp of the dumped snapshot: the dump has no later commits.
    pub read_ts: Timestamp,
    /// The timestamp at which an incremental dump starts: it has only later commits. `None` for a
    /// full dump.
    pub since: Option<Timestamp>,
}

/// The timestamps of a dump, and what was dumped or restored, so far or in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpStats {
    /// The timestamp of the dumped snapshot: the dump has no later commits.
    pub read_ts: Timestamp,
    /// The timestamp at which an incremental dump starts: it has only later commits. `None` for a
    /// full dump.
    pub since: Option<Timestamp>,
    /// The number of keyspaces, including empty and unchanged ones.
    pub keyspaces: u64,
    /// The number of rows.
    pub rows: u64,
    /// The size of keys and values before compression, in bytes.
    pub bytes: u64,
    /// The number of rows that an incremental dump deletes. This includes rows that were both
    /// inserted and deleted after the timestamp `since`.
    pub deleted_rows: u64,
}

/// What a restore does if keyspaces exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExisting {
    /// A full restore fails if the store has any keyspace. The restore of an incremental dump fails
    /// if a name in the dump belongs to a keyspace that was not restored from the earlier dumps.
    #[default]
    Fail,
    /// Existing keyspaces with a name in the dump are dropped, in the transaction that makes the
    /// restored ones visible. Other keyspaces stay.
    Replace,
}
