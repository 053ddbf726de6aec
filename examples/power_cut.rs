//! Testing your own code against power cuts: a store in memory whose crashes you choose.
//!
//! `cargo run --release --example power_cut`

use percolite::engine::sim::SimStorage;
use percolite::{Durability, Result, Store};

fn main() -> Result<()> {
    for choice in 0..5 {
        let memory = SimStorage::new();
        let store = Store::builder().durability(Durability::Buffered).open_in_memory(&memory)?;
        let log = store.keyspace("log")?;
        for entry in 0..4_u8 {
            store.transact(|txn| txn.put(&log, [entry], "written"))?;
        }
        let crash = memory.crash(choice);
        drop(store);

        let reopened = Store::builder().open_in_memory(&memory)?;
        let log = reopened.keyspace("log")?;
        let entries = reopened.snapshot()?.range(&log, ..).count();
        // What is left is always a beginning of what was written: never entry 3 without entry 2.
        println!("{} of {} unsynced writes lost: {entries} entries are left", crash.lost, crash.unsynced);
    }
    Ok(())
}
