//! What the store keeps in memory of rows that were written a moment ago, counted at the allocator.

#![allow(unsafe_code, reason = "an allocator that counts; nothing else here is unsafe")]
#![allow(clippy::unwrap_used, clippy::pedantic, missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use percolite::{Durability, Store};

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is the system's allocator's, with the same arguments.
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

/// What a row takes beside its key and value, and what the store counts of it: the most of either while rows are written in
/// transactions of so many.
fn beside(rows: u64, batch: u64) -> (f64, f64) {
    let folder = tempfile::tempdir().unwrap();
    // Nothing is handed down meanwhile.
    let store =
        Store::builder().durability(Durability::Buffered).write_buffer_bytes(1 << 30).open(folder.path()).unwrap();
    let keyspace = store.keyspace("rows").unwrap();
    let before = (ALLOCATED.load(Ordering::Relaxed), store.engine_figures().unwrap().write_buffer_bytes);
    let (mut allocated, mut counted) = (0.0_f64, 0.0_f64);
    for start in (0..rows).step_by(batch as usize) {
        let mut txn = store.begin().unwrap();
        for number in start..start + batch {
            // Every key once, in no order.
            let key = (number * 7_919 % rows).to_be_bytes();
            txn.put(&keyspace, key, [7; VALUE_BYTES]).unwrap();
        }
        txn.commit().unwrap();
        // Before that the first chunks of everything count.
        if start >= 10_000 {
            let figures = store.engine_figures().unwrap();
            let of_a_row = |bytes: u64| bytes as f64 / (start + batch) as f64 - (size_of::<u64>() + VALUE_BYTES) as f64;
            allocated = allocated.max(of_a_row((ALLOCATED.load(Ordering::Relaxed) - before.0) as u64));
            counted = counted.max(of_a_row(figures.write_buffer_bytes - before.1));
        }
    }
    (allocated, counted)
}

#[test]
fn a_recent_row_takes_at_most_100_bytes_beside_its_key_and_value_and_the_store_counts_them() {
    // Each transaction takes a place for its frame besides.
    for (batch, at_most) in [(1, 125.0), (10, 100.0), (1_000, 100.0)] {
        let (allocated, counted) = beside(60_000, batch);
        println!("transactions of {batch}: {allocated:.1} bytes beside a row, {counted:.1} of them counted");
        assert!(allocated <= at_most, "{allocated}");
        assert!((allocated - counted).abs() <= 3.0, "{allocated}, and {counted} counted");
    }
}
