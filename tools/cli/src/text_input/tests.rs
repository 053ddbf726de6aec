//! Line ends, marks, encodings and NUL bytes, in chunks of every size.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::BufReader;

use proptest::prelude::*;

use super::*;

/// A stream that returns at most this many bytes at once, as a pipe may.
struct Chunks<'a>(&'a [u8], usize);

impl Read for Chunks<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(self.1);
        self.0.read(&mut buffer[..length])
    }
}

/// The lines of the input, or the error.
fn lines(input: &[u8], chunk: usize) -> Result<Vec<String>, String> {
    let stream = BufReader::with_capacity(chunk, TextStream::new(Chunks(input, chunk), " my.txt".into()));
    let (mut lines, mut read) = (Lines::new(stream), Vec::new());
    loop {
        match lines.next().map_err(|err| format!("{err:#}"))? {
            None => return Ok(read),
            Some(line) => read.push(line.map_or_else(|reason| format!("line {reason}"), Into::into)),
        }
    }
}

proptest! {
    #[test]
    fn lines_are_the_same_with_every_line_end(
        texts in prop::collection::vec("[a-zé ]{1,3}", 1..6), ends in prop::collection::vec(0_usize..3, 5),
        is_last_ended: bool, is_marked: bool, chunk in 1_usize..9,
    ) {
        let mut input = if is_marked { "\u{feff}".to_owned() } else { String::new() };
        for (n, text) in texts.iter().enumerate() {
            let end = ["\n", "\r\n", "\r"][ends[n]];
            input.push_str(text);
            input.push_str(if n + 1 < texts.len() || is_last_ended { end } else { "" });
        }
        prop_assert_eq!(lines(input.as_bytes(), chunk).unwrap(), texts);
    }

    #[test]
    fn utf_16_and_nul_bytes_are_refused_whatever_the_chunks(
        text in "[a-z]{2,9}", is_big_endian: bool, is_marked: bool, chunk in 1_usize..9,
    ) {
        let marked = if is_marked { format!("\u{feff}{text}") } else { text };
        let bytes = |unit: u16| if is_big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() };
        let input: Vec<u8> = marked.encode_utf16().flat_map(bytes).collect();
        let err = lines(&input, if is_marked { chunk } else { 1 << 10 }).unwrap_err();
        let name = match (is_marked, is_big_endian) {
            (true, _) => "UTF-16",
            (_, true) => "UTF-16BE",
            (_, false) => "UTF-16LE",
        };
        prop_assert!(err.ends_with(&format!("to convert it: iconv -f {name} -t UTF-8 my.txt")), "{}", err);
        prop_assert!(lines(&input, chunk).is_err());
    }

    #[test]
    fn a_nul_byte_is_an_error_at_its_offset(before in "[a-z\n]{0,20}", after in "[a-z\n]{0,20}", chunk in 1_usize..9) {
        let input = format!("{before}\0{after}");
        let wanted = format!("it is no text: it has a NUL byte at offset {}", before.len());
        prop_assert!(lines(input.as_bytes(), chunk).unwrap_err().ends_with(&wanted));
    }

    #[test]
    fn reading_any_bytes_neither_panics_nor_loops(input: Vec<u8>, chunk in 1_usize..9) {
        let _ = lines(&input, chunk);
    }
}

#[test]
fn a_line_that_is_not_utf_8_is_refused_alone() {
    let read = lines(b"caf\xe9\nok\n", 3).unwrap();
    assert_eq!(read, ["line is not UTF-8: byte 4 is e9; if it is Latin-1: iconv -f LATIN1 -t UTF-8", "ok"]);
}

#[test]
fn utf_32_is_named() {
    for mark in [&b"\xff\xfe\0\0a\0\0\0"[..], b"\0\0\xfe\xff\0\0\0a"] {
        assert!(lines(mark, 8).unwrap_err().contains("it is UTF-32, not UTF-8"));
    }
}
