//! Prefixes of typed keys, and ranges within a prefix.

use std::borrow::Borrow;
use std::ops::Bound;

use serde::Serialize;

use crate::keys::prefix_successor;

pub(super) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The first parts of a tuple key, each borrowed: `("york",)` for `(String, i64)`, `(&3,)` for
/// `(u32, String)`. For other kinds of keys, implement this trait for a type that serializes as the
/// key's first fields do.
pub trait KeyPrefix<K>: Serialize {
    /// The part of the key that follows the prefix:
    /// [`TypedKeyspace::prefix_range`](crate::TypedKeyspace::prefix_range).
    type Next: Serialize;
}

macro_rules! key_prefix {
    ($($part:ident $borrowed:ident),+; $next:ident $(, $rest:ident)*) => {
        impl<$($part: Borrow<$borrowed>, $borrowed: Serialize + ?Sized,)+ $next: Serialize $(, $rest)*>
            KeyPrefix<($($part,)+ $next, $($rest,)*)> for ($(&$borrowed,)+)
        {
            type Next = $next;
        }
    };
}

key_prefix!(A P; B);
key_prefix!(A P; B, C);
key_prefix!(A P; B, C, D);
key_prefix!(A P; B, C, D, E);
key_prefix!(A P, B Q; C);
key_prefix!(A P, B Q; C, D);
key_prefix!(A P, B Q; C, D, E);
key_prefix!(A P, B Q, C R; D);
key_prefix!(A P, B Q, C R; D, E);
key_prefix!(A P, B Q, C R, D S; E);

/// The encoded keys that start with `prefix` and then with a part in a range. `start` and `end` are
/// the encoded prefix with that part. A bound on a part is a bound on all keys that start with it.
pub(super) fn range_in(prefix: &[u8], start: Bound<Vec<u8>>, end: Bound<Vec<u8>>) -> Bounds {
    let start = match start {
        Bound::Included(part) => Bound::Included(part),
        // No key follows one that consists of 0xff alone, and none that starts with it is meant.
        Bound::Excluded(part) => match prefix_successor(&part) {
            Some(after) => Bound::Included(after),
            None => return (Bound::Excluded(part.clone()), Bound::Excluded(part)),
        },
        Bound::Unbounded => Bound::Included(prefix.to_vec()),
    };
    let behind = |part: &[u8]| prefix_successor(part).map_or(Bound::Unbounded, Bound::Excluded);
    let end = match end {
        Bound::Included(part) => behind(&part),
        Bound::Excluded(part) => Bound::Excluded(part),
        Bound::Unbounded => behind(prefix),
    };
    (start, end)
}
