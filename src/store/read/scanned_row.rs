//! What a scan returns: rows.

use std::ops::Deref;

use crate::engine::{EngineSnapshot, decode_row_key, decode_user_key};
use crate::error::Result;
use crate::lock_value::load_out_of_line;
use crate::row::{StoredValue, TxnId};
use crate::value::Value;

/// A row of a [`Scan`](crate::store::Scan): its key and its value. The row owns its bytes, and
/// keeps neither the scan nor a snapshot open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    key: Vec<u8>,
    value: Value,
}

impl Row {
    pub(super) fn new(row: &[u8], value: FoundValue<'_>) -> Result<Self> {
        Ok(Self { key: decode_user_key(row)?.to_vec(), value: value.load(row)?.into() })
    }

    /// The row of a scan that needs keys alone.
    #[cfg(feature = "tokio")]
    pub(super) fn without_value(row: &[u8], _value: FoundValue<'_>) -> Result<Self> {
        Ok(Self { key: decode_user_key(row)?.to_vec(), value: Value::default() })
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The key and the value, each owned.
    pub fn into_parts(self) -> (Vec<u8>, Value) {
        (self.key, self.value)
    }

    #[cfg(feature = "tokio")]
    pub(super) fn size_bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// The value of a row at a view. A value out of line is read only by [`FoundValue::load`], so a
/// caller that needs no values does not read it.
pub(in crate::store) enum FoundValue<'a> {
    Lent(&'a [u8]),
    Owned(Value),
    /// In the data column of this snapshot, written by this transaction.
    OutOfLine(&'a dyn EngineSnapshot, TxnId),
}

impl<'a> FoundValue<'a> {
    pub fn new(snapshot: &'a dyn EngineSnapshot, txn: TxnId, value: StoredValue) -> Self {
        match value {
            StoredValue::Inline(value) => Self::Owned(value),
            StoredValue::OutOfLine => Self::OutOfLine(snapshot, txn),
        }
    }

    /// The value; `row` is the row's key in the engine.
    #[inline]
    pub fn load(self, row: &[u8]) -> Result<VisibleValue<'a>> {
        Ok(match self {
            Self::Lent(value) => VisibleValue::Lent(value),
            Self::Owned(value) => VisibleValue::Owned(value),
            Self::OutOfLine(snapshot, txn) => {
                VisibleValue::Owned(load_out_of_line(snapshot, &decode_row_key(row)?, txn)?)
            }
        })
    }
}

/// A value that was read: lent from the row's cell if possible, else owned.
pub(in crate::store) enum VisibleValue<'a> {
    Lent(&'a [u8]),
    Owned(Value),
}

impl Deref for VisibleValue<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Owned(value) => value,
        }
    }
}

impl From<VisibleValue<'_>> for Value {
    fn from(value: VisibleValue<'_>) -> Self {
        match value {
            VisibleValue::Lent(bytes) => bytes.into(),
            VisibleValue::Owned(value) => value,
        }
    }
}
