//! A transaction that records its operations.
//!
//! Workloads use a [`RecordedTxn`] instead of the store's own transaction. The history contains
//! everything that the workload reads and writes. Operations that a savepoint undoes are removed
//! from the history as well.

use std::ops::Bound;

use percolite::{Error, ErrorKind, Keyspace, Row, Scan, Txn};

use crate::history::Op;
use crate::key_encoding::{decode_key, encode_key};
use crate::rng::SeededRng;
use crate::value_encoding::{WriteId, decode_value, encode_value};

/// The minimum length of the padding of a long value: enough for the data column.
const SEPARATE_VALUE_BYTES: usize = 300;

/// See the [module](self).
pub struct RecordedTxn<'a> {
    txn: &'a mut Txn,
    rows: &'a Keyspace,
    write_id: WriteId,
    ops: Vec<Op>,
    rng: &'a mut SeededRng,
    /// One value in this many is long; 0: none.
    long_value_every: usize,
}

impl<'a> RecordedTxn<'a> {
    /// Records what `txn` does in `rows`; `write_id` identifies its writes.
    pub fn new(
        txn: &'a mut Txn,
        rows: &'a Keyspace,
        write_id: WriteId,
        rng: &'a mut SeededRng,
        long_values: usize,
    ) -> Self {
        Self { txn, rows, write_id, ops: Vec::new(), rng, long_value_every: long_values }
    }

    /// The recorded operations.
    pub fn into_ops(self) -> Vec<Op> {
        self.ops
    }

    /// The random choices of this transaction.
    pub fn rng(&mut self) -> &mut SeededRng {
        self.rng
    }

    /// Reads a row.
    pub fn get(&mut self, key: &str) -> Result<Option<String>, Error> {
        let value = self.txn.get(self.rows, encode_key(key))?.map(|stored| decode_value(&stored));
        self.ops.push(Op::Read(key.into(), value.clone()));
        Ok(value)
    }

    /// Reads several rows in one call.
    pub fn multi_get(&mut self, keys: &[String]) -> Result<Vec<Option<String>>, Error> {
        let values = self.txn.multi_get(self.rows, keys.iter().map(|key| encode_key(key)))?;
        let values: Vec<Option<String>> =
            values.into_iter().map(|value| value.map(|stored| decode_value(&stored))).collect();
        self.ops.extend(keys.iter().zip(&values).map(|(key, value)| Op::Read(key.clone(), value.clone())));
        Ok(values)
    }

    /// Reads a row for update.
    pub fn get_for_update(&mut self, key: &str) -> Result<Option<String>, Error> {
        let value = self.txn.get_for_update(self.rows, encode_key(key))?.map(|stored| decode_value(&stored));
        self.ops.push(Op::ReadForUpdate(key.into(), value.clone()));
        Ok(value)
    }

    /// Writes a row.
    pub fn put(&mut self, key: &str, body: &str) -> Result<(), Error> {
        self.write_id.write += 1;
        let long = self.long_value_every > 0 && self.rng.one_in(self.long_value_every);
        let filling = if long { SEPARATE_VALUE_BYTES + self.rng.below(SEPARATE_VALUE_BYTES) } else { 0 };
        let (encoded, shown) = encode_value(body, self.write_id, filling);
        self.txn.put(self.rows, encode_key(key), encoded)?;
        self.ops.push(Op::Write(key.into(), Some(shown)));
        Ok(())
    }

    /// Deletes a row.
    pub fn delete(&mut self, key: &str) -> Result<(), Error> {
        self.txn.delete(self.rows, encode_key(key))?;
        self.ops.push(Op::Write(key.into(), None));
        Ok(())
    }

    /// Reads all rows whose keys begin with `prefix`, in a random direction.
    pub fn scan(&mut self, prefix: &str) -> Result<Vec<(String, String)>, Error> {
        let scan = self.txn.prefix(self.rows, prefix);
        self.read(scan, prefix.into(), after(prefix))
    }

    /// Reads all rows between two keys, each bound included or excluded, in a random direction.
    pub fn between(&mut self, first: &str, last: &str) -> Result<Vec<(String, String)>, Error> {
        // No key contains a zero byte, so `key` with a zero byte follows `key` and precedes every
        // later key.
        let behind = |key: &str| format!("{key}\0");
        let (start, from) = if self.rng.one_in(2) {
            (Bound::Included(encode_key(first)), first.to_owned())
        } else {
            (Bound::Excluded(encode_key(first)), behind(first))
        };
        let (end, to) = if self.rng.one_in(2) {
            (Bound::Included(encode_key(last)), behind(last))
        } else {
            (Bound::Excluded(encode_key(last)), last.to_owned())
        };
        let scan = self.txn.range(self.rows, (start, end));
        // `to` may be below `from`, as when `first` equals `last` and both are excluded. Then the
        // range is empty.
        let to = to.max(from.clone());
        self.read(scan, from, Some(to))
    }

    fn read(&mut self, scan: Scan, from: String, to: Option<String>) -> Result<Vec<(String, String)>, Error> {
        let read = |row: Result<Row, Error>| row.map(|row| (decode_key(row.key()), decode_value(row.value())));
        let rows = match self.rng.below(3) {
            0 => scan.map(read).collect::<Result<Vec<_>, _>>()?,
            1 => {
                let mut rows = scan.rev().map(read).collect::<Result<Vec<_>, _>>()?;
                rows.reverse();
                rows
            }
            _ => self.scan_from_both_ends(scan.map(read))?,
        };
        if !rows.is_sorted_by(|(before, _), (after, _)| before < after) {
            let keys: Vec<_> = rows.iter().map(|(key, _)| key).collect();
            return Err(ErrorKind::Corruption(format!("a scan is out of order: {keys:?}")).into());
        }
        self.ops.push(Op::Scan { from, to, rows: rows.clone() });
        Ok(rows)
    }

    fn scan_from_both_ends<R>(
        &mut self,
        mut scan: impl DoubleEndedIterator<Item = Result<R, Error>>,
    ) -> Result<Vec<R>, Error> {
        let (mut front, mut back) = (Vec::new(), Vec::new());
        loop {
            let (row, end) = if self.rng.one_in(2) { (scan.next(), &mut front) } else { (scan.next_back(), &mut back) };
            match row {
                Some(row) => end.push(row?),
                None => break,
            }
        }
        front.extend(back.into_iter().rev());
        Ok(front)
    }

    /// Deletes all rows whose keys begin with `prefix`.
    pub fn delete_prefix(&mut self, prefix: &str) -> Result<(), Error> {
        let rows = self.scan(prefix)?;
        match after(prefix).filter(|_| self.rng.one_in(2)) {
            Some(end) => self.txn.delete_range(self.rows, prefix..end.as_str())?,
            None => self.txn.delete_prefix(self.rows, prefix)?,
        };
        self.ops.extend(rows.into_iter().map(|(key, _)| Op::Write(key, None)));
        Ok(())
    }

    /// Whether anything was written.
    pub fn has_written(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Write(..)))
    }

    /// Runs `work` and undoes it with a savepoint.
    pub fn rolled_back(&mut self, work: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        let (savepoint, recorded) = (self.txn.savepoint(), self.ops.len());
        work(self)?;
        self.txn.rollback_to(savepoint)?;
        self.ops.truncate(recorded);
        Ok(())
    }
}

/// The first key after all keys that begin with `prefix` (ASCII). `None` for an empty prefix.
fn after(prefix: &str) -> Option<String> {
    let last = prefix.chars().next_back()?;
    let next = char::from_u32(u32::from(last) + 1)?;
    Some(format!("{}{next}", &prefix[..prefix.len() - last.len_utf8()]))
}
