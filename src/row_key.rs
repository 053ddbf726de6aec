//! A row's key: keyspace id and user key in one byte string.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::value::Value;

/// Identifies a keyspace. Not reused after the keyspace is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyspaceId(pub u32);

impl KeyspaceId {
    /// The keyspace of the store's own rows.
    pub(crate) const CATALOG: Self = Self(0);
}

pub(crate) const KEYSPACE_BYTES: usize = size_of::<u32>();
/// Row keys of up to this many bytes are stored inline, without an allocation: a commit handles
/// each row's key about a dozen times.
const SHORT_BYTES: usize = 30;
/// Longer keys of up to this many bytes are put together on the stack and then copied into the
/// `Arc`. To put them together on the heap would take a second allocation.
const STACK_BYTES: usize = 64;

/// A user key within its keyspace. Ordered by keyspace id, then by the key's bytes. Cheap to clone.
#[derive(Clone)]
pub struct RowKey(Repr);

#[derive(Clone)]
enum Repr {
    Short { length: u8, bytes: [u8; SHORT_BYTES] },
    Long(Arc<[u8]>),
}

impl RowKey {
    /// The row of `key` in `keyspace`.
    pub fn new(keyspace: KeyspaceId, key: &[u8]) -> Self {
        let id = keyspace.0.to_be_bytes();
        let mut short = [0; SHORT_BYTES];
        if let Some(length) = put_together(&mut short, id, key).and_then(|bytes| u8::try_from(bytes.len()).ok()) {
            return Self(Repr::Short { length, bytes: short });
        }
        let mut long = [0; STACK_BYTES];
        // An `Arc` is made by copying one slice, so a key above `STACK_BYTES` is first put together
        // by `concat`. An iterator over both parts would save that allocation, but the `Arc` would
        // copy byte by byte, which takes as long.
        Self(Repr::Long(match put_together(&mut long, id, key) {
            Some(bytes) => bytes.into(),
            None => [&id, key].concat().into(),
        }))
    }

    /// Inverse of [`RowKey::as_bytes`]; `None` if there are fewer than 4 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.split_first_chunk().map(|(id, key)| Self::new(KeyspaceId(u32::from_be_bytes(*id)), key))
    }

    /// The keyspace id, big-endian, followed by the user key: the row's key in the lock and write
    /// columns.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Short { length, bytes } => &bytes[..usize::from(*length)],
            Repr::Long(bytes) => bytes,
        }
    }

    /// The id of the row's keyspace.
    pub fn keyspace_id(&self) -> KeyspaceId {
        let Some(id) = self.as_bytes().first_chunk() else {
            unreachable!("invariant: a row key begins with its keyspace id")
        };
        KeyspaceId(u32::from_be_bytes(*id))
    }

    /// The user key.
    pub fn user_key(&self) -> &[u8] {
        &self.as_bytes()[KEYSPACE_BYTES..]
    }
}

/// Writes a row key's bytes to the start of `buffer`, if they fit.
#[inline]
fn put_together<'a>(buffer: &'a mut [u8], id: [u8; KEYSPACE_BYTES], key: &[u8]) -> Option<&'a [u8]> {
    let bytes = buffer.get_mut(..KEYSPACE_BYTES + key.len())?;
    let (first, rest) = bytes.split_first_chunk_mut()?;
    *first = id;
    rest.copy_from_slice(key);
    Some(bytes)
}

impl PartialEq for RowKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for RowKey {}

impl PartialOrd for RowKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RowKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for RowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.keyspace_id().0, self.user_key().escape_ascii())
    }
}

impl Serialize for RowKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for RowKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Value::deserialize(deserializer)?.0;
        Self::from_bytes(&bytes).ok_or_else(|| serde::de::Error::custom("a row key has at least 4 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys() -> impl Strategy<Value = (u32, Vec<u8>)> {
        // Keys shorter and longer than `SHORT_BYTES` and `STACK_BYTES`.
        (0_u32..3, prop::collection::vec(0_u8..3, 0..80))
    }

    proptest! {
        #[test]
        fn row_keys_of_all_lengths_round_trip((id, key) in keys(), (other_id, other_key) in keys()) {
            let bytes = [&id.to_be_bytes()[..], &key].concat();
            let row = RowKey::new(KeyspaceId(id), &key);
            prop_assert_eq!((row.as_bytes(), row.keyspace_id(), row.user_key()), (&bytes[..], KeyspaceId(id), &key[..]));
            prop_assert_eq!(RowKey::from_bytes(&bytes), Some(row.clone()));
            let other = RowKey::new(KeyspaceId(other_id), &other_key);
            prop_assert_eq!(row.cmp(&other), (id, key).cmp(&(other_id, other_key)));
        }
    }

    #[test]
    fn a_row_key_shorter_than_a_keyspace_id_is_refused() {
        assert_eq!((RowKey::from_bytes(&[0; 3]), RowKey::from_bytes(&[])), (None, None));
    }

    #[test]
    fn a_row_key_takes_four_words() {
        assert_eq!(size_of::<RowKey>(), 32);
    }
}
