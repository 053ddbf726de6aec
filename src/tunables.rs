//! Limits that crash tests and unit tests lower: their stores have few rows and short runs, and
//! must reach what each of these bounds.

const IN_CRASH_TESTS: bool = cfg!(feature = "crashtest");
const IN_ANY_TESTS: bool = cfg!(any(test, feature = "crashtest"));

const fn limit(in_crash_tests: usize, otherwise: usize) -> usize {
    if IN_CRASH_TESTS { in_crash_tests } else { otherwise }
}

/// After a conflict attempts need a permit until this many commits follow without another one.
pub const CONTENDED_COMMITS: usize = limit(2, 16);

/// Pages of lock cleanup in one round of the background worker. In crash tests other work runs in
/// the middle of a cleanup.
pub const CLEANUP_PAGES_PER_ROUND: usize = limit(1, 32);

/// Rows of a commit above which the leader records it as a range, not row by row. A batch of a
/// two-phase commit has fewer rows, except in crash tests, which reach both cases there too.
pub const ROW_ENTRIES_MAX: usize = limit(4, 2048);

/// Rows of the first level of a Bloom filter; each further level has twice as many.
pub const FIRST_LEVEL_ROWS: usize = limit(16, 4096);

/// Rows in the batch of a two-phase commit's primary. In crash tests some are still locked after
/// the commit point.
pub const PRIMARY_BATCH_ROWS_MAX: Option<usize> = if IN_CRASH_TESTS { Some(3) } else { None };

/// Bytes of a batch that commits locked rows, with the versions that it replaces.
pub const COMMIT_BATCH_BYTES_MAX: usize = limit(512, 8 << 20);

/// Bytes of a one-phase commit that reads the versions that it replaces. Above it the transaction
/// becomes a large one.
pub const ONE_PHASE_BYTES_MAX: usize = limit(2048, 64 << 20);

/// Cells of a page, in addition to the requested limit.
pub const PAGE_CELLS_MAX: usize = limit(2, usize::MAX);

/// Bytes of a page, if it is not the engine's own maximum.
pub const PAGE_BYTES: Option<usize> = if IN_CRASH_TESTS { Some(64) } else { None };

/// The step in which a segment of the write-ahead log is preallocated, in bytes.
pub const PREALLOCATION_STEP: usize = if IN_ANY_TESTS { 16 << 10 } else { 256 << 10 };

/// The approximate size of a batch that a flush writes to the tables, in bytes.
pub const TABLE_BATCH_BYTES: usize = if IN_ANY_TESTS { 300 } else { 1 << 20 };

/// The maximum number of stripes of one flush.
pub const STRIPES_MAX: usize = if cfg!(test) { 4 } else { 256 };
