//! The engine interface below the transaction protocol: what the protocol requires of the store of
//! its rows.
//!
//! Every engine promises two things: *one row's columns can be checked and changed atomically*, and
//! *a consistent snapshot of a recent state can be read*. What it promises beyond these is in its
//! [`Capabilities`]. A batch of more rows than the engine can change atomically is rejected, not
//! split.
//!
//! Preconditions are values of a closed set ([`Precondition`](crate::row::Precondition)), not
//! callbacks. So an engine can check them where the rows are, in one round trip. If one fails,
//! nothing is changed, and the row is returned as it was found. After any error but
//! [`EngineError::Limit`], [`EngineError::Unsupported`] and [`EngineError::Corruption`] the change
//! may or may not have been applied, and only reading the rows shows which.
//!
//! | engine | what |
//! |---|---|
//! | [`local`] | encodes row changes into cells of any ordered store in this process |
//! | [`directory`] | a [`local`] engine that is durable, in a directory |
//! | [`sim`] | a [`local`] engine in memory, with crashes that tests can choose |
//! | [`unreliable`] | wraps any engine and makes it delay, repeat and lose requests |

mod api;
mod compression;
mod data_loss;
#[cfg(feature = "rocks")]
pub mod directory;
mod error;
mod faults;
pub mod local;
#[cfg_attr(not(feature = "rocks"), allow(dead_code, unused_imports, reason = "only the directory engine uses it"))]
#[allow(missing_debug_implementations, reason = "a user has no value of its types")]
pub(crate) mod lsm;
#[cfg(feature = "crashtest")]
pub mod machine;
mod page;
mod page_buffer;
#[cfg(feature = "rocks")]
#[allow(missing_debug_implementations, reason = "a user has no value of its types")]
mod rocks;
mod row_batch;
pub mod sim;
mod space_left;
#[allow(missing_debug_implementations, reason = "a user has no value of its types")]
mod stall_tracker;
mod stats;
pub mod storage;
#[cfg(feature = "rocks")]
mod store_lock;
pub mod unreliable;

pub use api::{ApplyResult, Capabilities, Engine, EngineSnapshot, GcEntry, TxnRecordEntry, TxnRecordPage};
pub use compression::Compression;
pub use data_loss::DataLoss;
pub use error::EngineError;
pub use page::{MAX_PAGE_BYTES, OnCell, OnEachCell, PageRequest, ScanCursor, ScanVisitor};
pub use page_buffer::PageBuffer;
pub(crate) use page_buffer::{decode_lock, decode_row_key, decode_user_key, decode_write};
pub use row_batch::{OnePhaseWrites, RowBatch};
pub use space_left::SpaceLeft;
pub use stats::{ColumnStats, EngineStats, WriteStallStats};

pub use crate::cell::RowRange;
