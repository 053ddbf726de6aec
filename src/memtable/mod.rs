//! The window: what was written since the last hand-down, in memory.
//!
//! The log is written first. The payloads of its frames then stay in memory, and the window is what finds records in them: a
//! [memtable](Memtable) for each segment of the log, of which the newest is written to and the one before may be on its way into
//! the tables. A generation goes as a whole, with its segment.

mod arena;
mod batch_format;
mod hash_index;
mod table;
mod writer;

pub use self::batch_format::{BatchEntry, ENTRY_HEADER_BYTES_MAX, Modification, entries};
pub use self::table::{CellValue, Memtable};
pub use self::writer::{MalformedPayload, MemtableWriter};
