//! One transaction of a workload.

use adya::r#gen::TxnOp;
use adya::run::{Outcome, parse_list};
use percolite::{ErrorKind, Keyspace, Result, Store, Txn};

/// A row's value: the elements of a list, or a single number.
fn read(txn: &Txn, rows: &Keyspace, key: i64) -> Result<Vec<i64>> {
    let value = txn.get(rows, key.to_be_bytes())?;
    Ok(parse_list(value.as_deref().map(String::from_utf8_lossy).as_deref()))
}

fn run_ops(txn: &mut Txn, rows: &Keyspace, ops: &[TxnOp]) -> Result<Vec<Option<Vec<i64>>>> {
    let mut reads = Vec::new();
    for op in ops {
        reads.push(match *op {
            TxnOp::Read(key) => Some(read(txn, rows, key)?),
            TxnOp::Write(key, value) => {
                txn.put(rows, key.to_be_bytes(), value.to_string())?;
                None
            }
            TxnOp::Append(key, value) => {
                let mut list = read(txn, rows, key)?;
                list.push(value);
                let list: Vec<String> = list.iter().map(i64::to_string).collect();
                txn.put(rows, key.to_be_bytes(), list.join(","))?;
                None
            }
        });
    }
    Ok(reads)
}

/// Runs a transaction. What is not known to have failed has an unknown outcome.
pub fn run(store: &Store, rows: &Keyspace, ops: &[TxnOp]) -> Outcome {
    let work = || {
        let mut txn = store.begin()?;
        let reads = run_ops(&mut txn, rows, ops)?;
        txn.commit()?;
        Ok(reads)
    };
    outcome(work())
}

/// A mistake, to see that it is found: what was read is written in a second transaction, whose
/// snapshot is newer.
pub fn run_with_lost_updates(store: &Store, rows: &Keyspace, ops: &[TxnOp]) -> Outcome {
    let work = || {
        let mut txn = store.begin()?;
        let reads = run_ops(&mut txn, rows, ops)?;
        let written: Vec<_> = ops
            .iter()
            .filter_map(|op| match *op {
                TxnOp::Append(key, _) | TxnOp::Write(key, _) => Some(key),
                TxnOp::Read(_) => None,
            })
            .map(|key| Ok((key, txn.get(rows, key.to_be_bytes())?)))
            .collect::<Result<_>>()?;
        txn.rollback()?;
        store.transact(|txn| {
            written.iter().try_for_each(|(key, value)| match value {
                Some(value) => txn.put(rows, key.to_be_bytes(), value),
                None => txn.delete(rows, key.to_be_bytes()),
            })
        })?;
        Ok(reads)
    };
    outcome(work())
}

fn outcome(result: Result<Vec<Option<Vec<i64>>>>) -> Outcome {
    match result {
        Ok(reads) => Outcome::Ok(reads),
        Err(error) if matches!(error.kind(), ErrorKind::Conflict(_) | ErrorKind::RetriesExhausted { .. }) => {
            Outcome::Fail(error.to_string())
        }
        Err(error) => Outcome::Info(error.to_string()),
    }
}
