//! The order-preserving encoding of typed keys (FoundationDB's tuple layer): bytes sort as values
//! do.
//!
//! Every encoding is self-delimiting: the encoding of a value is never a proper prefix of that of
//! another value of its type. The parts of a tuple are concatenated, so the encoding of its first
//! parts is a prefix of the whole, which prefix scans use.
//!
//! | type | bytes | order |
//! |---|---|---|
//! | `bool` | `00`, `01` | false first |
//! | unsigned, `char` | big-endian; `usize` as eight bytes | by value |
//! | signed | big-endian, sign bit flipped; `isize` as eight bytes | by value |
//! | `f32`, `f64` | big-endian; sign bit flipped, or all bits if it was set | `total_cmp` |
//! | strings, byte strings | their bytes, `00` as `00 ff`; `00 01` at the end | by bytes |
//! | `Option` | `00`, or `01` and the value | `None` first |
//! | sequences | `01` before each element; `00` at the end | by elements, the shorter first |
//! | tuples, structs | their parts | by parts |
//! | enums | index of the variant (4 bytes, big-endian), its parts | by variant, then by parts |
//! | `()` | nothing | |
//!
//! Maps are refused. These bytes are on disk: the encoding must never change.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::decode::Decoder;
use super::encode::Encoder;
pub use super::key_format::KeyError;

/// Encodes a value.
pub fn encode_key<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, KeyError> {
    let mut bytes = Vec::new();
    value.serialize(&mut Encoder(&mut bytes))?;
    Ok(bytes)
}

/// The inverse of [`encode_key`]; all bytes must belong to the value.
pub fn decode_key<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, KeyError> {
    let mut decoder = Decoder(bytes);
    let value = T::deserialize(&mut decoder)?;
    match decoder.0.len() {
        0 => Ok(value),
        left => Err(KeyError(format!("{left} bytes are left over"))),
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;
    use std::collections::BTreeMap;
    use std::fmt::Debug;

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    enum Shape {
        Nothing,
        Point(i16),
        Line(String, Option<u8>),
        Area { left: Vec<i8>, right: bool },
    }

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    struct Wrapped(Shape);

    fn hex<T: Serialize>(value: T) -> String {
        encode_key(&value).unwrap().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
    }

    /// Never edit a line: stored keys have these bytes.
    #[test]
    fn golden_bytes_of_keys() {
        let golden = [
            (hex(()), ""),
            (hex((false, true)), "0001"),
            (hex((1_u8, 2_u16, 3_u32, 4_u64)), "010002000000030000000000000004"),
            (hex(5_u128), "00000000000000000000000000000005"),
            (hex((0_usize, 0_isize)), "00000000000000008000000000000000"),
            (hex((-1_i8, -2_i16, -3_i32)), "7f7ffe7ffffffd"),
            (hex((i64::MIN, 0_i64, i64::MAX)), "00000000000000008000000000000000ffffffffffffffff"),
            (hex(-1_i128), "7fffffffffffffffffffffffffffffff"),
            (hex((1.5_f32, -1.5_f32)), "bfc00000403fffff"),
            (hex((0.0_f64, -0.0_f64)), "80000000000000007fffffffffffffff"),
            (hex('ä'), "000000e4"),
            (hex(("", "a\0b", "\u{ff}")), "00016100ff620001c3bf0001"),
            (hex(crate::row::Value::from(vec![0, 1, 255])), "00ff01ff0001"),
            (hex((None::<u8>, Some(7_u8))), "000107"),
            (hex((Vec::<u8>::new(), vec![1_u8, 0])), "000101010000"),
            (hex(Some(Some(()))), "0101"),
            (hex(Shape::Nothing), "00000000"),
            (hex(Shape::Point(1)), "000000018001"),
            (hex(Shape::Line("x".into(), Some(1))), "000000027800010101"),
            (hex(Wrapped(Shape::Area { left: vec![-1], right: true })), "00000003017f0001"),
        ];
        for (index, (bytes, expected)) in golden.iter().enumerate() {
            assert_eq!(bytes, expected, "key {index}");
        }
    }

    #[test]
    fn maps_and_skipped_fields_are_refused() {
        #[derive(Serialize)]
        struct Skips {
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<u8>,
        }
        assert!(encode_key(&BTreeMap::from([(1, 2)])).is_err());
        assert!(encode_key(&Skips { field: None }).is_err());
        assert!(encode_key(&Skips { field: Some(1) }).is_ok());
    }

    #[test]
    fn malformed_keys_are_refused() {
        assert!(decode_key::<u32>(&[0, 0, 0]).is_err());
        assert!(decode_key::<u32>(&[0; 5]).is_err());
        assert!(decode_key::<bool>(&[2]).is_err());
        assert!(decode_key::<Option<()>>(&[2]).is_err());
        assert!(decode_key::<char>(&0xd800_u32.to_be_bytes()).is_err());
        assert!(decode_key::<String>(b"a").is_err());
        assert!(decode_key::<String>(b"a\0").is_err());
        assert!(decode_key::<String>(b"a\0\x02").is_err());
        assert!(decode_key::<String>(b"\xff\0\x01").is_err());
        assert!(decode_key::<Vec<u8>>(&[1, 7]).is_err());
        assert!(decode_key::<Shape>(&9_u32.to_be_bytes()).is_err());
    }

    fn check<T: Serialize + DeserializeOwned + Debug>(
        a: &T,
        b: &T,
        order: impl Fn(&T, &T) -> Ordering,
    ) -> Result<(), TestCaseError> {
        let (x, y) = (encode_key(a).unwrap(), encode_key(b).unwrap());
        prop_assert_eq!(x.cmp(&y), order(a, b), "{:?} {:?}", a, b);
        prop_assert!(neither_is_a_prefix(&x, &y), "{:?} {:?}", a, b);
        let back: T = decode_key(&x).unwrap();
        prop_assert_eq!(order(&back, a), Ordering::Equal, "{:?} {:?}", a, back);
        Ok(())
    }

    /// If this holds, the parts that follow in a tuple cannot change the order of `a` and `b`.
    fn neither_is_a_prefix(a: &[u8], b: &[u8]) -> bool {
        a == b || !(a.starts_with(b) || b.starts_with(a))
    }

    fn any_shape() -> impl Strategy<Value = Shape> {
        let area = |(left, right)| Shape::Area { left, right };
        prop_oneof![
            Just(Shape::Nothing),
            any::<i16>().prop_map(Shape::Point),
            (text(), any::<Option<u8>>()).prop_map(|(name, id)| Shape::Line(name, id)),
            (prop::collection::vec(-1..2_i8, 0..3), any::<bool>()).prop_map(area),
        ]
    }

    /// Strings that are often prefixes of each other.
    fn text() -> impl Strategy<Value = String> {
        "[\\x00\\x01a\u{7f}\u{ff}\u{10ffff}]{0,3}"
    }

    /// Arbitrary bits, and the neighbours of special values.
    fn any_f64() -> impl Strategy<Value = f64> {
        let special = [0.0, f64::MIN_POSITIVE, 1.0, f64::MAX, f64::INFINITY, f64::NAN];
        prop_oneof![
            any::<u64>().prop_map(f64::from_bits),
            (prop::sample::select(special.to_vec()), any::<bool>(), -1..2_i64).prop_map(|(float, negative, next)| {
                f64::from_bits((float.to_bits() | u64::from(negative) << 63).wrapping_add_signed(next))
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn numbers_keep_their_order(
            a: (u8, u16, u32, u64, u128), b: (u8, u16, u32, u64, u128), c: (i8, i16, i32, i64, i128), d: (i8, i16, i32, i64, i128),
        ) {
            check(&a, &b, Ord::cmp)?;
            check(&c, &d, Ord::cmp)?;
            check(&a.3, &b.3, Ord::cmp)?;
            check(&c.1, &d.1, Ord::cmp)?;
            check(&c.3, &d.3, Ord::cmp)?;
            check(&c.4, &d.4, Ord::cmp)?;
        }

        #[test]
        fn small_numbers_of_either_sign_keep_their_order(a in -3..4_i64, b in -3..4_i64, c in -3..4_i8, d in -3..4_i8) {
            check(&(a, c), &(b, d), Ord::cmp)?;
            check(&(i128::from(a), i32::from(c)), &(i128::from(b), i32::from(d)), Ord::cmp)?;
        }

        #[test]
        fn floats_keep_their_total_order(a in any_f64(), b in any_f64(), c: u32, d: u32) {
            check(&a, &b, f64::total_cmp)?;
            check(&f32::from_bits(c), &f32::from_bits(d), f32::total_cmp)?;
            #[allow(clippy::cast_possible_truncation, reason = "the nearest `f32` is intended")]
            check(&(a as f32), &(b as f32), f32::total_cmp)?;
        }

        #[test]
        fn strings_options_and_sequences_keep_their_order(
            a in (text(), any::<Option<bool>>(), text()), b in (text(), any::<Option<bool>>(), text()),
            c in prop::collection::vec(prop::option::of(text()), 0..3), d in prop::collection::vec(prop::option::of(text()), 0..3),
            e: char, f: char, g: bool, h: bool,
        ) {
            check(&a, &b, Ord::cmp)?;
            check(&c, &d, Ord::cmp)?;
            check(&(c, a), &(d, b), Ord::cmp)?;
            check(&(e, g), &(f, h), Ord::cmp)?;
        }

        #[test]
        fn enums_and_structs_keep_their_order(a in any_shape(), b in any_shape(), c in any_shape(), d in any_shape()) {
            check(&a, &b, Ord::cmp)?;
            check(&(Wrapped(a), c), &(Wrapped(b), d), Ord::cmp)?;
        }

        #[test]
        fn the_first_parts_of_a_tuple_are_a_prefix_of_it(a in text(), b: i32, c in any_shape(), d in text(), e: i32) {
            let (whole, other) = (encode_key(&(&a, b, c)).unwrap(), encode_key(&(&d, e)).unwrap());
            prop_assert!(whole.starts_with(&encode_key(&(&a,)).unwrap()));
            prop_assert!(whole.starts_with(&encode_key(&(&a, b)).unwrap()));
            prop_assert_eq!(whole.starts_with(&encode_key(&(&d,)).unwrap()), a == d);
            prop_assert_eq!(whole.starts_with(&other), a == d && b == e);
        }

        #[test]
        fn decoding_never_panics_and_inverts_encoding(bytes in prop::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..20)) {
            fn try_one<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
                if let Ok(value) = decode_key::<T>(bytes) {
                    assert_eq!(encode_key(&value).unwrap(), bytes);
                }
            }
            try_one::<(String, Option<i8>)>(&bytes);
            try_one::<Vec<Option<char>>>(&bytes);
            try_one::<(bool, Wrapped)>(&bytes);
            try_one::<Vec<()>>(&bytes);
            try_one::<(f32, crate::row::Value)>(&bytes);
        }
    }
}
