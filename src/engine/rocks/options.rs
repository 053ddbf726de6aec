//! RocksDB's options, and the reasons for them.

use rocksdb::{BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, LogLevel, Options};

use super::memory_limit::{check_memory_left, note_opening};
use crate::engine::storage::Column;
use crate::engine::{Compression, EngineError};
use crate::option_ranges;
use crate::os_limits::open_files_limit;

const BLOOM_BITS_PER_KEY: f64 = 10.0;
/// The number of threads in which RocksDB opens tables.
const OPENING_THREADS: i32 = 4;
/// The threads that RocksDB has at a time: those, two for flushes and compactions, and two timers.
const ROCKSDB_THREADS: i32 = OPENING_THREADS + 4;
/// RocksDB's log of events begins a new file at this size; two are kept.
const LOG_FILE_BYTES_MAX: usize = 1 << 20;
/// RocksDB begins a new manifest at this size, or at a multiple of the size of a new one.
const MANIFEST_BYTES_MAX: usize = 64 << 20;
/// If the process may open this number of files, all tables are kept open.
const ALL_TABLES_OPEN: u64 = 1 << 16;
/// The option `estimated_entry_charge` of RocksDB's `HyperClockCache`. 0: unknown, so the hash
/// table of the cache grows as needed.
const ESTIMATED_ENTRY_CHARGE: usize = 0;
// From these numbers `can_map_cache` computes the address space that RocksDB maps for the block
// cache. The cache has one shard for every `CACHE_SHARD_BYTES` of its capacity, from 1 to
// `CACHE_SHARDS_MAX`. Each shard has a hash table: one slot of `CACHE_HANDLE_BYTES` for every
// `CACHE_ENTRY_BYTES` of the shard's capacity.
const CACHE_SHARD_BYTES: usize = 32 << 20;
const CACHE_SHARDS_MAX: usize = 64;
const CACHE_HANDLE_BYTES: usize = 64;
const CACHE_ENTRY_BYTES: usize = 300;

/// An option of RocksDB for the write column: the delay before the compaction of bottommost tables,
/// in seconds.
///
/// When a snapshot is released, RocksDB rewrites each bottommost table that was written while the
/// snapshot existed, to drop tombstones. The store always has an open RocksDB snapshot, so RocksDB
/// would rewrite every bottommost table, and a bulk load would write each table twice. The write
/// column has the most writes and the fewest deletions, so only this column has the delay. Many of
/// its tables are replaced by other compactions before the delay is over.
const BOTTOMMOST_COMPACTION_DELAY: &str = "bottommost_file_compaction_delay=60";

/// The options for opening the tables; memory is in bytes.
#[derive(Clone, Copy, Debug)]
pub struct RocksOptions {
    /// The capacity of the block cache.
    pub block_cache_bytes: usize,
    /// The limit of RocksDB's memtables, all columns together.
    pub write_buffer_bytes: usize,
    /// The compression of new tables. Existing tables stay as they are, and readable.
    pub compression: Compression,
    /// Whether the disk is full: RocksDB's log of events has only warnings then, and one file.
    pub is_disk_full: bool,
}

impl RocksOptions {
    /// Rejects options with which RocksDB would abort the process. The store's own memtables take
    /// `memtable_bytes`.
    pub fn check(self, memtable_bytes: usize) -> Result<(), EngineError> {
        option_ranges::BLOCK_CACHE_BYTES.check(self.block_cache_bytes as u128)?;
        let buffers = [self.block_cache_bytes, self.write_buffer_bytes, memtable_bytes];
        check_memory_left(buffers.into_iter().fold(0, |sum, bytes| sum.saturating_add(bytes as u64)))?;
        if can_map_cache(self.block_cache_bytes) {
            return Ok(());
        }
        let what = format!(
            "not enough address space for a block cache of {} bytes: use a smaller cache, or raise the process's limit \
             (ulimit -v, vm.overcommit_memory)",
            self.block_cache_bytes
        );
        Err(EngineError::Io(what))
    }
}

/// Fails if the process cannot start the threads that RocksDB starts when it is opened. RocksDB
/// would abort the process.
pub fn check_threads() -> Result<(), EngineError> {
    let (keep, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Arc::new(parking_lot::Mutex::new(wait));
    let start = |_| {
        let wait = std::sync::Arc::clone(&wait);
        // Ends when `keep` is dropped.
        std::thread::Builder::new().spawn(move || _ = wait.lock().recv())
    };
    let started: Result<Vec<_>, _> = (0..ROCKSDB_THREADS).map(start).collect();
    drop(keep);
    let threads = started.map_err(|error| EngineError::Io(format!("cannot start a thread: {error}")))?;
    threads.into_iter().for_each(|thread| _ = thread.join());
    note_opening();
    Ok(())
}

/// Whether RocksDB can map the address space for the cache's hash table. If it cannot, RocksDB
/// aborts the process.
fn can_map_cache(cache: usize) -> bool {
    let shards = (cache / CACHE_SHARD_BYTES).clamp(1, CACHE_SHARDS_MAX);
    let table = cache / shards / CACHE_ENTRY_BYTES * CACHE_HANDLE_BYTES;
    let mapped: Result<Vec<Vec<u8>>, _> = (0..shards)
        .map(|_| {
            let mut shard = Vec::new();
            shard.try_reserve_exact(table).map(|()| shard)
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

/// Overrides options of `base` by an options string.
fn with_options_string(base: &mut Options, text: &str) -> Result<Options, EngineError> {
    base.get_options_from_string(text).map_err(|error| EngineError::Io(error.to_string()))
}

/// RocksDB's options where they differ from the defaults, and why. `auto_compactions`: whether
/// compactions may begin at opening; see [`free_space`](super::free_space).
///
/// - No write-ahead log of RocksDB: the store's own log has everything that is not flushed. Each
///   write disables RocksDB's log in its write options.
/// - `atomic_flush`: RocksDB may flush on its own in the middle of the store's flush. With this
///   option it flushes all columns together, so that a prefix of the batches that the store's flush
///   has written becomes durable.
/// - `max_bgerror_resume_count=0`: after a failed write the store fails until it is opened again,
///   so RocksDB need not recover on its own. From a full disk it recovers even with this option.
/// - `no_slowdown` for each write: RocksDB rejects a write instead of stalling it, and
///   `write_retry` retries the write. A write that stalls inside RocksDB blocks RocksDB's recovery
///   from a full disk, and the stall ends only with that recovery: a deadlock.
/// - No stalls for compactions: RocksDB's flush would wait for them first, without a limit, and on
///   a full disk they never end. [`flush_all`](super::RocksStorage::flush_all) waits itself.
/// - No preallocation of the manifest: it is 4 MiB at each opening, which takes the space that a
///   small or full disk has for deletions.
/// - `max_open_files`: half of the process's limit of open files, unless that is large.
/// - One limit for RocksDB's memtables of all columns together. The content of a memtable of the
///   store normally fits into this limit, so RocksDB mostly flushes it as a whole.
pub fn options(setup: RocksOptions, auto_compactions: bool) -> Result<Options, EngineError> {
    let mut options = with_options_string(&mut Options::default(), "max_bgerror_resume_count=0")?;
    options.set_compression_type(match setup.compression {
        Compression::None => DBCompressionType::None,
        Compression::Lz4 => DBCompressionType::Lz4,
    });
    options.set_enable_write_thread_adaptive_yield(false);
    options.set_atomic_flush(true);
    options.set_level_zero_slowdown_writes_trigger(i32::MAX);
    options.set_level_zero_stop_writes_trigger(i32::MAX);
    options.set_soft_pending_compaction_bytes_limit(0);
    options.set_hard_pending_compaction_bytes_limit(0);
    options.set_disable_auto_compactions(!auto_compactions);
    options.set_write_buffer_size(setup.write_buffer_bytes);
    options.set_db_write_buffer_size(setup.write_buffer_bytes);
    options.set_max_background_jobs(2);
    options.set_max_file_opening_threads(OPENING_THREADS);
    options.set_bytes_per_sync(1 << 20);
    options.set_keep_log_file_num(if setup.is_disk_full { 1 } else { 2 });
    if setup.is_disk_full {
        options.set_log_level(LogLevel::Warn);
    }
    options.set_max_log_file_size(LOG_FILE_BYTES_MAX);
    options.set_max_manifest_file_size(MANIFEST_BYTES_MAX);
    options.set_manifest_preallocation_size(0);
    options.set_max_open_files(max_open_files(open_files_limit()));
    Ok(options)
}

/// How many tables RocksDB keeps open: half of what the process may open. -1 is all tables, which
/// RocksDB reads faster; with the limit from which on this is so, 32,768 tables would be 2 TiB.
fn max_open_files(limit: Option<u64>) -> i32 {
    let limit = limit.filter(|limit| *limit < ALL_TABLES_OPEN);
    limit.and_then(|limit| i32::try_from(limit / 2).ok()).unwrap_or(-1)
}

fn table_options(setup: RocksOptions) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    // With the default capacity, RocksDB's LRU cache would have 64 shards of 2 MiB. An entry larger
    // than a shard, such as the filter of two million rows, would be evicted right after the read.
    // In the `HyperClockCache` a shard has at least 32 MiB, or the whole of a smaller cache, and
    // reads take no lock.
    table.set_block_cache(&Cache::new_hyper_clock_cache(setup.block_cache_bytes, ESTIMATED_ENTRY_CHARGE));
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(6);
    table
}
