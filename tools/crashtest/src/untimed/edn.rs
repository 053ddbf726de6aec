//! EDN, as Jepsen writes `history.edn`, read as JSON values: keywords and symbols become strings,
//! lists and sets arrays, the keys of maps text; a tag is dropped.
//!
//! The crates for EDN are deprecated (`edn-rs`) or bring big numbers, dates and floats
//! (`edn-format`) for what is maps, vectors, keywords and integers here.

use serde_json::{Map, Value};

/// Deeper nesting is refused, as `serde_json` does, so that no input exhausts the stack.
const DEPTH_MAX: usize = 128;

/// All forms of a text. The error names the line.
pub fn parse(text: &str) -> Result<Vec<Value>, String> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    let mut forms = Vec::new();
    loop {
        reader.skip_blank();
        if reader.rest().is_empty() {
            return Ok(forms);
        }
        forms.extend(reader.form()?);
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error<T>(&self, what: &str) -> Result<T, String> {
        let line = self.text[..self.at].matches('\n').count() + 1;
        Err(format!("line {line}: {what}, in EDN"))
    }

    /// Blanks, commas and comments.
    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start_matches(|char: char| char.is_whitespace() || char == ',').len();
            self.at += blank;
            if !self.rest().starts_with(';') {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// A form; `None` for one that `#_` discards.
    fn form(&mut self) -> Result<Option<Value>, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.error("nested too deeply");
        }
        self.skip_blank();
        let Some(first) = self.rest().chars().next() else { return self.error("it ends within a form") };
        let form = match first {
            '[' => self.items(1, ']').map(Value::Array),
            '(' => self.items(1, ')').map(Value::Array),
            '{' => self.map(),
            '"' => self.string(),
            '#' if self.rest().starts_with("#{") => self.items(2, '}').map(Value::Array),
            '#' if self.rest().starts_with("#_") => {
                self.at += 2;
                self.form()?;
                self.depth -= 1;
                return Ok(None);
            }
            '#' => {
                self.token();
                let tagged = self.form();
                self.depth -= 1;
                return tagged;
            }
            _ => self.atom(),
        };
        self.depth -= 1;
        form.map(Some)
    }

    fn items(&mut self, opening: usize, closing: char) -> Result<Vec<Value>, String> {
        self.at += opening;
        let mut items = Vec::new();
        loop {
            self.skip_blank();
            if self.rest().starts_with(closing) {
                self.at += 1;
                return Ok(items);
            }
            items.extend(self.form()?);
        }
    }

    fn map(&mut self) -> Result<Value, String> {
        let items = self.items(1, '}')?;
        if items.len() % 2 != 0 {
            return self.error("a map has a key without a value");
        }
        let mut map = Map::new();
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            let key = if let Value::String(text) = key { text } else { key.to_string() };
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }

    fn string(&mut self) -> Result<Value, String> {
        let mut text = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    self.at += at + 1;
                    return Ok(Value::String(text));
                }
                '\\' => match chars.next().map(|(_, escaped)| escaped) {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some('r') => text.push('\r'),
                    Some(escaped @ ('"' | '\\')) => text.push(escaped),
                    _ => return self.error("an unknown escape in a string"),
                },
                char => text.push(char),
            }
        }
        self.error("a string does not end")
    }

    fn token(&mut self) -> &'a str {
        let rest = self.rest();
        let end = |char: char| char.is_whitespace() || ",;()[]{}\"".contains(char);
        let length = rest.find(end).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn atom(&mut self) -> Result<Value, String> {
        let token = self.token();
        Ok(match token {
            "" => return self.error("an unexpected bracket"),
            "nil" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ => {
                let number = token.strip_suffix(['N', 'M']).unwrap_or(token);
                match number.parse::<i64>() {
                    Ok(number) => number.into(),
                    Err(_) => Value::String(token.strip_prefix(':').unwrap_or(token).to_owned()),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn forms_of_a_history_become_json() {
        let text = r#"; a comment
            #jepsen.history.Op{:index 0, :time 12N, :type :ok, :process 3, :f :txn
             :value [[:append "x" 1] [:r :y nil] (:r 9 [1 2 -3]) #_ [:gone] #{4}]}
            {:type :info :process :nemesis}"#;
        let forms = parse(text).unwrap();
        let op = json!({"index": 0, "time": 12, "type": "ok", "process": 3, "f": "txn",
            "value": [["append", "x", 1], ["r", "y", null], ["r", 9, [1, 2, -3]], [4]]});
        assert_eq!(forms, [op, json!({"type": "info", "process": "nemesis"})]);
        assert_eq!(parse(r#""a\n\"\\ß" true"#).unwrap(), [json!("a\n\"\\ß"), json!(true)]);
    }

    #[test]
    fn damaged_text_is_an_error_and_never_a_panic() {
        let text = r#"#op{:a [1 "b\n" (nil)] #{2} #_3 :ß 4}"#;
        for (at, _) in text.char_indices().skip(1) {
            let _ = parse(&text[..at]);
            let _ = parse(&text[at..]);
        }
        for wrong in ["{:a}", "[1", "]", "\"", "\"\\x\"", "#", "(1]", "{:a 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&"[".repeat(100_000)).unwrap_err().contains("nested too deeply"));
        assert!(parse(&"#_".repeat(100_000)).is_err() && parse(&"#a ".repeat(100_000)).is_err());
    }
}
