//! The operations of a history: invocations and completions, paired by process.

use std::collections::HashMap;

use serde_json::Value;

use crate::history::Outcome;

use super::{Error, edn};

/// What the transactions do to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// They append elements to lists.
    Lists,
    /// They overwrite values.
    Registers,
}

/// The value of a write that deletes a register.
pub const MISSING: &str = "null";

/// A step of a transaction. Keys and values are JSON texts, so `1` and `"1"` differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An append, or a write of a register; of [`MISSING`], a deletion.
    Write(String, String),
    /// A read: the elements of a list, or at most one value of a register.
    Read(String, Vec<String>),
}

/// A transaction as it was recorded. Times are positions in the history, counted from 1.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its name in reports: `index` of the completion, or of the invocation.
    pub id: u64,
    /// The client.
    pub process: u64,
    /// When it was invoked.
    pub began: u64,
    /// When it was answered.
    pub ended: Option<u64>,
    /// The answer.
    pub outcome: Outcome,
    /// What it did. Reads of a transaction that did not commit are unknown, and absent.
    pub steps: Vec<Step>,
}

/// A whole history.
pub struct Operations {
    /// What the transactions do.
    pub workload: Workload,
    /// The transactions, by invocation.
    pub txns: Vec<Recorded>,
}

/// An operation of a client.
struct Operation {
    position: u64,
    index: Option<u64>,
    kind: Kind,
    process: i64,
    value: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Invoke,
    Answer(Outcome),
}

/// Whether a text looks like a history in this form, by its first line.
pub fn is_elle(line: &str) -> bool {
    let start = line.trim_start();
    match start.as_bytes() {
        [b'[' | b'#' | b';', ..] => true,
        [b'{', rest @ ..] => {
            let is_edn = rest.iter().find(|byte| !byte.is_ascii_whitespace()).is_none_or(|byte| *byte != b'"');
            is_edn && rest.trim_ascii() != b"}"
                || serde_json::from_str::<Value>(line).is_ok_and(|line| line.get("type").is_some())
        }
        _ => false,
    }
}

/// Parses a history: JSON objects one in a line or in an array, or EDN.
pub fn parse(text: &str) -> Result<Operations, Error> {
    let malformed = |operation, problem: String| Error::Malformed { operation, problem };
    let mut found = Vec::new();
    for (number, value) in (1..).zip(forms(text).map_err(Error::Syntax)?) {
        found.extend(operation(number, value).map_err(|problem| malformed(number, problem))?);
    }
    pair(found)
}

fn forms(text: &str) -> Result<Vec<Value>, String> {
    let start: String = text.chars().filter(|char| !char.is_whitespace()).take(2).collect();
    let mut forms = if start.starts_with("{\"") {
        let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        lines.map(|(line, at)| serde_json::from_str(line).map_err(|error| format!("line {at}: {error}"))).collect()
    } else if start == "[{" && serde_json::from_str::<Value>(text).is_ok() {
        serde_json::from_str(text).map_err(|error| format!("line {}: {error}", error.line()))
    } else {
        edn::parse(text)
    }?;
    if let [Value::Array(_)] = &forms[..]
        && let Some(Value::Array(inner)) = forms.pop()
    {
        return Ok(inner);
    }
    Ok(forms)
}

/// An operation of a client; `None` for what the harness did, such as faults.
fn operation(position: u64, value: Value) -> Result<Option<Operation>, String> {
    let Value::Object(mut fields) = value else { return Err("not a map".into()) };
    let kind = match fields.get("type").and_then(Value::as_str) {
        Some("invoke") => Kind::Invoke,
        Some("ok") => Kind::Answer(Outcome::Committed),
        Some("fail") => Kind::Answer(Outcome::Aborted),
        Some("info") => Kind::Answer(Outcome::Unknown),
        other => return Err(format!("the type is {other:?}, not invoke, ok, fail or info")),
    };
    if fields.get("f").and_then(Value::as_str).is_some_and(|function| function != "txn") {
        return Ok(None);
    }
    let process = match fields.get("process") {
        None | Some(Value::Null) => 0,
        Some(process) => match process.as_i64() {
            Some(process) => process,
            None => return Ok(None),
        },
    };
    let index = fields.get("index").and_then(Value::as_u64);
    let value = match fields.remove("value") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(steps)) => steps,
        Some(_) => return Err("the value is not a list of operations".into()),
    };
    Ok(Some(Operation { position, index, kind, process, value }))
}

fn pair(operations: Vec<Operation>) -> Result<Operations, Error> {
    let mut txns: Vec<(Recorded, Vec<Value>)> = Vec::new();
    let mut open: HashMap<i64, Vec<usize>> = HashMap::new();
    let mut processes: HashMap<i64, u64> = HashMap::new();
    for operation in operations {
        let Operation { position, index, kind, process, value } = operation;
        let count = processes.len() as u64;
        let number = *processes.entry(process).or_insert(count);
        let id = index.unwrap_or(position);
        let recorded =
            |outcome, ended| Recorded { id, process: number, began: position, ended, outcome, steps: Vec::new() };
        match kind {
            Kind::Invoke => {
                // The outcome of a transaction without an answer stays unknown.
                open.entry(process).or_default().push(txns.len());
                txns.push((recorded(Outcome::Unknown, None), value));
            }
            Kind::Answer(outcome) => match answered(open.entry(process).or_default(), &txns, &value) {
                Some(at) => {
                    let (txn, steps) = &mut txns[at];
                    (txn.id, txn.outcome, txn.ended) = (id, outcome, Some(position));
                    if !value.is_empty() {
                        *steps = value;
                    }
                }
                None => txns.push((recorded(outcome, Some(position)), value)),
            },
        }
    }
    let mut workload = None;
    let mut parsed = Vec::new();
    for (mut txn, steps) in txns {
        let operation = txn.began;
        for step in steps {
            let step = parse_step(&step, &mut workload).map_err(|problem| Error::Malformed { operation, problem })?;
            if txn.outcome == Outcome::Committed || matches!(step, Step::Write(..)) {
                txn.steps.push(step);
            }
        }
        parsed.push(txn);
    }
    let workload = workload.unwrap_or(Workload::Registers);
    check_unique(workload, &parsed)?;
    Ok(Operations { workload, txns: parsed })
}

/// Which of the open transactions of a process is answered: the one with these writes, since a
/// client may begin before it has waited for the commit of its last transaction. Without writes it
/// is the oldest one.
fn answered(open: &mut Vec<usize>, txns: &[(Recorded, Vec<Value>)], answer: &[Value]) -> Option<usize> {
    let is_write = |step: &&Value| step.get(0).is_some_and(|function| function != "r");
    let writes = |steps: &[Value]| steps.iter().filter(is_write).cloned().collect::<Vec<_>>();
    let answer = writes(answer);
    let place = open.iter().position(|txn| writes(&txns[*txn].1) == answer);
    (!open.is_empty()).then(|| open.remove(place.unwrap_or_default()))
}

fn parse_step(step: &Value, workload: &mut Option<Workload>) -> Result<Step, String> {
    let Some([function, key, value]) = step.as_array().map(Vec::as_slice) else {
        return Err(format!("{step} is not a function, a key and a value"));
    };
    let mut expect = |found: Workload| match workload.replace(found) {
        Some(other) if other != found => Err("lists and registers are mixed".to_owned()),
        _ => Ok(()),
    };
    match (function.as_str(), value) {
        (Some("append"), element) => {
            expect(Workload::Lists)?;
            Ok(Step::Write(key.to_string(), element.to_string()))
        }
        (Some("w"), written) => {
            expect(Workload::Registers)?;
            Ok(Step::Write(key.to_string(), written.to_string()))
        }
        (Some("r"), Value::Null) => Ok(Step::Read(key.to_string(), Vec::new())),
        (Some("r"), Value::Array(elements)) => {
            expect(Workload::Lists)?;
            Ok(Step::Read(key.to_string(), elements.iter().map(Value::to_string).collect()))
        }
        (Some("r"), read) => {
            expect(Workload::Registers)?;
            Ok(Step::Read(key.to_string(), vec![read.to_string()]))
        }
        (function, _) => Err(format!("the function {function:?} is not append, w or r")),
    }
}

/// Without unique values nothing can be inferred. A transaction may write a value to a register
/// again, and deletions are all alike.
fn check_unique(workload: Workload, txns: &[Recorded]) -> Result<(), Error> {
    let mut writers = HashMap::new();
    for (number, txn) in txns.iter().enumerate() {
        for step in &txn.steps {
            let Step::Write(key, value) = step else { continue };
            if workload == Workload::Registers && value == MISSING {
                continue;
            }
            let earlier = writers.insert((key, value), number);
            if earlier.is_some_and(|writer| workload == Workload::Lists || writer != number) {
                let problem = format!("the value {value} is written to {key} twice");
                return Err(Error::Malformed { operation: txn.began, problem });
            }
        }
    }
    Ok(())
}
