//! A secondary index that always matches its records: both change in one transaction.
//!
//! ```text
//! cargo run --release --example secondary_index
//! ```

use percolite::{Keyspace, Result, Store, Txn};

struct Users {
    /// The records: the keys are user numbers, the values are towns.
    records: Keyspace,
    /// The index: the keys are [`index_key`]s, the values are empty.
    by_town: Keyspace,
}

impl Users {
    fn move_to(&self, txn: &mut Txn, number: u32, town: &str) -> Result<()> {
        // Two concurrent moves of one user both write the record, so one of them conflicts and is
        // retried, and no stale index entry remains.
        if let Some(old) = txn.get(&self.records, number.to_be_bytes())? {
            txn.delete(&self.by_town, index_key(&old, number))?;
        }
        txn.put(&self.records, number.to_be_bytes(), town)?;
        txn.put(&self.by_town, index_key(town.as_bytes(), number), "")
    }

    /// The numbers of the users in this town, from a prefix scan of the index.
    fn living_in(&self, store: &Store, town: &str) -> Result<Vec<u32>> {
        let prefix = [town.as_bytes(), &[0]].concat();
        let number = |key: &[u8]| key.last_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        store.prefix(&self.by_town, prefix)?.map(|row| Ok(number(row?.key()))).collect()
    }
}

/// Town, zero byte, number. Without the zero byte the prefix `york` would match `yorkshire`.
fn index_key(town: &[u8], number: u32) -> Vec<u8> {
    [town, &[0], &number.to_be_bytes()].concat()
}

fn main() -> Result<()> {
    let store = Store::in_memory()?;
    let users = Users { records: store.keyspace("users")?, by_town: store.keyspace("users by town")? };
    for (number, town) in [(1, "york"), (2, "yorkshire"), (3, "york"), (1, "leeds")] {
        store.transact(|txn| users.move_to(txn, number, town))?;
    }
    println!("york: {:?}, leeds: {:?}", users.living_in(&store, "york")?, users.living_in(&store, "leeds")?);
    Ok(())
}
