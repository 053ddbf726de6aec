//! Valid, truncated and random inputs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::naive_bytecount, reason = "inputs of a few bytes")]

use std::io::Cursor;
use std::sync::mpsc::sync_channel;

use proptest::prelude::*;

use super::*;

/// The rows, the lines of bad records, and the error that ended the reading.
fn read(format: Format, header: bool, input: impl Into<Vec<u8>>) -> (Vec<Pair>, Vec<u64>, Option<String>) {
    let options =
        ReadOptions { format: None, key_field: None, header, skip: 0, batch: 2, encodings: Encodings::default() };
    let stream = Box::new(BufReader::new(TextStream::new(Cursor::new(input.into()), String::new())));
    let reader = RecordReader { stream, format, options, length: None, bytes_read: Arc::default() };
    let (sender, batches) = sync_channel(10_000);
    reader.send(&sender);
    drop(sender);
    let (mut rows, mut bad, mut end) = (Vec::new(), Vec::new(), None);
    for batch in batches {
        assert!(end.is_none(), "a batch after the end");
        match batch {
            Batch::Rows(more) => rows.extend(more),
            Batch::BadRecord { line, .. } => bad.push(line),
            Batch::Failed(err) => end = Some(Some(err.to_string())),
            Batch::FewerThanSkip { records } => unreachable!("{records} records, none to skip"),
            Batch::End => end = Some(None),
        }
    }
    (rows, bad, end.unwrap())
}

fn written(rows: &[Pair], style: csv::QuoteStyle, delimiter: u8) -> Vec<u8> {
    let mut writer = csv::WriterBuilder::new().quote_style(style).delimiter(delimiter).from_writer(Vec::new());
    rows.iter().for_each(|(key, value)| writer.write_record([key, value]).unwrap());
    writer.into_inner().unwrap()
}

fn rows(text: &'static str) -> impl Strategy<Value = Vec<Pair>> {
    let value = text.prop_map(String::into_bytes);
    prop::collection::vec(("[a-z\",]{1,4}".prop_map(String::into_bytes), value), 0..8)
}

proptest! {
    #[test]
    fn csv_round_trips(rows in rows("[a,\"\r\n]{0,6}"), header: bool, ended: bool) {
        for style in [csv::QuoteStyle::Necessary, csv::QuoteStyle::Always] {
            let mut input = written(&rows, style, b',');
            if !ended {
                input.pop();
            }
            let rest = rows.get(usize::from(header)..).unwrap_or_default().to_vec();
            prop_assert_eq!(read(Format::Csv, header, input), (rest, vec![], None));
        }
    }

    #[test]
    fn tsv_round_trips(rows in rows("[a,\"]{0,6}")) {
        let input = written(&rows, csv::QuoteStyle::Never, b'\t');
        prop_assert_eq!(read(Format::Tsv, false, input), (rows, vec![], None));
    }

    #[test]
    fn csv_truncated_inside_quotes_is_refused_with_the_line(
        rows in rows("[a,\"\n]{0,6}"), cut in any::<prop::sample::Index>(), header: bool,
    ) {
        let mut input = written(&rows, csv::QuoteStyle::Always, b',');
        input.truncate(if input.is_empty() { 0 } else { cut.index(input.len()) });
        let quotes = input.iter().filter(|byte| **byte == b'"').count();
        let (read, _, failed) = read(Format::Csv, header, input.clone());
        prop_assert_eq!(failed.is_some(), quotes % 2 == 1);
        if let Some(err) = failed {
            // The quote that is never closed is the last one that is outside of quotes and does not
            // directly follow another quote. Two quotes in a row inside quotes stand for one quote.
            let opened = input.iter().rposition(|byte| *byte == b'"').map(|last| {
                let within = |at: usize| input[..at].iter().filter(|byte| **byte == b'"').count() % 2 == 1;
                (0..=last).rev().find(|at| input[*at] == b'"' && !within(*at) && (*at == 0 || input[at - 1] != b'"')).unwrap()
            });
            let line = 1 + input[..opened.unwrap()].iter().filter(|byte| **byte == b'\n').count();
            prop_assert_eq!(err, format!("the quote that opens in line {line} is never closed"));
            prop_assert!(rows.get(usize::from(header)..).unwrap_or_default().starts_with(&read));
        }
    }

    #[test]
    fn json_lines_round_trip(rows in prop::collection::vec(("\\PC{1,6}", any::<String>()), 0..8)) {
        let lines: Vec<String> =
            rows.iter().map(|(key, value)| serde_json::json!({ "key": key, "value": value }).to_string()).collect();
        let rows: Vec<Pair> = rows.into_iter().map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect();
        prop_assert_eq!(read(Format::Jsonl, false, lines.join("\n")), (rows, vec![], None));
    }

    #[test]
    fn random_input_neither_panics_nor_loops(
        bytes: Vec<u8>, text in "[\"{}:,a\\\\\t\n\r]{0,40}", header: bool,
    ) {
        for input in [bytes, text.into_bytes()] {
            for format in [Format::Jsonl, Format::Csv, Format::Tsv, format_by_content(&input)] {
                let lines = input.iter().filter(|byte| **byte == b'\n' || **byte == b'\r').count() + 1;
                let (rows, bad, _) = read(format, header, input.clone());
                prop_assert!(rows.len() + bad.len() <= lines);
            }
        }
    }
}

#[test]
fn an_unclosed_quote_is_refused_wherever_it_opens() {
    for (input, header, line) in [
        ("a,\"1", false, 1),
        ("\"", false, 1),
        ("a,1\n\nb,\"2\n\nc,3\n", false, 3),
        ("\"a\nb\",\"1\n", false, 2),
        ("a,\"\"\"1\n", false, 1),
        ("\"key,value\na,1\n", true, 1),
        ("key,value\na,\"1\n", true, 2),
    ] {
        let (_, _, failed) = read(Format::Csv, header, input);
        assert_eq!(failed.unwrap(), format!("the quote that opens in line {line} is never closed"), "{input:?}");
    }
    for closed in ["a,\"1\"", "a,\"1\n\"", "a,\"1\"\"\"", "a,1\"", "a,\"1\"2\"", ""] {
        assert_eq!(read(Format::Csv, false, closed).2, None, "{closed:?}");
    }
    assert_eq!(read(Format::Tsv, false, "a\t\"1").0, [(b"a".to_vec(), b"\"1".to_vec())]);
}
