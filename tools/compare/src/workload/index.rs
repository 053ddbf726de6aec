//! A secondary index: each transaction inserts a record and the entry that finds it by another field.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Values, Work};
use crate::client::{Client, Total};
use crate::dice::number;
use crate::peer::{Read as _, Session};

/// The first byte of a record's key, and of an index entry's.
const RECORD: u8 = b'r';
const ENTRY: u8 = b'i';
/// What the field can be.
const FIELDS: u64 = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Index {}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("insert with a secondary index")
    }
}

/// The parts of a key.
fn key<const PARTS: usize>(sort: u8, parts: [u64; PARTS]) -> Vec<u8> {
    let mut key = vec![sort];
    parts.iter().for_each(|part| key.extend_from_slice(&part.to_be_bytes()));
    key
}

impl Work for Index {
    fn prepare(&self, _: &mut impl Session, _: &mut Values) -> Result<()> {
        Ok(())
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let mut id = client.number << 40;
        while client.goes_on() {
            id += 1;
            let field = client.dice.below(FIELDS);
            let record = client.dice.value(field, client.value_bytes);
            let (record_key, entry_key) = (key(RECORD, [id]), key(ENTRY, [field, id]));
            let bytes = record_key.len() + record.len() + entry_key.len();
            client.commits(session, bytes, 1, |txn| {
                ensure!(!txn.get_to_write(&record_key, &mut |_| ())?, "the record is there already");
                txn.put(&record_key, &record)?;
                // Not empty, since not every store can tell that from nothing.
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
            "{} records are there, and {} were acknowledged",
            records.len(),
            total.commits
        );
        ensure!(records == entries, "the index does not fit the records");
        Ok(())
    }
}
