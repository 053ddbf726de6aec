//! Ranges of keys, and the ranges of rows that they select.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::engine::RowRange;
use crate::keys::prefix_successor;
use crate::row::{KeyspaceId, RowKey};
use crate::store::keyspace::Keyspace;

/// A range of keys: any range type of the standard library, or a pair of [`Bound`]s, whose bounds
/// are `AsRef<[u8]>`.
pub trait KeyRange {
    /// The lower bound.
    fn start(&self) -> Bound<&[u8]>;
    /// The upper bound.
    fn end(&self) -> Bound<&[u8]>;
}

macro_rules! key_range {
    ($range:ty) => {
        impl<K: AsRef<[u8]>> KeyRange for $range {
            fn start(&self) -> Bound<&[u8]> {
                std::ops::RangeBounds::<K>::start_bound(self).map(AsRef::as_ref)
            }

            fn end(&self) -> Bound<&[u8]> {
                std::ops::RangeBounds::<K>::end_bound(self).map(AsRef::as_ref)
            }
        }
    };
}

key_range!(Range<K>);
key_range!(RangeFrom<K>);
key_range!(RangeInclusive<K>);
key_range!(RangeTo<K>);
key_range!(RangeToInclusive<K>);
key_range!((Bound<K>, Bound<K>));

impl KeyRange for RangeFull {
    fn start(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn end(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }
}

/// The rows of `keyspace` whose keys are in a range. A range whose end is before its start is
/// empty.
pub(in crate::store) fn key_range_in(keyspace: &Keyspace, range: &impl KeyRange) -> RowRange {
    key_range(keyspace, range.start(), range.end())
}

fn key_range(keyspace: &Keyspace, start: Bound<&[u8]>, end: Bound<&[u8]>) -> RowRange {
    let id = keyspace.id();
    let bytes = |key: &[u8]| RowKey::new(id, key).as_bytes().to_vec();
    RowRange {
        start: match start {
            Bound::Included(key) => Bound::Included(bytes(key)),
            Bound::Excluded(key) => Bound::Excluded(bytes(key)),
            Bound::Unbounded => Bound::Included(bytes(b"")),
        },
        end: match end {
            Bound::Included(key) => Bound::Included(bytes(key)),
            Bound::Excluded(key) => Bound::Excluded(bytes(key)),
            Bound::Unbounded => keyspace_end_bound(id),
        },
    }
}

/// The rows of `keyspace` whose keys start with `prefix`.
pub(in crate::store) fn prefix_range(keyspace: &Keyspace, prefix: &[u8]) -> RowRange {
    let end = prefix_successor(prefix).map(|end| RowKey::new(keyspace.id(), &end).as_bytes().to_vec());
    RowRange {
        start: Bound::Included(RowKey::new(keyspace.id(), prefix).as_bytes().to_vec()),
        end: end.map_or_else(|| keyspace_end_bound(keyspace.id()), Bound::Excluded),
    }
}

fn keyspace_end_bound(id: KeyspaceId) -> Bound<Vec<u8>> {
    match id.0.checked_add(1) {
        Some(next) => Bound::Excluded(next.to_be_bytes().to_vec()),
        None => Bound::Unbounded,
    }
}
