//! The text of JSON: whether it is valid, its form in one line, and whether a file has one object a
//! line.

use std::borrow::Cow;

use serde::de::IgnoredAny;

/// Checks that the text is JSON, by the rule of every command that stores or shows it. Half of a
/// surrogate pair is refused: `IgnoredAny` accepts it, but other programs do not.
pub fn check_json(text: &str) -> Result<(), String> {
    serde_json::from_str::<IgnoredAny>(text).map_err(|err| err.to_string())?;
    check_surrogates(text)
}

pub fn is_json(text: &str) -> bool {
    check_json(text).is_ok()
}

/// Checks that valid JSON has no half of a surrogate pair.
pub fn check_surrogates(json: &str) -> Result<(), String> {
    let unit = |escape: &str| u16::from_str_radix(escape.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let mut left = json;
    // In JSON every backslash begins an escape.
    while let Some(at) = left.find('\\') {
        let escape = left.get(at..).unwrap_or_default();
        let length = match unit(escape) {
            Some(0xd800..=0xdbff) => {
                let second = escape.get(6..).and_then(unit);
                if !matches!(second, Some(0xdc00..=0xdfff)) {
                    return Err(lone_surrogate(escape));
                }
                12
            }
            Some(0xdc00..=0xdfff) => return Err(lone_surrogate(escape)),
            _ => 2,
        };
        left = escape.get(length..).unwrap_or_default();
    }
    Ok(())
}

fn lone_surrogate(escape: &str) -> String {
    format!("{} is half of a surrogate pair", escape.get(..6).unwrap_or(escape))
}

/// JSON in one line. Text without tabs and line ends stays unchanged, except for the whitespace
/// around it.
pub fn compact_json(json: &str) -> Cow<'_, str> {
    let is_separator = |byte: u8| matches!(byte, b'\t' | b'\n' | b'\r');
    let trimmed = json.trim_ascii();
    if !trimmed.bytes().any(is_separator) {
        return trimmed.into();
    }
    let (mut quoted, mut escaped) = (false, false);
    let is_kept = |c: &char| {
        if quoted {
            (quoted, escaped) = (escaped || *c != '"', !escaped && *c == '\\');
            return true;
        }
        quoted = *c == '"';
        !c.is_ascii_whitespace()
    };
    trimmed.chars().filter(is_kept).collect()
}

/// Whether the text is a JSON array of objects or arrays; CSV and TSV do not begin like that.
pub fn is_array(bytes: &[u8]) -> bool {
    let mut visible = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
    visible.next() == Some(&b'[') && matches!(visible.next(), Some(b'{' | b'['))
}

/// Why the beginning of a file is not one JSON object a line, and the command that makes it so: it
/// is an array, or its objects have several lines. `file_argument` is that of
/// [`crate::text_input::file_argument`].
pub fn not_one_a_line(beginning: &[u8], file_argument: &str) -> Option<String> {
    if is_array(beginning) {
        let rows = beginning.iter().filter(|byte| !byte.is_ascii_whitespace()).nth(1);
        let convert = if rows == Some(&b'[') { "jq -r '.[] | @tsv'" } else { "jq -c '.[]'" };
        return Some(format!("it is one JSON array, not one object per line; to convert it: {convert}{file_argument}"));
    }
    let text = beginning.trim_ascii_start();
    let line_end = text.iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
    // A first line that was truncated is no such case: an error follows in the next line.
    let goes_on = |bytes| serde_json::from_slice::<IgnoredAny>(bytes).is_err_and(|err| err.is_eof());
    let first = serde_json::Deserializer::from_slice(text).into_iter::<IgnoredAny>().next();
    let is_value_or_goes_on = first.is_some_and(|first| first.is_ok() || goes_on(text));
    let has_more = text.get(line_end..).is_some_and(|rest| !rest.trim_ascii().is_empty());
    (has_more && is_value_or_goes_on && goes_on(text.get(..line_end)?)).then(|| {
        format!("it has one object in several lines, not one object per line; to convert it: jq -c .{file_argument}")
    })
}

/// Why a line is not JSON. The error's line number is always 1, so it is left out. What is decoded,
/// as names of fields are, fails at half of a surrogate pair.
pub fn not_json(line: &str, err: &serde_json::Error) -> String {
    if let Err(reason) = check_surrogates(line) {
        return format!("cannot be used: {reason}");
    }
    let message = err.to_string();
    let hint = if err.is_eof() { "; if its objects have several lines: jq -c ." } else { "" };
    format!("is not JSON: {} (column {}){hint}", message.split(" at line ").next().unwrap_or_default(), err.column())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn compact_json_keeps_the_meaning(depth in 0_u8..3, text in "[ \n\t\r\"\\\\a:,]{0,6}", number in -9..9) {
            let mut value = json!({ &text: [number, &text, null, {}], "b": 1.5 });
            (0..depth).for_each(|_| value = json!({ "in": [value, "x"] }));
            let pretty = format!("{value:#}");
            prop_assert_eq!(compact_json(&pretty).into_owned(), value.to_string());
            let same = value.to_string();
            prop_assert_eq!(compact_json(&same).into_owned(), same);
        }

        /// Decoding the strings finds half pairs, too.
        #[test]
        fn half_a_surrogate_pair_is_found_wherever_it_is(
            parts in prop::collection::vec(
                prop::sample::select(vec![r"\ud83d", r"\uDE00", r"\u0041", r"\\", r"\n", "u", "d83d", "é", r#"\""#]), 0..6),
        ) {
            let text = format!("{{\"k\": \"{}\"}}", parts.concat());
            let decoded = serde_json::from_str::<serde_json::Value>(&text);
            prop_assert_eq!(check_json(&text).is_ok(), decoded.is_ok(), "{}: {:?}", text, decoded);
        }

        #[test]
        fn looking_at_a_beginning_never_panics(bytes: Vec<u8>, text in "[\\[\\]{}\":,a\n\r\t ]{0,30}") {
            let _ = (not_one_a_line(&bytes, ""), not_one_a_line(text.as_bytes(), ""));
            let _ = check_json(&text);
        }
    }

    #[test]
    fn numbers_and_depth_make_no_difference_to_surrogates() {
        for prefix in ["2e400", "[[[[[[[[1]]]]]]]]"] {
            assert!(is_json(&format!("[{prefix}, \"\\ud83d\\ude00\"]")));
            assert!(!is_json(&format!("[{prefix}, \"\\ud83d\"]")));
        }
        let deep = format!("{}\"\\ud83d\\ude00\"{}", "[".repeat(500), "]".repeat(500));
        assert!(is_json(&deep));
    }

    #[test]
    fn only_objects_of_several_lines_are_taken_for_such() {
        for several in ["{\n \"key\": 1\n}", "{\r\n\"key\": 1,\r\n", "\n\n {\"a\":\n{}}\n{}", "{\"a\": [\r1]}"] {
            let problem = not_one_a_line(several.as_bytes(), " 'a b'").unwrap();
            assert!(problem.ends_with("to convert it: jq -c . 'a b'"), "{several}: {problem}");
        }
        // A truncated line is one bad record, and the next one is read.
        for lines in ["", "{", "{\n", "{}\n{}", "{\"key\": \"a\n{\"key\": 1}", "{\"key\": 1\n{\"key\": 1}", "a,1\nb,2"]
        {
            assert_eq!(not_one_a_line(lines.as_bytes(), ""), None, "{lines}");
        }
        assert!(not_one_a_line(b" [\n {\"key\": 1}]", " f").unwrap().ends_with("jq -c '.[]' f"));
        assert!(not_one_a_line(b"[[\"a\", 1]]", "").unwrap().ends_with("jq -r '.[] | @tsv'"));
    }
}
