//! `percolite versions`: what commits have made of a row.

use std::ffi::OsString;

use anyhow::Result;
use percolite::{Store, Txn, Version};
use serde_json::json;

use crate::at::AtArgs;
use crate::encoding::{EncodingArgs, Encodings, write_value_fields};
use crate::exit::Code;
use crate::open::StoreDir;
use crate::output::{LineWriter, is_terminal};
use crate::table;

/// What people see of a value.
const MAX_VALUE_CHARS: usize = 200;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite versions shop fruit apple             newest first
  percolite versions shop fruit apple --limit 3
  percolite versions shop fruit apple --at 1h     those that there were an hour ago
  percolite get shop fruit apple --at 1763733600000.4
                                                  the row as one of them left it
  percolite versions shop fruit apple --json      JSON lines

How long versions are kept, and how exact times are, says `percolite retention --help`. Where they are not, there is the newest alone. \
A key that never was is told on standard error, and the exit code is 3.

Without a terminal a version is a plain line, with a tab between its time, its timestamp, its owner, `put` or `deleted`, and the value as \
`percolite scan --help` says.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    versions: VersionsArgs,
}

/// What is asked for.
#[derive(clap::Args)]
pub struct VersionsArgs {
    /// The keyspace
    pub keyspace: String,
    /// The key
    key: OsString,
    #[command(flatten)]
    at: AtArgs,
    /// At most so many versions
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    pub encodings: EncodingArgs,
    /// JSON lines: {"timestamp": …, "ms": …, "time": …, "owner": …, "deleted": …, "value": …}
    #[arg(long)]
    pub json: bool,
}

const HEADER: [&str; 4] = ["committed", "timestamp", "owner", "value"];

pub fn run(args: &Args) -> Result<()> {
    let what = &args.versions;
    let encodings = what.encodings.get();
    let key = what.key(encodings)?;
    if what.print(&args.store.open_read_only()?, None, &key, encodings)? {
        return Ok(());
    }
    Err(Code::NotFound.error(format!(
        "{:?} was never in the keyspace {:?}",
        encodings.keys.display(&key),
        what.keyspace
    )))
}

impl VersionsArgs {
    pub fn key(&self, encodings: Encodings) -> Result<Vec<u8>> {
        encodings.keys.decode_arg(&self.key)
    }

    /// Shows the versions. The answer is whether there are any.
    pub fn print(&self, store: &Store, txn: Option<&Txn>, key: &[u8], encodings: Encodings) -> Result<bool> {
        let (view, keyspace) = self.at.source(store, txn, &self.keyspace)?;
        let mut versions = view.versions(&keyspace, key)?.peekable();
        if versions.peek().is_none() {
            return Ok(false);
        }
        let (mut out, mut rows) = (LineWriter::new(), Vec::new());
        for version in versions.take(self.limit.unwrap_or(usize::MAX)) {
            let version = version?;
            if self.json {
                out.write_bytes(&json_line(&version, encodings))?;
            } else if is_terminal() {
                rows.push(cells(&version, encodings));
            } else {
                out.write_bytes(&plain_line(&version, encodings))?;
            }
        }
        if !rows.is_empty() {
            out.write_line(table::text_table(HEADER, rows))?;
        }
        out.finish()?;
        Ok(true)
    }
}

fn json_line(version: &Version, encodings: Encodings) -> Vec<u8> {
    let ts = version.commit_ts;
    let mut line = json!({
        "timestamp": ts.to_string(),
        "ms": ts.millis(),
        "time": table::format_timestamp(ts),
        "owner": version.owner_id.to_string(),
        "deleted": version.value.is_none(),
    })
    .to_string()
    .into_bytes();
    // The value is no JSON value of this program's, but text.
    line.pop();
    write_value_fields(encodings.values, version.value.as_deref(), &mut line);
    line.extend_from_slice(b"}\n");
    line
}

fn plain_line(version: &Version, encodings: Encodings) -> Vec<u8> {
    let ts = version.commit_ts;
    let is = if version.value.is_some() { "put" } else { "deleted" };
    let mut line = format!("{}\t{ts}\t{}\t{is}\t", table::format_timestamp(ts), version.owner_id).into_bytes();
    if let Some(value) = &version.value {
        encodings.values.write_column(value, &mut line);
    }
    line.push(b'\n');
    line
}

fn cells(version: &Version, encodings: Encodings) -> [String; 4] {
    let value = version.value.as_ref().map_or_else(|| "(deleted)".into(), |value| encodings.values.display(value));
    [
        table::format_time(version.commit_ts.millis(), "%Y-%m-%d %H:%M:%S%.3f UTC"),
        version.commit_ts.to_string(),
        version.owner_id.to_string(),
        table::truncate(&value, MAX_VALUE_CHARS),
    ]
}
