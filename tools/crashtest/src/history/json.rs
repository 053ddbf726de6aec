//! The text form of a history: JSON lines, see `HISTORY_FORMAT.md`.
//!
//! Operations are short arrays (`["r","key","value"]`), since a history mostly consists of them.
//! Their parser is written manually, because no derive handles arrays whose form depends on the
//! first element. Everything else is derived. Parsed strings that contain no escape borrow from the
//! line. This saves ten allocations a transaction.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, Write};

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};

use super::{History, Line, Op, Outcome, Transaction};

/// An invalid history.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct Error {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong. It is not the error's `source`, because a report with all sources would
    /// repeat the text.
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A read error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Invalid JSON, or the wrong form.
    #[error("{}", json_error(.0))]
    Json(#[from] serde_json::Error),
    /// JSON, but not an object.
    #[error("a line is a JSON object")]
    NotAnObject,
    /// A missing field.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// An event with fields of a transaction.
    #[error("an event has no fields of a transaction")]
    EventWithTxnFields,
    /// Initial rows after the first transaction, or repeated.
    #[error("initial rows must appear once, before the first transaction")]
    InitialNotFirst,
    /// A repeated key of the initial rows.
    #[error("the initial rows have the key {0:?} twice")]
    DuplicateInitialKey(String),
    /// A repeated transaction id.
    #[error("duplicate transaction id {0}")]
    DuplicateId(u64),
    /// An aborted transaction with a commit timestamp.
    #[error("an aborted transaction has no `commit_ts`")]
    UnexpectedCommitTs,
    /// A committed transaction with writes and without a commit timestamp.
    #[error("a committed transaction that writes or reads for update needs its `commit_ts`")]
    MissingCommitTs,
    /// A transaction that ended before it began.
    #[error("`ended` is before `began`")]
    EndedBeforeBegan,
    /// More transactions, keys or values than the checker can number.
    #[error("the history is too large")]
    TooLarge,
}

/// The error without serde's line number, which is always 1.
fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((text, _)) => format!("{text}, at column {}", error.column()),
        None => text,
    }
}

impl History {
    /// Reads a history. Empty lines are skipped.
    pub fn read(mut input: impl BufRead) -> Result<Self, Error> {
        let mut history = Self::default();
        let mut buffer = Vec::new();
        for line in 1.. {
            buffer.clear();
            let length = input.read_until(b'\n', &mut buffer).map_err(|error| Error { line, problem: error.into() })?;
            if length == 0 {
                break;
            }
            if buffer.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            parse(&buffer).and_then(|parsed| history.add(line, &parsed)).map_err(|problem| Error { line, problem })?;
        }
        Ok(history)
    }

    fn add(&mut self, number: usize, line: &Line<Text>) -> Result<(), Problem> {
        self.push_numbered(number as u64, line)
    }
}

impl<S: Serialize> Line<S> {
    /// Writes the line with its newline.
    pub fn write(&self, mut output: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut output, self)?;
        output.write_all(b"\n")
    }
}

/// A string that borrows from the input if it can. serde borrows a `Cow` only in a field, not as a
/// type parameter.
struct Text<'a>(Cow<'a, str>);

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrow;
        impl<'de> Visitor<'de> for Borrow {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Borrow)
    }
}

/// A line before it is interpreted.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object", bound(deserialize = "S: Deserialize<'de>"))]
struct RawLine<S> {
    event: Option<Event>,
    rows: Option<Vec<(S, S)>>,
    txn: Option<u64>,
    session: Option<u64>,
    start_ts: Option<u64>,
    read_ts: Option<u64>,
    commit_ts: Option<u64>,
    outcome: Option<Outcome>,
    began: Option<u64>,
    ended: Option<u64>,
    ops: Option<Vec<Op<S>>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Event {
    Initial,
    Crash,
}

fn parse(line: &[u8]) -> Result<Line<Text<'_>>, Problem> {
    // serde would accept an array as an object without names.
    if line.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::NotAnObject);
    }
    let raw: RawLine<Text> = serde_json::from_slice(line)?;
    let RawLine { txn, session, start_ts, read_ts, commit_ts, outcome, began, ended, .. } = raw;
    let Some(event) = raw.event else {
        if raw.rows.is_some() {
            return Err(Problem::Missing("event"));
        }
        return Ok(Line::Transaction(Transaction {
            id: txn,
            session: session.ok_or(Problem::Missing("session"))?,
            start_ts,
            read_ts: read_ts.ok_or(Problem::Missing("read_ts"))?,
            commit_ts,
            outcome: outcome.ok_or(Problem::Missing("outcome"))?,
            began,
            ended,
            ops: raw.ops.ok_or(Problem::Missing("ops"))?,
        }));
    };
    let numbers = [txn, session, start_ts, read_ts, commit_ts, began, ended];
    if numbers.iter().any(Option::is_some) || outcome.is_some() || raw.ops.is_some() {
        return Err(Problem::EventWithTxnFields);
    }
    match (event, raw.rows) {
        (Event::Initial, rows) => Ok(Line::Initial(rows.ok_or(Problem::Missing("rows"))?)),
        (Event::Crash, None) => Ok(Line::Crash),
        (Event::Crash, Some(_)) => Err(Problem::EventWithTxnFields),
    }
}

impl<'de, S: Deserialize<'de>> Deserialize<'de> for Op<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OpVisitor<S>(std::marker::PhantomData<S>);
        impl<'de, S: Deserialize<'de>> Visitor<'de> for OpVisitor<S> {
            type Value = Op<S>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(r#"["r", key, value], ["u", key, value], ["w", key, value] or ["s", from, to, rows]"#)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Op<S>, A::Error> {
                fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(seq: &mut A) -> Result<T, A::Error> {
                    seq.next_element()?.ok_or_else(|| de::Error::custom("an operation is too short"))
                }
                let kind: Text = next(&mut seq)?;
                let key = next(&mut seq)?;
                let op = match kind.as_ref() {
                    "r" => Op::Read(key, next(&mut seq)?),
                    "u" => Op::ReadForUpdate(key, next(&mut seq)?),
                    "w" => Op::Write(key, next(&mut seq)?),
                    "s" => Op::Scan { from: key, to: next(&mut seq)?, rows: next(&mut seq)? },
                    other => return Err(de::Error::unknown_variant(other, &["r", "u", "w", "s"])),
                };
                match seq.next_element::<de::IgnoredAny>()? {
                    None => Ok(op),
                    Some(_) => Err(de::Error::custom("an operation is too long")),
                }
            }
        }
        deserializer.deserialize_seq(OpVisitor(std::marker::PhantomData))
    }
}

impl<S: Serialize> Serialize for Op<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        match self {
            Self::Read(key, value) => ("r", key, value).serialize(serializer),
            Self::ReadForUpdate(key, value) => ("u", key, value).serialize(serializer),
            Self::Write(key, value) => ("w", key, value).serialize(serializer),
            Self::Scan { from, to, rows } => {
                let mut seq = serializer.serialize_seq(Some(4))?;
                seq.serialize_element("s")?;
                seq.serialize_element(from)?;
                seq.serialize_element(to)?;
                seq.serialize_element(rows)?;
                seq.end()
            }
        }
    }
}

impl<S: Serialize> Serialize for Line<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        #[derive(serde::Serialize)]
        struct EventLine<'a, S> {
            event: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            rows: Option<&'a [(S, S)]>,
        }
        match self {
            Self::Initial(rows) => EventLine { event: "initial", rows: Some(rows) }.serialize(serializer),
            Self::Crash => EventLine::<S> { event: "crash", rows: None }.serialize(serializer),
            Self::Transaction(txn) => txn.serialize(serializer),
        }
    }
}
