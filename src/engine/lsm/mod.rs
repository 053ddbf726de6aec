//! The LSM storage: a write-ahead log, memtables with what the tables do not have yet, and the
//! tables.
//!
//! ```text
//!   write   one frame to the log → its payload into the active memtable → visible    (one writer)
//!   sync    the log's frames so far                                                  (any thread)
//!   flush   the immutable memtable, its segment synced → into the tables, flushed sequence last
//!           → table sync → its segment of the log is removed
//!   read    the memtables, the newest first, then the tables as of the last flush
//! ```
//!
//! The structure is RocksDB's, but the log and the memtables are percolite's own, above RocksDB's
//! tables. A FoundationDB storage server is built in the same way.
//!
//! *Visibility of cells is by sequence*: a batch has a sequence, each version of a cell has the
//! sequence of its batch, and a snapshot is a sequence with the read state that serves it. Which
//! version of a row a transaction reads is decided in the layers above, by commit timestamp.
//! Timestamps do not replace sequences, because locks and metadata have no timestamp.
//!
//! **A crash leaves a prefix of the batches.** The log is recovered as a prefix. The tables get
//! whole memtables, and only frames that are durable in the log. The *flushed sequence* of the
//! tables is a cell that the last batch of a flush writes, so an interrupted flush is repeated from
//! the log. The repetition writes the same cells, or newer versions of them, over what the
//! interrupted flush has left.
//!
//! **A memtable belongs to a segment of the log.** The memtable is switched where the log starts a
//! new segment, and the segment is removed once the memtable is durable in the tables. Apart from
//! memtables that only snapshots keep, there are at most two: the active one, and an immutable one
//! that is being flushed. A snapshot rarely keeps a flushed memtable: if its sequence is within the
//! memtable, the flush mostly gives the snapshot a RocksDB snapshot of its own, see [`flush`].
//!
//! After a failed write, sync or flush, all writes and syncs fail until the storage is opened
//! again. A batch that is too large for a frame is not such a failure: it is rejected before
//! anything is written.
//!
//! Opened read-only, the storage has no write path. The frames of the log above the tables' flushed
//! sequence are replayed into an immutable memtable, which stays in memory.

mod background;
mod batch;
mod flush;
mod merge;
mod open;
mod read_state;
mod shared;
mod snapshot;
mod stats;
mod storage;
mod write;

pub use batch::LsmBatch;
pub use open::LsmOptions;
pub use snapshot::LsmSnapshot;
pub use storage::LsmStorage;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers here are small")]
mod tests;
