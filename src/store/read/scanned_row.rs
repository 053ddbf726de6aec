//! What a scan returns: rows.

use std::ops::Deref;

use crate::value::Value;

/// A row of a [`Scan`](crate::store::Scan): its key and its value. The row owns its bytes, and
/// keeps neither the scan nor a snapshot open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    key: Vec<u8>,
    value: Value,
}

impl Row {
    pub(super) fn new(key: &[u8], value: VisibleValue<'_>) -> Self {
        Self { key: key.to_vec(), value: value.into() }
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

/// The value of a row at a view: lent from the row's cell if possible, else owned.
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
