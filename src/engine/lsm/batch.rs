//! A batch: records in a frame of the log, as they will be written.

use crate::engine::storage::{Batch, Column};
use crate::memtable::{Change, Record};
use crate::wal::FrameBuffer;

/// See [`Storage::Batch`](crate::engine::storage::Storage::Batch).
#[derive(Debug)]
pub struct LayeredBatch {
    pub(super) frame: FrameBuffer,
}

impl LayeredBatch {
    pub(super) fn with_room_for(bytes: usize) -> Self {
        Self { frame: FrameBuffer::with_room_for(bytes) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frame.is_empty()
    }

    fn add(&mut self, column: Column, key: &[u8], change: Change<'_>) {
        Record { column, key, change }.encode(self.frame.bytes());
    }
}

impl Batch for LayeredBatch {
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) {
        self.add(column, key, Change::Put(value));
    }

    fn put_encoded(&mut self, column: Column, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        Record::encode_put(column, key, encode, self.frame.bytes());
    }

    fn delete(&mut self, column: Column, key: &[u8]) {
        self.add(column, key, Change::Delete);
    }

    fn delete_range(&mut self, column: Column, start: &[u8], end: &[u8]) {
        self.add(column, start, Change::DeleteRange(end));
    }
}
