//! How to test your code against power cuts: the store is on simulated storage, which crashes when
//! you say.
//!
//! ```text
//! cargo run --release --example power_cut
//! ```

use percolite::engine::sim::SimStorage;
use percolite::{Durability, Result, Store};

fn main() -> Result<()> {
    for choice in 0..5 {
        let storage = SimStorage::new();
        // A buffered commit is not synced, so a power cut may lose it.
        let store = Store::builder().durability(Durability::Buffered).open_in_memory(&storage)?;
        let log = store.keyspace("log")?;
        for entry in 0..4_u8 {
            store.transact(|txn| txn.put(&log, [entry], "written"))?;
        }
        // The crash may lose any number of the last unsynced writes; `choice` selects the number.
        let crash = storage.crash(choice);
        drop(store);

        let reopened = Store::builder().open_in_memory(&storage)?;
        let log = reopened.keyspace("log")?;
        let entries = reopened.range(&log, ..)?.count();
        // The store has the state after one of the commits: entry 3 never survives without entry 2.
        println!("{} of {} unsynced writes were lost, {entries} entries survived", crash.lost, crash.unsynced);
    }
    Ok(())
}
