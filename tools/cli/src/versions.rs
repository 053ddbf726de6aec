//! `percolite versions`: lists the versions of a row.

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

/// Longer values are truncated in a table.
const MAX_VALUE_CHARS: usize = 200;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite versions shop fruit apple             newest first
  percolite versions shop fruit apple --limit 3
  percolite versions shop fruit apple --at 1h     the versions of an hour ago and older
  percolite get shop fruit apple --at 1763733600000.4
                                                  the row as of one of these versions
  percolite versions shop fruit apple --json      JSON lines

`percolite retention --help` says how long versions are kept, and how exact times are. Without history there is only \
the newest version. A key without versions is reported on standard error, and the exit code is 3.

Without a terminal a version is a plain line with tabs: time, timestamp, owner, `put` or `deleted`, value. For the \
escapes of values see `percolite scan --help`.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    versions: VersionsArgs,
}

/// The arguments of `versions` on the command line and in the shell.
#[derive(clap::Args)]
pub struct VersionsArgs {
    /// The keyspace
    pub keyspace: String,
    /// The key
    key: OsString,
    #[command(flatten)]
    at: AtArgs,
    /// Print at most N versions
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    pub encodings: EncodingArgs,
    /// Print JSON lines
    #[arg(long)]
    pub json: bool,
}

const HEADER: [&str; 4] = ["committed", "timestamp", "owner", "value"];

pub fn run(args: &Args) -> Result<()> {
    let versions = &args.versions;
    let encodings = versions.encodings.get();
    let key = versions.key(encodings)?;
    if versions.print(&args.store.open_read_only()?, None, &key, encodings)? {
        return Ok(());
    }
    let key = encodings.keys.display(&key);
    Err(Code::NotFound.error(format!("{key:?} has no versions in the keyspace {:?}", versions.keyspace)))
}

impl VersionsArgs {
    pub fn key(&self, encodings: Encodings) -> Result<Vec<u8>> {
        encodings.keys.decode_arg(&self.key)
    }

    /// Prints the versions, and returns whether there are any.
    pub fn print(&self, store: &Store, txn: Option<&Txn>, key: &[u8], encodings: Encodings) -> Result<bool> {
        let (source, keyspace) = self.at.source(store, txn, &self.keyspace)?;
        let mut versions = source.versions(&keyspace, key)?.peekable();
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
        "commit_ts": ts.to_string(),
        "commit_ms": ts.millis(),
        "commit_time": table::format_timestamp(ts),
        "owner_id": version.owner_id.to_string(),
        "deleted": version.value.is_none(),
    })
    .to_string()
    .into_bytes();
    // The closing brace is removed, and the fields of the value are appended as text, which keeps
    // JSON values verbatim.
    line.pop();
    write_value_fields(encodings.values, version.value.as_deref(), &mut line);
    line.extend_from_slice(b"}\n");
    line
}

fn plain_line(version: &Version, encodings: Encodings) -> Vec<u8> {
    let ts = version.commit_ts;
    let kind = if version.value.is_some() { "put" } else { "deleted" };
    let mut line = format!("{}\t{ts}\t{}\t{kind}\t", table::format_timestamp(ts), version.owner_id).into_bytes();
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
