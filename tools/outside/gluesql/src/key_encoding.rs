//! Keys of rows and of index entries, whose byte order is the order of the SQL engine.
//!
//! A name or value of any length ends with `00 00`, and a `00` in it becomes `00 ff`: the order
//! stays, and no key is a prefix of another.

use gluesql_core::data::{Key, Value};
use gluesql_core::error::Result;

/// The common prefix of a table's rows, and of the entries of its indexes.
pub fn table(name: &str) -> Vec<u8> {
    let mut key = Vec::new();
    push(&mut key, name.as_bytes());
    key
}

/// The key of a row.
pub fn row(table_name: &str, primary_key: &Key) -> Result<Vec<u8>> {
    let mut key = table(table_name);
    key.extend(primary_key.to_cmp_be_bytes()?);
    Ok(key)
}

/// The common prefix of an index.
pub fn index(table_name: &str, index_name: &str) -> Vec<u8> {
    let mut key = table(table_name);
    push(&mut key, index_name.as_bytes());
    key
}

/// The common prefix of the entries of a value.
pub fn index_value(table_name: &str, index_name: &str, value: &Value) -> Result<Vec<u8>> {
    let mut key = index(table_name, index_name);
    push(&mut key, &value.to_cmp_be_bytes()?);
    Ok(key)
}

fn push(key: &mut Vec<u8>, part: &[u8]) {
    for byte in part {
        key.push(*byte);
        if *byte == 0 {
            key.push(0xff);
        }
    }
    key.extend([0, 0]);
}

#[cfg(test)]
mod tests {
    use super::push;

    #[test]
    fn order_of_parts_is_the_order_of_bytes() {
        let parts: [&[u8]; 8] = [b"", b"\0", b"\0\0", b"\0\x01", b"\x01", b"a", b"a\0", b"a\xff"];
        let keys = parts.map(|part| {
            let mut key = Vec::new();
            push(&mut key, part);
            key
        });
        assert!(keys.is_sorted_by(|a, b| a < b && !b.starts_with(a)), "{keys:?}");
    }
}
