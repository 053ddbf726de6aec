//! How RocksDB is set up, and why.

use rocksdb::{BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, Options};

use crate::bounds;
use crate::engine::storage::Column;
use crate::engine::{Compression, EngineError};

const BLOOM_BITS_PER_KEY: f64 = 10.0;
/// What is to be known of the sizes of what the cache holds: its table grows as it must.
const ESTIMATED_ENTRY_CHARGE: usize = 0;
/// How such a table is mapped: in shards of this or more, and no more of them than so many, each with room for as many handles as
/// it could hold entries of this size.
const CACHE_SHARD_BYTES: usize = 32 << 20;
const CACHE_SHARDS_MAX: usize = 64;
const CACHE_HANDLE_BYTES: usize = 64;
const CACHE_ENTRY_BYTES: usize = 300;

/// When a snapshot goes, RocksDB writes every table anew that has nothing below it and was made while there was that snapshot: there may
/// be deletions in it that can go now. The store always has a snapshot, so that is every such table, and during a load each would be
/// written twice. In the column where most is written and least deleted it waits, in seconds; many a table has been merged with
/// others by then.
const BOTTOMMOST_COMPACTION_DELAY: &str = "bottommost_file_compaction_delay=60";

/// How RocksDB is to be set up: memory, in bytes, and how tables are compressed.
#[derive(Clone, Copy, Debug)]
pub struct RocksOptions {
    /// For blocks read from files.
    pub block_cache_bytes: usize,
    /// For writes not yet in files, all columns together.
    pub write_buffer_bytes: usize,
    /// Of the tables that are written from now on. Those that there are stay as they are, and readable.
    pub compression: Compression,
}

impl RocksOptions {
    /// Refuses what RocksDB would end the process over.
    pub fn check(self) -> Result<(), EngineError> {
        bounds::BLOCK_CACHE_BYTES.check(self.block_cache_bytes as u128)?;
        if can_map_cache(self.block_cache_bytes) {
            return Ok(());
        }
        let what = format!(
            "there are not enough addresses for a cache of {} bytes: ask for less, or let the process have more (ulimit -v, vm.overcommit_memory)",
            self.block_cache_bytes
        );
        Err(EngineError::Io(what))
    }
}

/// Whether RocksDB will get what it maps for the cache's table. Where it does not, it ends the process.
fn can_map_cache(cache: usize) -> bool {
    let shards = (cache / CACHE_SHARD_BYTES).clamp(1, CACHE_SHARDS_MAX);
    let table = cache / shards / CACHE_ENTRY_BYTES * CACHE_HANDLE_BYTES;
    let mapped: Result<Vec<Vec<u8>>, _> = (0..shards)
        .map(|_| {
            let mut some = Vec::new();
            some.try_reserve_exact(table).map(|()| some)
        })
        .collect();
    std::hint::black_box(&mapped).is_ok()
}

pub fn column_family_name(column: Column) -> &'static str {
    match column {
        Column::Meta => rocksdb::DEFAULT_COLUMN_FAMILY_NAME,
        Column::Data => "data",
        Column::Lock => "lock",
        Column::Write => "write",
        Column::History => "history",
    }
}

pub fn column_family_descriptors(
    options: &Options,
    setup: RocksOptions,
) -> Result<Vec<ColumnFamilyDescriptor>, EngineError> {
    let table = table_options(setup);
    let descriptor = |column| {
        let mut options = match column {
            Column::Write => with_options_string(&mut options.clone(), BOTTOMMOST_COMPACTION_DELAY)?,
            Column::Meta | Column::Data | Column::Lock | Column::History => options.clone(),
        };
        options.set_block_based_table_factory(&table);
        Ok(ColumnFamilyDescriptor::new(column_family_name(column), options))
    };
    Column::ALL.into_iter().map(descriptor).collect()
}

/// `base`, but for what the text says.
fn with_options_string(base: &mut Options, text: &str) -> Result<Options, EngineError> {
    base.get_options_from_string(text).map_err(|why| EngineError::Io(why.to_string()))
}

/// RocksDB's options, and why they are not the default ones.
///
/// - No log: the log above has everything that is not flushed. So every write has it switched off.
/// - `atomic_flush`: RocksDB may flush by itself in the middle of a hand-down. All columns are flushed together, so that what is durable
///   then is a prefix of the hand-down's batches.
/// - `max_bgerror_resume_count=0`: after a failed write the store stays closed until it is opened again, so RocksDB need not try to come
///   back by itself.
/// - `no_slowdown` on every write: a write that RocksDB would keep waiting is refused instead, and waits here. Inside, it would
///   wait in front of RocksDB's own attempt to come back from a full disk, and that for the write, for ever.
/// - One limit of write buffers for all columns: a generation fits, and is flushed once.
pub fn options(setup: RocksOptions) -> Result<Options, EngineError> {
    let mut options = with_options_string(&mut Options::default(), "max_bgerror_resume_count=0")?;
    options.set_compression_type(match setup.compression {
        Compression::None => DBCompressionType::None,
        Compression::Lz4 => DBCompressionType::Lz4,
    });
    options.set_enable_write_thread_adaptive_yield(false);
    options.set_atomic_flush(true);
    options.set_write_buffer_size(setup.write_buffer_bytes);
    options.set_db_write_buffer_size(setup.write_buffer_bytes);
    options.set_max_background_jobs(2);
    options.set_bytes_per_sync(1 << 20);
    options.set_keep_log_file_num(2);
    Ok(options)
}

fn table_options(setup: RocksOptions) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    // The LRU cache has 64 shards of 2 MiB each, and what is larger than one, as the filter of two million rows, stays no longer
    // than the read that it was loaded for. Here a shard has 32 MiB, and reading takes no lock.
    table.set_block_cache(&Cache::new_hyper_clock_cache(setup.block_cache_bytes, ESTIMATED_ENTRY_CHARGE));
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(6);
    table
}
