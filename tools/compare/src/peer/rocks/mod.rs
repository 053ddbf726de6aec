//! RocksDB, as the binding offers it: plain, with optimistic transactions, and with locks.
//!
//! After RocksDB's wiki: "Setup Options and Basic Tuning" (bloom filters of ten bits, index and filter blocks in the cache,
//! those of level 0 pinned, `bytes_per_sync`), "WAL Performance" (logs that are used again, so that a sync need not make them
//! longer), "Transactions" (`GetForUpdate` for what is going to be written, `SetSnapshot` only where repeatable reads are
//! needed). Blocks keep their default of 4 KiB, which suits point reads better than the 16 KiB of the first page. What is read outside of a transaction is read at once, without a snapshot; a scan has one by itself.

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
use super::{LOAD_ROWS, Row, Setup};

const WRITE_BUFFERS: usize = 2;

pub(super) fn options(setup: &Setup) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_hyper_clock_cache(setup.cache_bytes, 0));
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(6);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size(setup.write_buffer_bytes / WRITE_BUFFERS);
    options.set_db_write_buffer_size(setup.write_buffer_bytes);
    options.set_max_background_jobs(2);
    options.set_bytes_per_sync(1 << 20);
    options.set_recycle_log_file_num(WRITE_BUFFERS);
    options
}

fn write_options(setup: &Setup) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(setup.durable);
    options
}

/// Loads in batches.
fn load<const TRANSACTION: bool>(
    mut rows: impl Iterator<Item = Row>,
    mut write: impl FnMut(WriteBatchWithTransaction<TRANSACTION>) -> Result<(), rocksdb::Error>,
) -> Result<()> {
    loop {
        let mut batch = WriteBatchWithTransaction::default();
        rows.by_ref().take(LOAD_ROWS).for_each(|(key, value)| batch.put(key, value));
        if batch.is_empty() {
            return Ok(());
        }
        write(batch)?;
    }
}

/// Whether the transaction is to be tried again: somebody else wrote the row, or has it locked.
fn is_conflict(why: &anyhow::Error) -> bool {
    why.downcast_ref::<rocksdb::Error>()
        .is_some_and(|why| matches!(why.kind(), ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::TryAgain))
}

/// Reads of a database, whichever of the binding's types it is of.
macro_rules! reads {
    ($db:ty) => {
        impl crate::peer::Read for &$db {
            fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
                let found = <$db>::get(self, key)?;
                Ok(found.map(|value| see(&value)).is_some())
            }

            fn multi_get(&self, keys: &[Vec<u8>], mut see: impl FnMut(&[u8])) -> Result<usize> {
                let mut found = 0;
                for value in <$db>::multi_get(self, keys) {
                    found += usize::from(value?.map(|value| see(&value)).is_some());
                }
                Ok(found)
            }

            fn scan(&self, from: &[u8], rows: usize, mut see: impl FnMut(&[u8], &[u8])) -> Result<usize> {
                let mut cursor = self.raw_iterator();
                cursor.seek(from);
                let mut seen = 0;
                while seen < rows
                    && let Some((key, value)) = cursor.item()
                {
                    see(key, value);
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

/// Reads and writes of a transaction.
macro_rules! writes {
    ($db:ty) => {
        impl crate::peer::Write for rocksdb::Transaction<'_, $db> {
            fn get_to_write(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
                let found = self.get_for_update(key, true)?;
                Ok(found.map(|value| see(&value)).is_some())
            }

            fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
                Ok(rocksdb::Transaction::put(self, key, value)?)
            }
        }
    };
}

use {reads, writes};
