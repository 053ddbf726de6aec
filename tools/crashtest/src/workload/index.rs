//! Records and a secondary index by colour: each record is in the index exactly once, under its
//! colour.

use percolite::Error;

use super::{State, Workload, describe_rows, with_prefix};
use crate::recorded_txn::RecordedTxn;
use crate::value_encoding::body;

const RECORDS: usize = 8;
const COLOURS: [&str; 3] = ["blue", "green", "red"];

pub struct Index;

impl Workload for Index {
    fn name(&self) -> &'static str {
        "index"
    }

    fn load(&self, _txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        let colour = *txn.rng().pick(&COLOURS).unwrap_or(&COLOURS[0]);
        if txn.rng().one_in(6) {
            return txn.scan(&format!("i/{colour}/")).map(drop);
        }
        let record = txn.rng().below(RECORDS);
        let key = format!("o/{record}");
        if let Some(before) = txn.get(&key)? {
            txn.delete(&format!("i/{}/{record}", body(&before)))?;
        }
        if txn.rng().one_in(4) {
            return txn.delete(&key);
        }
        txn.put(&key, colour)?;
        txn.put(&format!("i/{colour}/{record}"), "")
    }

    fn check(&self, state: &State) -> Result<(), String> {
        let records: Vec<String> = with_prefix(state, "o/")
            .map(|(key, colour)| format!("i/{colour}/{}", key.trim_start_matches("o/")))
            .collect();
        let mut expected: Vec<&str> = records.iter().map(String::as_str).collect();
        expected.sort_unstable();
        let entries: Vec<&str> = with_prefix(state, "i/").map(|(key, _)| key).collect();
        if entries == expected {
            Ok(())
        } else {
            // Missing and surplus entries, with their records.
            let differ = expected.iter().filter(|key| !entries.contains(key));
            let differ = differ.chain(entries.iter().filter(|key| !expected.contains(key)));
            let record = |key: &str| format!("o/{}", key.rsplit('/').next().unwrap_or_default());
            let rows: Vec<String> = differ.map(|key| describe_rows(state, [*key, &record(key)])).collect();
            Err(format!("the index does not match the records: {}", rows.join("; ")))
        }
    }
}
