//! x
pub mod codec;
pub mod engine;
mod error;
pub mod keys;
pub mod oracle;
pub mod owner;
mod pipeline;
pub mod protocol;
pub mod row;
pub mod runtime;
pub mod timestamp;
