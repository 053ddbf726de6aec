//! The memory overhead of recently written rows, measured at the allocator.

#![allow(unsafe_code, reason = "an allocator that counts; nothing else here is unsafe")]
#![allow(clippy::unwrap_used, clippy::pedantic, missing_docs, reason = "a test that cannot go on fails")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use percolite::{Durability, Store};

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const VALUE_BYTES: usize = 100;

/// Writes rows, `batch` of them in each transaction. Returns two maxima, in bytes per row: the
/// memory that a row needs besides its key and value, and the difference between the allocated
/// bytes and the bytes that the store reports.
fn overhead(rows: u64, batch: u64) -> (f64, f64) {
    let directory = tempfile::tempdir().unwrap();
    // The write buffer is larger than all rows together, so no flush takes any out of memory.
    let builder =
        Store::builder().durability(Durability::Buffered).write_buffer_bytes(1 << 30).background_resolve(false);
    let store = builder.open(directory.path()).unwrap();
    let keyspace = store.keyspace("rows").unwrap();
    let measure = || (ALLOCATED.load(Ordering::Relaxed) as f64, store.engine_stats().unwrap().memtable_bytes as f64);
    let before = measure();
    let (mut most, mut difference) = (0.0_f64, 0.0_f64);
    for start in (0..rows).step_by(batch as usize) {
        let mut txn = store.begin().unwrap();
        for number in start..start + batch {
            // Every key once, in a scattered order.
            let key = (number * 7_919 % rows).to_be_bytes();
            txn.put(&keyspace, key, [7; VALUE_BYTES]).unwrap();
        }
        txn.commit().unwrap();
        // Measured from 20,000 rows on: with fewer, the first allocation of each structure would
        // count too much.
        if start >= 20_000 {
            let now = measure();
            let of_a_row = |bytes: f64| bytes / (start + batch) as f64;
            let allocated = of_a_row(now.0 - before.0);
            most = most.max(allocated - (size_of::<u64>() + VALUE_BYTES) as f64);
            difference = difference.max((allocated - of_a_row(now.1 - before.1)).abs());
        }
    }
    (most, difference)
}

#[test]
fn a_recent_row_needs_at_most_100_bytes_of_overhead() {
    // Each transaction also has an entry for its frame, so transactions of one row may need more.
    for (batch, at_most) in [(1, 125.0), (10, 100.0), (1_000, 100.0)] {
        let (most, difference) = overhead(60_000, batch);
        println!("transactions of {batch}: {most:.1} bytes of overhead a row, reported to within {difference:.1}");
        assert!(most <= at_most, "{most}");
        assert!(difference <= 3.0, "{difference}");
    }
}
