//! A secondary index over one field of the records: each transaction inserts a record and its entry
//! in the index.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{RowGenerator, Work};
use crate::client::{Client, Total};
use crate::generator::number;
use crate::peer::{Read as _, Session};

/// The first byte of a record's key, and of an index entry's.
const RECORD: u8 = b'r';
const ENTRY: u8 = b'i';
/// The number of different values of the indexed field.
const FIELDS: u64 = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Index {}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("insert with a secondary index")
    }
}

/// A key: the type of the row, and its parts in big-endian order.
fn key<const PARTS: usize>(row_type: u8, parts: [u64; PARTS]) -> Vec<u8> {
    let mut key = vec![row_type];
    parts.iter().for_each(|part| key.extend_from_slice(&part.to_be_bytes()));
    key
}

impl Work for Index {
    fn prepare(&self, _: &mut impl Session, _: &mut RowGenerator) -> Result<()> {
        Ok(())
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let mut id = client.number << 40;
        while client.should_continue() {
            id += 1;
            let field = client.rng.below(FIELDS);
            let record = client.rng.value(field, client.value_bytes);
            let (record_key, entry_key) = (key(RECORD, [id]), key(ENTRY, [field, id]));
            let bytes = record_key.len() + record.len() + entry_key.len();
            client.transact(session, bytes, 1, |txn| {
                ensure!(!txn.get_for_update(&record_key, &mut |_| ())?, "the record already exists");
                txn.put(&record_key, &record)?;
                // Not empty, because not every store distinguishes an empty value from none.
                txn.put(&entry_key, &[1])
            })?;
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, total: &Total) -> Result<()> {
        let reader = session.reader(None)?;
        let (mut records, mut entries) = (Vec::new(), Vec::new());
        reader.scan(&[0], usize::MAX >> 1, |found, value| match found.split_first() {
            Some((&RECORD, id)) => records.push((number(value), number(id))),
            Some((_, entry)) => entries.push((number(entry), number(&entry[8..]))),
            None => {}
        })?;
        records.sort_unstable();
        ensure!(
            records.len() as u64 == total.commits,
            "{} records instead of {}, the number of acknowledged inserts",
            records.len(),
            total.commits
        );
        ensure!(records == entries, "the index does not match the records");
        Ok(())
    }
}
