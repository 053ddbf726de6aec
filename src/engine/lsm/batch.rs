//! A batch of changes of cells. They are encoded directly into the buffer of the batch's log frame.

use crate::engine::storage::{Batch, Column};
use crate::memtable::{BatchEntry, Modification};
use crate::wal::FrameBuffer;

/// A batch, encoded in the buffer from which its log frame is written.
#[derive(Debug)]
pub struct LsmBatch {
    pub(super) frame: FrameBuffer,
}

impl LsmBatch {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { frame: FrameBuffer::with_capacity(bytes) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frame.is_empty()
    }

    fn add(&mut self, column: Column, key: &[u8], change: Modification<'_>) {
        BatchEntry { column, key, modification: change }.encode(self.frame.payload_buffer());
    }
}

impl Batch for LsmBatch {
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) {
        self.add(column, key, Modification::Put(value));
    }

    fn put_encoded(&mut self, column: Column, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        BatchEntry::encode_put(column, key, encode, self.frame.payload_buffer());
    }

    fn delete(&mut self, column: Column, key: &[u8]) {
        self.add(column, key, Modification::Delete);
    }

    fn delete_range(&mut self, column: Column, start: &[u8], end: &[u8]) {
        self.add(column, start, Modification::DeleteRange(end));
    }
}
