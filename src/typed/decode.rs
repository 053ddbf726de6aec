//! Decodes key bytes into values.

use serde::de::value::U32Deserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use super::key_format::{ABSENT, END, ESCAPE, ESCAPED_ZERO, KeyError, PRESENT};

/// Reads values from the start of the remaining key bytes.
pub struct Decoder<'de>(pub &'de [u8]);

impl Decoder<'_> {
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], KeyError> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or_else(|| KeyError("key is truncated".into()))?;
        self.0 = rest;
        Ok(*chunk)
    }

    fn byte(&mut self) -> Result<u8, KeyError> {
        self.chunk().map(|[byte]| byte)
    }

    /// Reads a tag byte: whether a value follows.
    fn is_present(&mut self) -> Result<bool, KeyError> {
        match self.byte()? {
            ABSENT => Ok(false),
            PRESENT => Ok(true),
            other => Err(KeyError(format!("invalid tag byte {other:#04x}, expected 00 or 01"))),
        }
    }

    fn bytes(&mut self) -> Result<Vec<u8>, KeyError> {
        let mut bytes = Vec::new();
        loop {
            match self.byte()? {
                ESCAPE => match self.byte()? {
                    ESCAPED_ZERO => bytes.push(ESCAPE),
                    END => return Ok(bytes),
                    other => return Err(KeyError(format!("invalid byte {other:#04x} after a zero byte"))),
                },
                byte => bytes.push(byte),
            }
        }
    }
}

macro_rules! number {
    ($($name:ident $visit:ident $type:ty),*) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
            // In `MIN` of a signed type only the sign bit is set, so the XOR undoes the encoder's
            // flip of that bit. `MIN` of an unsigned type is zero, so the XOR changes nothing.
            visitor.$visit(<$type>::from_be_bytes(self.chunk()?) ^ <$type>::MIN)
        }
    )*};
}

macro_rules! float {
    ($($name:ident $visit:ident $type:ty, $bits:ty),*) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            let ordered = <$bits>::from_be_bytes(self.chunk()?);
            let bits = if ordered & SIGN == 0 { !ordered } else { ordered ^ SIGN };
            visitor.$visit(<$type>::from_bits(bits))
        }
    )*};
}

macro_rules! unknown {
    ($($name:ident)*) => {$(
        fn $name<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, KeyError> {
            Err(KeyError("self-describing types and maps are not supported in keys".into()))
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = KeyError;

    number!(deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32);
    number!(deserialize_u64 visit_u64 u64, deserialize_u128 visit_u128 u128);
    number!(deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32);
    number!(deserialize_i64 visit_i64 i64, deserialize_i128 visit_i128 i128);
    float!(deserialize_f32 visit_f32 f32, u32, deserialize_f64 visit_f64 f64, u64);
    unknown!(deserialize_any deserialize_ignored_any deserialize_identifier deserialize_map);

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        let value = self.is_present()?;
        visitor.visit_bool(value)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        let number = u32::from_be_bytes(self.chunk()?);
        visitor.visit_char(char::from_u32(number).ok_or_else(|| KeyError(format!("{number} is not a character")))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        self.deserialize_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_string(String::from_utf8(self.bytes()?).map_err(|error| KeyError(error.to_string()))?)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        self.deserialize_byte_buf(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_byte_buf(self.bytes()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        if self.is_present()? { visitor.visit_some(self) } else { visitor.visit_none() }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _name: &str, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &str, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        let mut elements = Elements { decoder: self, ended: false };
        let value = visitor.visit_seq(&mut elements)?;
        // A visitor may stop before the end of the sequence. Without this check the rest of the
        // sequence would be decoded as the next part of the key.
        if !elements.ended && elements.decoder.is_present()? {
            return Err(KeyError("sequence has more elements than its type".into()));
        }
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_seq(Parts { decoder: self, left: len })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &str,
        fields: &[&str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &str,
        _variants: &[&str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        visitor.visit_enum(self)
    }
}

struct Elements<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    ended: bool,
}

impl<'de> de::SeqAccess<'de> for &mut Elements<'_, 'de> {
    type Error = KeyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, KeyError> {
        if self.ended || !self.decoder.is_present()? {
            self.ended = true;
            return Ok(None);
        }
        seed.deserialize(&mut *self.decoder).map(Some)
    }
}

struct Parts<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
}

impl<'de> de::SeqAccess<'de> for Parts<'_, 'de> {
    type Error = KeyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, KeyError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> de::EnumAccess<'de> for &mut Decoder<'de> {
    type Error = KeyError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), KeyError> {
        let index: U32Deserializer<KeyError> = u32::from_be_bytes(self.chunk()?).into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for &mut Decoder<'de> {
    type Error = KeyError;

    fn unit_variant(self) -> Result<(), KeyError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, KeyError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, KeyError> {
        de::Deserializer::deserialize_tuple(self, len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &[&str], visitor: V) -> Result<V::Value, KeyError> {
        de::Deserializer::deserialize_tuple(self, fields.len(), visitor)
    }
}
