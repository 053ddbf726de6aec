//! Limits that crash tests lower: their stores have few rows and short runs, and must reach what
//! each of these bounds.

use crate::engine::PAGE_BYTES_MAX;

const IN_CRASH_TESTS: bool = cfg!(feature = "crashtest");

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
pub const PRIMARY_GROUP_ROWS_MAX: Option<usize> = if IN_CRASH_TESTS { Some(3) } else { None };

/// Cells of a page, in addition to the requested limit.
pub const PAGE_CELLS_MAX: usize = limit(2, usize::MAX);

/// Bytes of a page, in addition to the requested limit.
pub const PAGE_BYTES: usize = limit(64, PAGE_BYTES_MAX);
