//! Limits that are lower in crash tests, some also in unit tests. In these tests stores have few
//! rows and runs are short, but each limit must still be reached.

const IN_CRASH_TESTS: bool = cfg!(feature = "crashtest");
const IN_ANY_TESTS: bool = cfg!(any(test, feature = "crashtest"));

const fn limit(in_crash_tests: usize, otherwise: usize) -> usize {
    if IN_CRASH_TESTS { in_crash_tests } else { otherwise }
}

/// Rounds of one commit leader before it transfers the leadership. A transfer costs a wake-up; more
/// rounds delay the leader's own caller.
pub const LEADER_ROUNDS_MAX: usize = 32;

/// After a conflict, attempts need a permit until this many commits have followed without another
/// conflict.
pub const CONTENDED_COMMITS: usize = limit(2, 16);

/// The maximum number of pages of lock cleanup in one round of the background worker. In crash
/// tests it is one, so that other background work runs between the pages of a cleanup.
pub const CLEANUP_PAGES_PER_ROUND: usize = limit(1, 32);

/// The leader records a commit of more rows than this as one range of the conflict set, not row by
/// row. Batches of a two-phase commit have fewer rows, except in crash tests, which must cover
/// ranges in these batches, too.
pub const ROW_ENTRIES_MAX: usize = limit(4, 2048);

/// The list of read views is not searched for dropped ones while it has fewer entries.
pub const VIEWS_PRUNE_MIN: usize = limit(4, 64);

/// The Bloom filter of the rows that large transactions have locked grows by levels. When the last
/// level is full, one of twice its capacity is added. This is the capacity of the first, in rows.
pub const FIRST_LEVEL_ROWS: usize = limit(16, 4096);

/// The maximum number of rows that one batch commits at the commit point of a two-phase
/// transaction: its primary, and others with it. `None`: as many as any batch may have. In crash
/// tests the maximum is low, so that after the commit point other rows are often still locked.
pub const PRIMARY_BATCH_ROWS_MAX: Option<usize> = if IN_CRASH_TESTS { Some(3) } else { None };

/// The maximum size of a batch that commits locked rows, in bytes. The versions that it replaces
/// are in the batch, too, if they are kept as history. A batch of a single row may be larger.
pub const COMMIT_BATCH_BYTES_MAX: usize = limit(512, 8 << 20);

/// The maximum size of a one-phase commit that must read the versions that it replaces, in bytes. A
/// transaction above this size becomes a large one.
pub const ONE_PHASE_BYTES_MAX: usize = limit(2048, 64 << 20);

/// The maximum number of cells that a scan reads by one call of the engine (a page), even if the
/// caller allows more.
pub const PAGE_CELLS: usize = limit(2, usize::MAX);

/// The maximum size of a page of a scan, in bytes; `None` for the engine's own maximum.
pub const PAGE_BYTES: Option<usize> = if IN_CRASH_TESTS { Some(64) } else { None };

/// A segment of the write-ahead log is preallocated in steps of this many bytes.
pub const PREALLOCATION_STEP: usize = if IN_ANY_TESTS { 16 << 10 } else { 256 << 10 };

/// The step on a disk that was full when the store was opened.
pub const PREALLOCATION_STEP_ON_FULL_DISK: usize = if IN_ANY_TESTS { 12 << 10 } else { 16 << 10 };

/// The approximate size of a batch that a flush writes to the tables, in bytes.
pub const TABLE_BATCH_BYTES: usize = if IN_ANY_TESTS { 300 } else { 1 << 20 };

/// The maximum number of stripes in which a flush writes a memtable: one up to each open snapshot
/// within the memtable, and one up to its end.
pub const STRIPES_MAX: usize = if cfg!(test) { 4 } else { 256 };

/// What an entry of a table takes beside its key and value, in bytes, about: lengths, sequence,
/// index and filter.
#[cfg(feature = "rocks")]
pub const TABLE_ENTRY_BYTES: usize = 24;
