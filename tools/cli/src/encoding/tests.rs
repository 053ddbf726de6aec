//! Any bytes round-trip through every encoding, in every place that they are written to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;

use super::*;

const ENCODINGS: [Encoding; 4] = [Encoding::Text, Encoding::Hex, Encoding::Base64, Encoding::Json];

/// Arbitrary bytes and text, JSON, and text that looks like the escapes and fields of the
/// encodings.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let json = r#"[ \t\n\r]{0,2}(\{"(hex|base64|value|text)"[ \n]?:[ \n\t]?"?[0-9a-f]{0,4}"?\}|\[1.0,[ \n]2e400\]|"[a\\nt"\u{7f}]{0,5}"|null|-?[0-9.]{1,4})[ \n]?"#;
    prop_oneof![
        json.prop_map(String::into_bytes),
        any::<Vec<u8>>(),
        any::<String>().prop_map(String::into_bytes),
        "[\\\\xtnr0-9a\t\n\r\u{feff}\u{85}]{0,8}".prop_map(String::into_bytes),
    ]
}

fn raw(json: &[u8]) -> &RawValue {
    serde_json::from_slice(json).unwrap()
}

/// Writes the line of `scan --json`, and reads it as `load` does.
fn json_round_trip(encoding: Encoding, value: &[u8]) -> Vec<u8> {
    let mut line = b"{\"key\":\"k\"".to_vec();
    write_value_fields(encoding, Some(value), &mut line);
    line.push(b'}');
    assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
    let fields: JsonRow<'_> = serde_json::from_slice(&line).unwrap();
    fields.value(encoding).unwrap().unwrap()
}

proptest! {
    #[test]
    fn values_round_trip_through_json_lines(value in bytes()) {
        for encoding in ENCODINGS {
            prop_assert_eq!(&json_round_trip(encoding, &value), &value, "{:?}", encoding);
        }
    }

    #[test]
    fn columns_round_trip_json_modulo_whitespace(value in bytes()) {
        for encoding in ENCODINGS {
            let mut column = Vec::new();
            encoding.write_column(&value, &mut column);
            prop_assert!(!column.iter().any(|byte| matches!(byte, b'\t' | b'\n' | b'\r')));
            let read = encoding.read_column(&column).unwrap();
            let json = as_json(&value).filter(|_| encoding == Encoding::Json);
            let wanted = json.map_or_else(|| value.clone(), |json| compact_json(json).into_owned().into_bytes());
            prop_assert_eq!(read, wanted, "{:?}", encoding);
        }
    }

    #[test]
    fn decoding_an_argument_never_panics(bytes: Vec<u8>, text: String) {
        for encoding in ENCODINGS {
            for argument in [OsStr::from_bytes(&bytes), OsStr::new(&text)] {
                // In hex and base64 the decoded bytes are displayed like the argument, except for
                // the case of hex digits. In JSON the displayed text decodes to the same bytes.
                match encoding.decode_arg(argument) {
                    Ok(read) if encoding == Encoding::Text => assert_eq!(read, argument.as_bytes()),
                    Ok(read) if encoding == Encoding::Json => assert_eq!(encoding.decode_arg(OsStr::new(&encoding.display(&read))).unwrap(), read),
                    Ok(read) => assert!(encoding.display(&read).eq_ignore_ascii_case(&argument.to_string_lossy())),
                    Err(err) => assert!(!err.to_string().contains('\n')),
                }
            }
            let mut json = Vec::new();
            encoding.write_json(&bytes, &mut json);
            if encoding != Encoding::Json {
                assert_eq!(encoding.read_json(raw(&json)).unwrap(), bytes.clone());
                assert_eq!(serde_json::from_slice::<Value>(&json).unwrap(), encoding.to_json(&bytes));
            }
            assert!(!encoding.display(&bytes).chars().any(char::is_control));
            let _ = encoding.read_column(&bytes);
        }
    }
}

#[test]
fn displayed_bytes_have_no_control_characters() {
    for bytes in [&b"\x1b[31mred"[..], b"a\nb", b"\xff\x00", b"{\n\"a\":\"\x7f\"}", "\"\u{85}\"".as_bytes()] {
        for encoding in ENCODINGS {
            assert!(!encoding.display(bytes).chars().any(char::is_control), "{encoding:?}");
        }
    }
    assert_eq!(Encoding::Json.display(b"{\n\"a\":\"\x7f\"}"), r#"{"a":"\u007f"}"#);
}

#[test]
fn json_values_are_kept_verbatim_and_others_are_refused() {
    let read = |text: &str| Encoding::Json.decode_arg(OsStr::new(text)).map_err(|err| err.to_string());
    assert_eq!(read(" {\"b\": 1.0, \"a\": 1e400} \n").unwrap(), b"{\"b\": 1.0, \"a\": 1e400}");
    assert_eq!(read(r"\xff00").unwrap(), [0xff, 0]);
    for wrong in ["", "red", "{", "1 2", "\\x0", "'a'", "\"\n\""] {
        assert!(read(wrong).is_err(), "{wrong:?}");
    }
    assert!(read("red").unwrap_err().starts_with("\"red\" is not valid JSON: "));
    // A long value is truncated in the error.
    assert!(read(&"x".repeat(1000)).unwrap_err().len() < 200);
}

#[test]
fn an_edited_json_value_takes_precedence_over_text() {
    let value =
        |line: &str| serde_json::from_str::<JsonRow<'_>>(line).unwrap().value(Encoding::Json).map(Result::unwrap);
    let pretty = br#"{"key":"k","value":{"a":1},"text":"{\n \"a\": 1\n}"}"#;
    assert_eq!(value(std::str::from_utf8(pretty).unwrap()).unwrap(), b"{\n \"a\": 1\n}");
    assert_eq!(value(r#"{"key":"k","value":{"a":2},"text":"{\n \"a\": 1\n}"}"#).unwrap(), br#"{"a":2}"#);
    assert_eq!(value(r#"{"key":"k","value":null}"#).unwrap(), b"null");
    assert_eq!(value(r#"{"key":"k"}"#), None);
    assert_eq!(value(r#"{"key":"k","value":1,"hex":"00"}"#), None);
}
