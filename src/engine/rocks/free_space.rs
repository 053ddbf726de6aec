//! Compactions on a disk that is nearly full.
//!
//! A compaction writes its output before it removes its input. On a disk without room for both, it
//! takes what is left and then fails, and meanwhile nothing else can be written: no segment of the
//! log, no flush. RocksDB begins such a compaction again at each opening. So a store that is opened
//! without room for a compaction has none, until a flush finds that there is room. Until then
//! nothing waits for compactions.
//!
//! The room that is needed is the size of all tables, at most [`ROOM_MAX`]: a compaction of level 0
//! can rewrite all tables of a small store, and one of a large store rewrites some 25 tables.

use std::path::Path;

use crate::os_limits::free_bytes;

/// The most that compactions need. RocksDB limits a compaction to 25 tables of 64 MiB, and most
/// need much less.
const ROOM_MAX: u64 = 1 << 30;

/// Whether the disk has room for a compaction of tables of this size. If its free space is unknown,
/// it has.
pub fn has_room(directory: &Path, table_bytes: u64) -> bool {
    free_bytes(directory).is_none_or(|free| free >= table_bytes.min(ROOM_MAX))
}

/// Like [`has_room`], before the tables are opened.
pub fn has_room_at_opening(directory: &Path) -> bool {
    let table_bytes = || {
        let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let tables = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "sst"));
        tables.filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum()
    };
    has_room(directory, ROOM_MAX) || has_room(directory, table_bytes())
}
