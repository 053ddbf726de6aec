//! Memtables: what is written and not yet flushed into the tables, in memory.
//!
//! A batch is written to the log first. The payload of its frame then stays in memory, and a
//! [`Memtable`] is an index of the entries in such payloads: values are slices of the payloads. A
//! cell may have several versions, each with the sequence number of its batch.
//!
//! As in RocksDB, each segment of the log has one memtable. Only the newest memtable is written to.
//! The memtable before it is immutable, and exists until it is flushed. A memtable is dropped as a
//! whole, with its segment.

mod arena;
mod batch_format;
mod hash_index;
mod layout;
mod table;
mod writer;

#[cfg(test)]
pub use self::batch_format::entries;
pub use self::batch_format::{BatchEntry, Modification};
pub use self::table::{CellValue, Memtable};
pub use self::writer::{MalformedPayload, MemtableWriter};
