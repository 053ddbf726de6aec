//! Encodes values as key bytes.

use serde::ser::{self, Impossible, Serialize};

use super::key_format::{ABSENT, END, ESCAPE, ESCAPED_ZERO, KeyError, PRESENT};

/// Appends a key's bytes to a buffer.
pub struct Encoder<'a>(pub &'a mut Vec<u8>);

impl Encoder<'_> {
    fn variant(&mut self, index: u32) {
        self.0.extend_from_slice(&index.to_be_bytes());
    }
}

macro_rules! unsigned {
    ($($name:ident $type:ty),*) => {$(
        fn $name(self, value: $type) -> Result<(), KeyError> {
            self.0.extend_from_slice(&value.to_be_bytes());
            Ok(())
        }
    )*};
}

/// The sign bit is flipped, because otherwise negative numbers would sort after the others.
macro_rules! signed {
    ($($name:ident $type:ty),*) => {$(
        fn $name(self, value: $type) -> Result<(), KeyError> {
            self.0.extend_from_slice(&(value ^ <$type>::MIN).to_be_bytes());
            Ok(())
        }
    )*};
}

/// Floats sort as by `total_cmp`. The lower a negative float, the greater is the number that its
/// bits make, so all its bits are inverted. Of other floats only the sign bit is flipped.
macro_rules! float {
    ($($name:ident $type:ty, $bits:ty),*) => {$(
        fn $name(self, value: $type) -> Result<(), KeyError> {
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            let bits = value.to_bits();
            let ordered = if bits & SIGN == 0 { bits ^ SIGN } else { !bits };
            self.0.extend_from_slice(&ordered.to_be_bytes());
            Ok(())
        }
    )*};
}

impl<'a> ser::Serializer for &'a mut Encoder<'_> {
    type Ok = ();
    type Error = KeyError;
    type SerializeSeq = Elements<'a>;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Impossible<(), KeyError>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    unsigned!(serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_u128 u128);
    signed!(serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_i128 i128);
    float!(serialize_f32 f32, u32, serialize_f64 f64, u64);

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), KeyError> {
        self.serialize_u8(value.into())
    }

    fn serialize_char(self, value: char) -> Result<(), KeyError> {
        self.serialize_u32(value.into())
    }

    fn serialize_str(self, value: &str) -> Result<(), KeyError> {
        self.serialize_bytes(value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), KeyError> {
        for byte in value {
            self.0.push(*byte);
            if *byte == ESCAPE {
                self.0.push(ESCAPED_ZERO);
            }
        }
        self.0.extend_from_slice(&[ESCAPE, END]);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), KeyError> {
        self.serialize_u8(ABSENT)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), KeyError> {
        self.0.push(PRESENT);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), KeyError> {
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), KeyError> {
        Ok(())
    }

    fn serialize_unit_variant(self, _name: &'static str, index: u32, _variant: &'static str) -> Result<(), KeyError> {
        self.variant(index);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Result<(), KeyError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        value: &T,
    ) -> Result<(), KeyError> {
        self.variant(index);
        value.serialize(self)
    }

    fn serialize_seq(self, _len: Option<usize>) -> Result<Elements<'a>, KeyError> {
        Ok(Elements(self.0))
    }

    fn serialize_tuple(self, _len: usize) -> Result<Self, KeyError> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Self, KeyError> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self, KeyError> {
        self.variant(index);
        Ok(self)
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<Self::SerializeMap, KeyError> {
        Err(KeyError("maps are not supported in keys".into()))
    }

    fn serialize_struct(self, _name: &'static str, _len: usize) -> Result<Self, KeyError> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self, KeyError> {
        self.variant(index);
        Ok(self)
    }
}

/// A sequence. A tag before each element and another at the end make a sequence sort before every
/// longer sequence that begins with the same elements.
pub struct Elements<'a>(&'a mut Vec<u8>);

impl ser::SerializeSeq for Elements<'_> {
    type Ok = ();
    type Error = KeyError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        self.0.push(PRESENT);
        value.serialize(&mut Encoder(self.0))
    }

    fn end(self) -> Result<(), KeyError> {
        self.0.push(ABSENT);
        Ok(())
    }
}

/// Parts follow each other without separators, because each encoding is self-delimiting.
macro_rules! parts {
    ($($trait:ident $method:ident),*) => {$(
        impl ser::$trait for &mut Encoder<'_> {
            type Ok = ();
            type Error = KeyError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), KeyError> {
                Ok(())
            }
        }
    )*};
}

parts!(SerializeTuple serialize_element, SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field);

macro_rules! fields {
    ($($trait:ident),*) => {$(
        impl ser::$trait for &mut Encoder<'_> {
            type Ok = ();
            type Error = KeyError;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, _name: &'static str, value: &T) -> Result<(), KeyError> {
                value.serialize(&mut **self)
            }

            fn skip_field(&mut self, name: &'static str) -> Result<(), KeyError> {
                Err(KeyError(format!("skipped field {name} is not supported in keys")))
            }

            fn end(self) -> Result<(), KeyError> {
                Ok(())
            }
        }
    )*};
}

fields!(SerializeStruct, SerializeStructVariant);
