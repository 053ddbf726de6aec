//! The statements of the shell: words, quoted as in other shells.

use std::ffi::OsStr;

use anyhow::Result;

use crate::bytes::{Form, Forms};
use crate::exit::Code;

pub const HELP: &str = "\
get KEYSPACE KEY                       a value
put KEYSPACE KEY VALUE                 sets it
delete KEYSPACE KEY                    removes the row
scan KEYSPACE [PREFIX] [limit N]       rows in order; [from KEY] [to KEY] in the place of a prefix, without the last
versions KEYSPACE KEY [limit N]        what commits have made of a row
keyspaces                              their names
create KEYSPACE                        makes one
begin, commit, rollback                a transaction: what is between takes effect at once, or not at all
savepoint NAME                         marks a point in the transaction; rollback to NAME takes back what came behind it,
release NAME                           forgets the mark and those behind it, and takes back nothing
locks                                  what dead processes have left locked
help, quit

Words with blanks go into quotes: put fruit 'red apple' \"it's sweet\"";

/// Each begins a statement.
pub const WORDS: [&str; 15] = [
    "begin",
    "commit",
    "create",
    "delete",
    "get",
    "help",
    "keyspaces",
    "locks",
    "put",
    "quit",
    "release",
    "rollback",
    "savepoint",
    "scan",
    "versions",
];
/// Those behind which a keyspace comes.
pub const WITH_KEYSPACE: [&str; 5] = ["get", "put", "delete", "scan", "versions"];

/// Those that are one word.
const ALONE: [&str; 7] = ["begin", "commit", "exit", "help", "keyspaces", "locks", "quit"];

#[derive(Debug, PartialEq, Eq)]
pub enum Statement {
    Get { keyspace: String, key: Vec<u8> },
    Put { keyspace: String, key: Vec<u8>, value: Vec<u8> },
    Delete { keyspace: String, key: Vec<u8> },
    Scan { keyspace: String, rows: Rows, limit: Option<usize> },
    Versions { keyspace: String, key: Vec<u8>, limit: Option<usize> },
    Create(String),
    Keyspaces,
    Locks,
    Begin,
    Commit,
    Rollback,
    Savepoint(String),
    RollbackTo(String),
    Release(String),
    Help,
    Quit,
}

/// Which rows of a keyspace.
#[derive(Debug, PartialEq, Eq)]
pub enum Rows {
    Prefix(Vec<u8>),
    /// From the first up to, and without, the second.
    Between(Option<Vec<u8>>, Option<Vec<u8>>),
}

impl Statement {
    /// A line; `None` when it is empty or a comment.
    pub fn parse(line: &str, forms: Forms) -> Result<Option<Self>> {
        let words = shlex::split(line).ok_or_else(|| Code::Usage.error("a quote is not closed"))?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let Some((first, rest)) = words.split_first() else { return Ok(None) };
        let bytes = |form: Form, text: &str| form.read(OsStr::new(text));
        let first = first.to_ascii_lowercase();
        let statement = match (first.trim_end_matches(';'), rest) {
            ("get", [keyspace, key]) => Self::Get { keyspace: (*keyspace).into(), key: bytes(forms.keys, key)? },
            ("put", [keyspace, key, value]) => Self::Put {
                keyspace: (*keyspace).into(),
                key: bytes(forms.keys, key)?,
                value: bytes(forms.values, value)?,
            },
            ("delete", [keyspace, key]) => Self::Delete { keyspace: (*keyspace).into(), key: bytes(forms.keys, key)? },
            ("scan", [keyspace, rest @ ..]) => {
                let (rest, limit) = match rest {
                    [rest @ .., "limit", limit] => (rest, Some(number(limit)?)),
                    rest => (rest, None),
                };
                let key = |text: &str| bytes(forms.keys, text);
                let rows = match rest {
                    [] => Rows::Prefix(Vec::new()),
                    [prefix] => Rows::Prefix(key(prefix)?),
                    ["from", from] => Rows::Between(Some(key(from)?), None),
                    ["to", to] => Rows::Between(None, Some(key(to)?)),
                    ["from", from, "to", to] => match (key(from)?, key(to)?) {
                        (from, to) if from > to => return Err(Code::Usage.error("`from` lies behind `to`")),
                        (from, to) => Rows::Between(Some(from), Some(to)),
                    },
                    _ => return Err(unknown(line)),
                };
                Self::Scan { keyspace: (*keyspace).into(), rows, limit }
            }
            ("versions", [keyspace, key]) => {
                Self::Versions { keyspace: (*keyspace).into(), key: bytes(forms.keys, key)?, limit: None }
            }
            ("versions", [keyspace, key, "limit", limit]) => Self::Versions {
                keyspace: (*keyspace).into(),
                key: bytes(forms.keys, key)?,
                limit: Some(number(limit)?),
            },
            ("create", [keyspace]) => Self::Create((*keyspace).into()),
            ("keyspaces", []) => Self::Keyspaces,
            ("locks", []) => Self::Locks,
            ("begin", []) => Self::Begin,
            ("commit", []) => Self::Commit,
            ("rollback", []) => Self::Rollback,
            ("rollback", ["to", name]) => Self::RollbackTo((*name).into()),
            ("savepoint", [name]) => Self::Savepoint((*name).into()),
            ("release", [name]) => Self::Release((*name).into()),
            ("help", []) => Self::Help,
            ("quit" | "exit", []) => Self::Quit,
            _ => return Err(unknown(line)),
        };
        Ok(Some(statement))
    }
}

fn number(text: &str) -> Result<usize> {
    text.parse().map_err(|_| Code::Usage.error(format!("{text:?} is no number of rows")))
}

fn unknown(line: &str) -> anyhow::Error {
    let first = line.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
    let shape =
        HELP.lines().find(|shape| shape.split([' ', ',']).next() == Some(&first) && WORDS.contains(&first.as_str()));
    Code::Usage.error(match shape {
        _ if ALONE.contains(&first.as_str()) => format!("nothing comes behind {first:?}"),
        _ if first == "rollback" => "it is: rollback, or rollback to NAME".into(),
        Some(shape) => format!("it is: {}", shape.split("  ").next().unwrap_or_default()),
        None => format!("there is no statement {first:?}; `help` shows them"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    fn parse(line: &str) -> Result<Option<Statement>> {
        Statement::parse(line, Forms::default())
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_a_statement_panic(line: String, words in proptest::collection::vec("[a-z'\"# \\\\;\0-\u{7f}]{0,12}", 0..6)) {
            let _ = parse(&line);
            for first in WORDS {
                let line = format!("{first} {}", words.join(" "));
                // An error is one line, whatever was typed.
                if let Err(why) = parse(&line) {
                    assert!(!why.to_string().is_empty() && !why.to_string().chars().any(char::is_control), "{why:?}");
                }
            }
        }

        #[test]
        fn words_that_are_quoted_come_through_whatever_is_in_them(key in "[^\0]{1,20}", value in "[^\0]{0,20}") {
            let line = format!("put rows {} {}", shlex::try_quote(&key).unwrap(), shlex::try_quote(&value).unwrap());
            let put = Statement::Put { keyspace: "rows".into(), key: key.into_bytes(), value: value.into_bytes() };
            assert_eq!(parse(&line).unwrap(), Some(put));
        }
    }

    #[test]
    fn quoted_words_are_one() {
        let put = Statement::Put { keyspace: "fruit".into(), key: b"red apple".into(), value: b"it's".into() };
        assert_eq!(parse("put fruit 'red apple' \"it's\"").unwrap(), Some(put));
        assert_eq!(parse("  # a comment").unwrap(), None);
        assert!(parse("get fruit 'apple").unwrap_err().to_string().contains("quote"));
    }

    #[test]
    fn a_statement_of_the_wrong_shape_is_shown_its_shape() {
        assert_eq!(parse("put fruit").unwrap_err().to_string(), "it is: put KEYSPACE KEY VALUE");
        assert_eq!(parse("quit now").unwrap_err().to_string(), "nothing comes behind \"quit\"");
        assert_eq!(parse("fetch it").unwrap_err().to_string(), "there is no statement \"fetch\"; `help` shows them");
    }

    #[test]
    fn a_scan_is_of_a_prefix_or_between_two_keys() {
        let rows = |line: &str| match parse(line).unwrap() {
            Some(Statement::Scan { rows, limit, .. }) => (rows, limit),
            other => panic!("{other:?}"),
        };
        let key = |text: &str| Some(text.as_bytes().to_vec());
        assert_eq!(rows("scan fruit"), (Rows::Prefix(vec![]), None));
        assert_eq!(rows("scan fruit limit 3"), (Rows::Prefix(vec![]), Some(3)));
        assert_eq!(rows("scan fruit limit"), (Rows::Prefix(b"limit".into()), None));
        assert_eq!(rows("scan fruit from b to d limit 3"), (Rows::Between(key("b"), key("d")), Some(3)));
        assert_eq!(rows("scan fruit to d"), (Rows::Between(None, key("d")), None));
        for wrong in [
            "scan fruit a b",
            "scan fruit from b limit x",
            "scan fruit from d to b",
            "scan",
            "versions fruit",
            "rollback to",
            "release",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_word_is_helped_with() {
        assert!(WORDS.iter().all(|word| HELP.contains(word)));
    }
}
