//! Requests and answers, one JSON object in a line each.

use adya::r#gen::TxnOp;
use adya::run::Outcome;
use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// The line of a request.
pub fn request(ops: &[TxnOp]) -> String {
    let value: Vec<Value> = ops
        .iter()
        .map(|op| match *op {
            TxnOp::Append(key, value) => json!(["append", key, value]),
            TxnOp::Write(key, value) => json!(["w", key, value]),
            TxnOp::Read(key) => json!(["r", key, null]),
        })
        .collect();
    format!("{}\n", json!({ "value": value }))
}

/// The operations of a request.
pub fn parse_request(line: &str) -> anyhow::Result<Vec<TxnOp>> {
    let request: Value = serde_json::from_str(line)?;
    let ops = request["value"].as_array().context("no operations")?;
    ops.iter()
        .map(|op| {
            let number = |at: usize| op[at].as_i64().with_context(|| format!("no number in {op}"));
            Ok(match op[0].as_str() {
                Some("append") => TxnOp::Append(number(1)?, number(2)?),
                Some("w") => TxnOp::Write(number(1)?, number(2)?),
                Some("r") => TxnOp::Read(number(1)?),
                _ => bail!("unknown operation {op}"),
            })
        })
        .collect()
}

/// The line of an answer. It repeats no operations, only what the reads returned.
pub fn answer(outcome: &Outcome) -> String {
    let answer = match outcome {
        Outcome::Ok(reads) => json!({ "type": "ok", "reads": reads }),
        Outcome::Fail(error) => json!({ "type": "fail", "error": error }),
        Outcome::Info(error) => json!({ "type": "info", "error": error }),
    };
    format!("{answer}\n")
}

/// The outcome in an answer.
pub fn parse_answer(line: &str) -> anyhow::Result<Outcome> {
    let answer: Value = serde_json::from_str(line)?;
    let error = || answer["error"].as_str().unwrap_or_default().to_owned();
    Ok(match answer["type"].as_str() {
        Some("ok") => Outcome::Ok(serde_json::from_value(answer["reads"].clone())?),
        Some("fail") => Outcome::Fail(error()),
        Some("info") => Outcome::Info(error()),
        _ => bail!("no answer: {line}"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_round_trip() {
        let ops = vec![TxnOp::Append(1, 2), TxnOp::Write(3, 4), TxnOp::Read(5)];
        assert_eq!(parse_request(&request(&ops)).unwrap(), ops);
        let outcomes = [
            Outcome::Ok(vec![None, Some(vec![1, 2]), Some(vec![])]),
            Outcome::Fail("a \"conflict\"".into()),
            Outcome::Info(String::new()),
        ];
        for outcome in outcomes {
            assert_eq!(parse_answer(&answer(&outcome)).unwrap(), outcome);
        }
        assert!(parse_answer("").is_err() && parse_request("{}").is_err());
    }
}
