//! Dumps: everything that a snapshot shows, or what has changed since an earlier one, as a stream of bytes, and back.
//!
//! It holds rows, not versions, so it can be restored by any later version of this program and into a store of any shape.
//! [`blocks`] is its form to the byte, [`write`] makes one, [`restore`] reads one.
//!
//! **An increment** has what was committed after a moment, up to the snapshot: one pass over the newest versions finds it
//! ([`changes`]). Deletions are found because the history keeps their records, so a moment before the history is refused. Keyspaces
//! are identified by their numbers, which the catalog never assigns twice: one that the catalog of the moment does not list is new,
//! and is dumped whole.

mod blocks;
mod changes;
mod restore;
mod write;

use std::io::Read;
use std::time::SystemTime;

use crate::engine::Compression;
use crate::error::Result;
use crate::store::maintenance::dump::blocks::DumpReader;
use crate::timestamp::Timestamp;

/// How [`Snapshot::dump_with`](crate::store::Snapshot::dump_with) makes a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpOptions {
    /// How its blocks are compressed. A block that would not become smaller stays as it is.
    pub compression: Compression,
    /// Only what was committed later: an increment. `None` for everything.
    pub since: Option<DumpBase>,
}

/// Where an increment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpBase {
    /// At a moment: that of the dump which it is to follow, exactly ([`DumpStats::read_ts`]).
    Timestamp(Timestamp),
    /// Where this dump ends, which must be of the same store.
    Dump(DumpHeader),
}

impl From<Timestamp> for DumpBase {
    fn from(moment: Timestamp) -> Self {
        Self::Timestamp(moment)
    }
}

impl From<SystemTime> for DumpBase {
    fn from(moment: SystemTime) -> Self {
        Self::Timestamp(moment.into())
    }
}

impl From<DumpHeader> for DumpBase {
    fn from(header: DumpHeader) -> Self {
        Self::Dump(header)
    }
}

impl DumpOptions {
    /// An increment that begins at a moment, or where a dump ends.
    pub fn since(since: impl Into<DumpBase>) -> Self {
        Self { since: Some(since.into()), ..Self::default() }
    }
}

/// What a dump says of itself in its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpHeader {
    /// Of which store it is: a random number that a store gets when it is created, and that its checkpoints and copies of its folder
    /// share. `None` where that is not known: of dumps in format 1, of stores that share an engine, and of stores that were made before
    /// there was such a number and have not been open for writing since.
    pub store_id: Option<u64>,
    /// Everything committed at or below this is in it.
    pub read_ts: Timestamp,
    /// What was committed at or below this is not, in an increment; `None` when it holds everything.
    pub since: Option<Timestamp>,
}

impl DumpHeader {
    /// Reads the beginning of a dump. Nothing is said about the rest of it, which may be damaged or missing.
    ///
    /// # Errors
    /// [`ErrorKind::UnrecognizedFormat`](crate::ErrorKind::UnrecognizedFormat) when it is no dump or one of another format,
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) when these bytes are damaged or missing,
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when they cannot be read.
    pub fn read(from: impl Read) -> Result<Self> {
        DumpReader::open(from, "")?.header()
    }
}

/// How much a dump or a restore has seen so far, or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpStats {
    /// Everything committed at or below this is in the dump.
    pub read_ts: Timestamp,
    /// What was committed at or below this is not, in an increment; `None` when it holds everything.
    pub since: Option<Timestamp>,
    /// Keyspaces, empty ones and those without a change included.
    pub keyspaces: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes of keys and values, before compression.
    pub bytes: u64,
    /// Rows that an increment removes. Some may never have been there: rows that were inserted and removed after its beginning.
    pub deleted_rows: u64,
}

/// What a restore does about keyspaces that are there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExisting {
    /// A store that has any keyspace is left as it is, and the restore is refused. An increment is refused where a keyspace that
    /// does not come from its base has a name that the increment gives.
    #[default]
    Fail,
    /// Those of a name that is in the dump are dropped in the moment in which the restored ones take their place; others stay.
    Replace,
}
