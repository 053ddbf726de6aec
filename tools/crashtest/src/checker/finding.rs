//! A finding: an anomaly, the transaction and row in which it shows, and the transactions that may
//! be needed to reproduce it.

use serde::Serialize;

use crate::history::{History, Key, TxnIndex, Value};

use super::anomaly::Anomaly;
use super::writers::locked_rows;

/// A finding.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The anomaly and where it shows.
    pub symptom: Symptom,
    /// The transactions that may be needed to reproduce the anomaly, including the one in which it
    /// shows.
    pub involved: Vec<TxnIndex>,
    /// The rows that may be needed to reproduce the anomaly.
    pub keys: Vec<Key>,
}

/// An anomaly and where it shows. It has ids, not indexes, so a symptom in a history can be
/// compared with one in a part of that history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Symptom {
    /// The anomaly.
    pub anomaly: Anomaly,
    /// The transaction in which the anomaly shows.
    pub transaction: u64,
    /// The row in which the anomaly shows, if it is an anomaly of a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What was expected: a JSON value for reads, a sentence otherwise.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl Symptom {
    /// Whether `other`, which was found in a part of the history, is the same symptom. The expected
    /// values are not compared if the found value is wrong by itself, because the part may lack the
    /// writer of the expected value.
    pub fn is_same(&self, other: &Self) -> bool {
        let expects = |symptom: &Self| (!symptom.anomaly.is_unconditional()).then(|| symptom.expected.clone());
        (self.anomaly, self.transaction, &self.key, &self.found)
            == (other.anomaly, other.transaction, &other.key, &other.found)
            && expects(self) == expects(other)
    }
}

impl Finding {
    /// A finding about one row in one transaction. `others` are the other transactions involved.
    pub fn of_row(
        history: &History,
        (anomaly, txn, key): (Anomaly, TxnIndex, Key),
        expected: String,
        found: String,
        others: impl IntoIterator<Item = TxnIndex>,
    ) -> Self {
        let transaction = history.transaction(txn).id;
        let key_text = Some(history.key(key).to_owned());
        let mut involved = vec![txn];
        involved.extend(others);
        Self { symptom: Symptom { anomaly, transaction, key: key_text, expected, found }, involved, keys: vec![key] }
    }

    /// A finding about the timestamps of a transaction, and perhaps of another one.
    pub fn of_times(
        history: &History,
        (anomaly, txn): (Anomaly, TxnIndex),
        expected: String,
        found: String,
        other: Option<TxnIndex>,
    ) -> Self {
        let transaction = history.transaction(txn).id;
        let mut involved = vec![txn];
        involved.extend(other);
        // The minimal history has only the operations on `keys`, and a transaction that neither
        // writes nor locks a row there has no commit timestamp. So `keys` gets a locked row of each
        // transaction.
        let keys = involved.iter().filter_map(|txn| locked_rows(history, *txn).next()).collect();
        Self { symptom: Symptom { anomaly, transaction, key: None, expected, found }, involved, keys }
    }
}

/// A value as JSON.
pub fn value_json(history: &History, value: Value) -> String {
    history.value(value).map_or_else(|| "null".to_owned(), |text| serde_json::Value::from(text).to_string())
}
