//! RocksDB: plain, with optimistic transactions, and with pessimistic ones.
//!
//! The settings follow RocksDB's wiki. "Setup Options and Basic Tuning": bloom filters of ten bits
//! per key, index and filter blocks in the cache, those of level 0 pinned, `bytes_per_sync`. "WAL
//! Performance": recycled logs, so that a sync need not extend the file. "Transactions":
//! `GetForUpdate` for rows that will be written, `SetSnapshot` only for repeatable reads.
//!
//! Blocks have their default of 4 KiB, which suits point reads better than the 16 KiB of "Setup
//! Options and Basic Tuning". Point reads outside of transactions use no snapshot; an iterator has
//! an implicit snapshot.

mod optimistic;
mod pessimistic;
mod plain;

use anyhow::Result;
use rocksdb::{
    BlockBasedOptions, Cache, DBCompressionType, ErrorKind, Options, WriteBatchWithTransaction, WriteOptions,
};

pub use self::optimistic::Optimistic;
pub use self::pessimistic::Pessimistic;
pub use self::plain::Plain;
use super::{LOAD_BATCH_ROWS, Row, StoreConfig};

const WRITE_BUFFERS: usize = 2;

pub(super) fn options(config: &StoreConfig) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_hyper_clock_cache(config.cache_bytes, 0));
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(6);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size(config.write_buffer_bytes / WRITE_BUFFERS);
    options.set_db_write_buffer_size(config.write_buffer_bytes);
    options.set_max_background_jobs(2);
    options.set_bytes_per_sync(1 << 20);
    options.set_recycle_log_file_num(WRITE_BUFFERS);
    options
}

fn write_options(config: &StoreConfig) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(config.durable);
    options
}

/// Loads rows in batches.
fn load<const TRANSACTION: bool>(
    mut rows: impl Iterator<Item = Row>,
    mut write: impl FnMut(WriteBatchWithTransaction<TRANSACTION>) -> Result<(), rocksdb::Error>,
) -> Result<()> {
    loop {
        let mut batch = WriteBatchWithTransaction::default();
        rows.by_ref().take(LOAD_BATCH_ROWS).for_each(|(key, value)| batch.put(key, value));
        if batch.is_empty() {
            return Ok(());
        }
        write(batch)?;
    }
}

/// Whether the transaction must be retried, because another one has written or locked the row.
fn is_conflict(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<rocksdb::Error>()
        .is_some_and(|error| matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::TryAgain))
}

/// Implements reads for one of the binding's database types.
macro_rules! reads {
    ($db:ty) => {
        impl crate::peer::Read for &$db {
            fn get(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool> {
                let found = <$db>::get(self, key)?;
                Ok(found.map(|value| visit(&value)).is_some())
            }

            fn multi_get(&self, keys: &[Vec<u8>], mut visit: impl FnMut(&[u8])) -> Result<usize> {
                let mut found = 0;
                for value in <$db>::multi_get(self, keys) {
                    found += usize::from(value?.map(|value| visit(&value)).is_some());
                }
                Ok(found)
            }

            fn scan(&self, from: &[u8], rows: usize, mut visit: impl FnMut(&[u8], &[u8])) -> Result<usize> {
                let mut cursor = self.raw_iterator();
                cursor.seek(from);
                let mut seen = 0;
                while seen < rows
                    && let Some((key, value)) = cursor.item()
                {
                    visit(key, value);
                    seen += 1;
                    if seen < rows {
                        cursor.next();
                    }
                }
                cursor.status()?;
                Ok(seen)
            }
        }
    };
}

/// Implements reads and writes for a transaction of one of the database types.
macro_rules! writes {
    ($db:ty) => {
        impl crate::peer::Write for rocksdb::Transaction<'_, $db> {
            fn get_for_update(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
                let found = rocksdb::Transaction::get_for_update(self, key, true)?;
                Ok(found.map(|value| visit(&value)).is_some())
            }

            fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
                Ok(rocksdb::Transaction::put(self, key, value)?)
            }
        }
    };
}

use {reads, writes};
