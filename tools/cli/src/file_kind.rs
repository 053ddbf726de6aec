//! Files of other kinds than the one that was asked for, by their first bytes: what they are, and
//! the command that reads them.

use crate::advice::store_argument;

/// A file that another program has packed.
pub struct Packed {
    magic: &'static [u8],
    /// What the file is.
    pub what: &'static str,
    /// The command that writes its content to standard output, without the name of the file.
    unpack: &'static str,
}

const PACKED: [Packed; 7] = [
    Packed { magic: b"\x1f\x8b\x08", what: "compressed by gzip", unpack: "gzip -dc" },
    Packed { magic: b"\x28\xb5\x2f\xfd", what: "compressed by zstd", unpack: "zstd -dc" },
    Packed { magic: b"\x04\x22\x4d\x18", what: "compressed by lz4", unpack: "lz4 -dc" },
    Packed { magic: b"\xfd7zXZ\0", what: "compressed by xz", unpack: "xz -dc" },
    Packed { magic: BZIP2, what: "compressed by bzip2", unpack: "bzip2 -dc" },
    Packed { magic: b"7z\xbc\xaf\x27\x1c", what: "an archive of 7-Zip", unpack: "7z e -so" },
    // Spreadsheets are such archives.
    Packed { magic: b"PK\x03\x04", what: "a zip archive, as a spreadsheet is", unpack: "unzip -p" },
];
/// A digit follows, and then the second part: without that it is text.
const BZIP2: &[u8] = b"BZh";
const BZIP2_BLOCK: &[u8] = b"1AY&SY";
const DUMP: &[u8] = b"percolite dump, format ";

/// The program that has packed a file that begins with these bytes, if one has.
pub fn packed(beginning: &[u8]) -> Option<&'static Packed> {
    PACKED.iter().find(|kind| {
        let rest = beginning.strip_prefix(kind.magic);
        rest.is_some_and(|rest| kind.magic != BZIP2 || rest.get(1..).is_some_and(|rest| rest.starts_with(BZIP2_BLOCK)))
    })
}

impl Packed {
    /// The command that writes the file's content to standard output. `file_argument` is that of
    /// [`crate::text_input::file_argument`].
    pub fn unpack(&self, file_argument: &str) -> String {
        // Not each program reads standard input.
        let is_named = !file_argument.is_empty();
        format!("{}{}", self.unpack, if is_named { file_argument } else { " FILE" })
    }
}

/// Why a file that begins with these bytes is no text, if it is one of the known kinds.
pub fn not_text(beginning: &[u8], file_argument: &str) -> Option<String> {
    if let Some(kind) = packed(beginning) {
        return Some(format!("it is {}; to unpack it: {}", kind.what, kind.unpack(file_argument)));
    }
    beginning.starts_with(DUMP).then(|| {
        let file = if file_argument.is_empty() { " -" } else { file_argument };
        format!("it is a percolite dump; to restore it: percolite restore {}{file}", store_argument())
    })
}

/// Why a file that begins with these bytes is no dump, if it is packed or text.
pub fn not_a_dump(beginning: &[u8], file_argument: &str) -> Option<String> {
    if let Some(kind) = packed(beginning) {
        let (unpack, store) = (kind.unpack(file_argument), store_argument());
        return Some(format!("it is {}; to restore it: {unpack} | percolite restore {store} -", kind.what));
    }
    let is_other = !beginning.is_empty() && !beginning.starts_with(DUMP) && !DUMP.starts_with(beginning);
    // The last character may be cut.
    let is_utf_8 = std::str::from_utf8(beginning).map_or_else(|err| err.error_len().is_none(), |_| true);
    let is_text = is_other && is_utf_8 && !beginning.contains(&0);
    let file = if file_argument.is_empty() { " -" } else { file_argument };
    is_text.then(|| {
        format!("it is text; percolite load --create {} KEYSPACE{file} loads rows from text", store_argument())
    })
}

/// Whether more bytes can make this beginning one of a known kind.
pub fn is_part_of_magic(beginning: &[u8]) -> bool {
    let magics = PACKED.iter().map(|kind| kind.magic).chain([DUMP]);
    let is_cut = |magic: &[u8]| magic.len() > beginning.len() && magic.starts_with(beginning);
    magics.into_iter().any(is_cut)
        || beginning.starts_with(BZIP2) && beginning.len() < BZIP2.len() + 1 + BZIP2_BLOCK.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_begins_like_a_packed_file_is_text() {
        for text in ["BZhang,1\n", "BZh9", "PK,1\n", "7z,1\n", "percolite,1\n", "percolite dump, formatted\n"] {
            assert_eq!(not_text(text.as_bytes(), ""), None, "{text}");
            assert!(not_a_dump(text.as_bytes(), "").is_some_and(|what| what.starts_with("it is text")), "{text}");
        }
        assert!(not_text(b"BZh91AY&SY\x01", " f").is_some_and(|what| what.ends_with("bzip2 -dc f")));
        for part in ["", "p", "percolite dump, format "] {
            assert_eq!(not_a_dump(part.as_bytes(), ""), None, "{part:?}");
        }
        assert_eq!(not_a_dump(b"\x80\x80", ""), None);
    }

    #[test]
    fn every_part_of_a_magic_is_waited_for() {
        for whole in PACKED.iter().map(|kind| kind.magic).chain([DUMP, b"BZh91AY&SY"]) {
            (0..whole.len())
                .for_each(|end| assert!(is_part_of_magic(whole.get(..end).unwrap_or_default()), "{whole:?}"));
        }
        assert!(!is_part_of_magic(b"a"));
    }
}
