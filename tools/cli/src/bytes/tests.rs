//! Any bytes come back from every form and every place that they are written to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;

use super::*;

const FORMS: [Form; 4] = [Form::Text, Form::Hex, Form::Base64, Form::Json];

/// Bytes of all sorts: JSON among them, what looks like the words of these forms, and what is no text.
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

/// The line that `scan --json` writes, and what `load` takes it for.
fn through_json(form: Form, value: &[u8]) -> Vec<u8> {
    let mut line = b"{\"key\":\"k\"".to_vec();
    value_fields(form, Some(value), &mut line);
    line.push(b'}');
    assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
    let fields: Fields<'_> = serde_json::from_slice(&line).unwrap();
    fields.value(form).unwrap().unwrap()
}

proptest! {
    #[test]
    fn values_in_json_lines_come_back_to_the_bit(value in bytes()) {
        for form in FORMS {
            prop_assert_eq!(&through_json(form, &value), &value, "{:?}", form);
        }
    }

    #[test]
    fn columns_come_back_to_the_bit_and_json_but_for_blanks_between_its_parts(value in bytes()) {
        for form in FORMS {
            let mut column = Vec::new();
            form.plain(&value, &mut column);
            prop_assert!(!column.iter().any(|byte| matches!(byte, b'\t' | b'\n' | b'\r')));
            let read = form.read_plain(&column).unwrap();
            let json = as_json(&value).filter(|_| form == Form::Json);
            let wanted = json.map_or_else(|| value.clone(), |json| one_line(json).into_owned().into_bytes());
            prop_assert_eq!(read, wanted, "{:?}", form);
        }
    }

    #[test]
    fn a_line_of_json_says_what_it_said_in_several(depth in 0_u8..3, text in "[ \n\t\r\"\\\\a:,]{0,6}", number in -9..9) {
        let mut value = json!({ &text: [number, &text, null, {}], "b": 1.5 });
        (0..depth).for_each(|_| value = json!({ "in": [value, "x"] }));
        let pretty = format!("{value:#}");
        prop_assert_eq!(one_line(&pretty).into_owned(), value.to_string());
        let same = value.to_string();
        prop_assert_eq!(one_line(&same).into_owned(), same);
    }

    #[test]
    fn no_argument_makes_reading_it_panic(bytes: Vec<u8>, text: String) {
        for form in FORMS {
            for argument in [OsStr::from_bytes(&bytes), OsStr::new(&text)] {
                // What is read is what is shown again, but for the case of digits.
                match form.read(argument) {
                    Ok(read) if form == Form::Text => assert_eq!(read, argument.as_bytes()),
                    Ok(read) if form == Form::Json => assert_eq!(form.read(OsStr::new(&form.show(&read))).unwrap(), read),
                    Ok(read) => assert!(form.show(&read).eq_ignore_ascii_case(&argument.to_string_lossy())),
                    Err(why) => assert!(!why.to_string().contains('\n')),
                }
            }
            let mut json = Vec::new();
            form.json(&bytes, &mut json);
            if form != Form::Json {
                assert_eq!(form.read_json(raw(&json)).unwrap(), bytes.clone());
                assert_eq!(serde_json::from_slice::<Value>(&json).unwrap(), form.json_value(&bytes));
            }
            assert!(!form.show(&bytes).chars().any(char::is_control));
            let _ = form.read_plain(&bytes);
        }
    }
}

#[test]
fn what_is_shown_to_people_has_no_control_characters() {
    for bytes in [&b"\x1b[31mred"[..], b"a\nb", b"\xff\x00", b"{\n\"a\":\"\x7f\"}", "\"\u{85}\"".as_bytes()] {
        for form in FORMS {
            assert!(!form.show(bytes).chars().any(char::is_control), "{form:?}");
        }
    }
    assert_eq!(Form::Json.show(b"{\n\"a\":\"\x7f\"}"), r#"{"a":"\u007f"}"#);
}

#[test]
fn values_that_are_json_are_read_as_given_and_others_are_refused() {
    let read = |text: &str| Form::Json.read(OsStr::new(text)).map_err(|why| why.to_string());
    assert_eq!(read(" {\"b\": 1.0, \"a\": 1e400} \n").unwrap(), b"{\"b\": 1.0, \"a\": 1e400}");
    assert_eq!(read(r"\xff00").unwrap(), [0xff, 0]);
    for wrong in ["", "red", "{", "1 2", "\\x0", "'a'", "\"\n\""] {
        assert!(read(wrong).is_err(), "{wrong:?}");
    }
    assert!(read("red").unwrap_err().starts_with("\"red\" is no JSON: "));
    // A long one is not repeated whole.
    assert!(read(&"x".repeat(1000)).unwrap_err().len() < 200);
}

#[test]
fn whoever_changes_a_value_in_json_lines_gets_it_changed() {
    let value = |line: &str| serde_json::from_str::<Fields<'_>>(line).unwrap().value(Form::Json).map(Result::unwrap);
    let pretty = br#"{"key":"k","value":{"a":1},"text":"{\n \"a\": 1\n}"}"#;
    assert_eq!(value(std::str::from_utf8(pretty).unwrap()).unwrap(), b"{\n \"a\": 1\n}");
    assert_eq!(value(r#"{"key":"k","value":{"a":2},"text":"{\n \"a\": 1\n}"}"#).unwrap(), br#"{"a":2}"#);
    assert_eq!(value(r#"{"key":"k","value":null}"#).unwrap(), b"null");
    assert_eq!(value(r#"{"key":"k"}"#), None);
    assert_eq!(value(r#"{"key":"k","value":1,"hex":"00"}"#), None);
}
