//! Values: bytes that share their memory.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The bytes of a value: owned, immutable and cheap to clone. A `Value` derefs to `[u8]`, compares
/// with anything that is bytes, and converts into a `Vec<u8>`.
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// # let store = percolite::Store::in_memory()?;
/// # let accounts = store.keyspace("accounts")?;
/// # store.transact(|txn| txn.put(&accounts, "alice", "100"))?;
/// let value = store.get(&accounts, "alice")?.unwrap();
/// assert_eq!(value, "100");
/// assert_eq!((value.len(), value.first()), (3, Some(&b'1')));
/// let owned: Vec<u8> = value.into();
/// # assert_eq!(owned, b"100");
/// # Ok(()) }
/// ```
///
/// A value does not keep a snapshot or the store open. Clones share one allocation, which is freed
/// with the last of them.
#[derive(Clone, Default)]
pub struct Value(pub(crate) Arc<[u8]>);

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

macro_rules! from {
    ($($bytes:ty),*) => {$(
        impl From<$bytes> for Value {
            fn from(bytes: $bytes) -> Self {
                Self(Arc::from(AsRef::<[u8]>::as_ref(&bytes)))
            }
        }
    )*};
}

from!(&[u8], Vec<u8>, &Vec<u8>, &str, String, &String, Cow<'_, [u8]>);

impl From<&Value> for Value {
    fn from(value: &Value) -> Self {
        value.clone()
    }
}

impl From<Box<[u8]>> for Value {
    fn from(bytes: Box<[u8]>) -> Self {
        Self(bytes.into())
    }
}

impl<const N: usize> From<[u8; N]> for Value {
    fn from(bytes: [u8; N]) -> Self {
        Self(bytes.into())
    }
}

impl<const N: usize> From<&[u8; N]> for Value {
    fn from(bytes: &[u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        value.to_vec()
    }
}

/// Fails if the length of the value is not `N`, and returns the value as the error.
impl<const N: usize> TryFrom<Value> for [u8; N] {
    type Error = Value;

    fn try_from(value: Value) -> Result<Self, Value> {
        Self::try_from(&*value).map_err(|_| value)
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Value {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

/// Serialized as one byte string, not as a sequence of numbers.
impl Serialize for Value {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a byte string")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Value, E> {
                Ok(bytes.into())
            }

            // Formats without byte strings, for example JSON, have a sequence of numbers instead.
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut numbers: A) -> Result<Value, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = numbers.next_element::<u8>()? {
                    bytes.push(byte);
                }
                Ok(bytes.into())
            }
        }
        deserializer.deserialize_bytes(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_value_is_equal_to_its_bytes_in_any_type() {
        let (value, less, owned) = (Value::from("100"), Value::from([b'0']), b"100".to_vec());
        assert!(value == "100" && value == b"100" && value == *b"100" && value == owned);
        assert!(value != "10" && value != less && value > less);
        assert_eq!(HashSet::from([value.clone()]).get(&b"100"[..]), Some(&value));
        assert_eq!(<[u8; 3]>::try_from(value.clone()), Ok(*b"100"));
        assert_eq!(<[u8; 4]>::try_from(value.clone()), Err(value.clone()));
        assert_eq!(Vec::from(value), b"100");
        assert_eq!(format!("{:?}", Value::from(b"a\0")), "\"a\\x00\"");
    }

    #[test]
    fn a_value_survives_formats_with_and_without_byte_strings() {
        let value = Value::from([0, 255]);
        let mut bytes = Vec::new();
        crate::codec::encode_value(&value, &mut bytes);
        assert_eq!(bytes, [1, 2, 0, 255], "format, length, bytes");
        assert_eq!(crate::codec::decode_value::<Value>(&bytes).unwrap(), value);
        #[cfg(feature = "rocks")]
        assert_eq!(serde_json::from_str::<Value>(&serde_json::to_string(&value).unwrap()).unwrap(), value);
    }
}
