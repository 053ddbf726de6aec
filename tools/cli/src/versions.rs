//! `percolite versions`: what commits have made of a row.

use std::ffi::OsString;

use anyhow::Result;
use percolite::{Store, Txn, Version};
use serde_json::json;

use crate::bytes::{FormArgs, Forms, value_fields};
use crate::exit::Code;
use crate::moment::Moment;
use crate::open::Folder;
use crate::output::{Lines, is_for_people};
use crate::table;

/// What people see of a value.
const SHOWN_CHARS: usize = 200;

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

How long versions are kept, and how exact times are, says `percolite history --help`. Where they are not, there is the newest alone. \
A key that never was is told on standard error, and the exit code is 3.

Without a terminal a version is a plain line, with a tab between its time, its timestamp, its owner, `put` or `deleted`, and the value as \
`percolite scan --help` says.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    #[command(flatten)]
    what: What,
}

/// What is asked for.
#[derive(clap::Args)]
pub struct What {
    /// The keyspace
    pub keyspace: String,
    /// The key
    key: OsString,
    #[command(flatten)]
    moment: Moment,
    /// At most so many versions
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    pub forms: FormArgs,
    /// JSON lines: {"timestamp": …, "ms": …, "time": …, "owner": …, "deleted": …, "value": …}
    #[arg(long)]
    pub json: bool,
}

const HEADER: [&str; 4] = ["committed", "timestamp", "owner", "value"];

pub fn run(args: &Args) -> Result<()> {
    let what = &args.what;
    let forms = what.forms.get();
    let key = what.key(forms)?;
    if what.show(&args.store.look()?, None, &key, forms)? {
        return Ok(());
    }
    Err(Code::Missing.error(format!("{:?} was never in the keyspace {:?}", forms.keys.show(&key), what.keyspace)))
}

impl What {
    pub fn key(&self, forms: Forms) -> Result<Vec<u8>> {
        forms.keys.read(&self.key)
    }

    /// Shows the versions. The answer is whether there are any.
    pub fn show(&self, store: &Store, txn: Option<&Txn>, key: &[u8], forms: Forms) -> Result<bool> {
        let (view, keyspace) = self.moment.view(store, txn, &self.keyspace)?;
        let mut versions = view.versions(&keyspace, key)?.peekable();
        if versions.peek().is_none() {
            return Ok(false);
        }
        let (mut out, mut rows) = (Lines::new(), Vec::new());
        for version in versions.take(self.limit.unwrap_or(usize::MAX)) {
            let version = version?;
            if self.json {
                out.bytes(&json_line(&version, forms))?;
            } else if is_for_people() {
                rows.push(cells(&version, forms));
            } else {
                out.bytes(&plain_line(&version, forms))?;
            }
        }
        if !rows.is_empty() {
            out.say(table::texts(HEADER, rows))?;
        }
        out.finish()?;
        Ok(true)
    }
}

fn json_line(version: &Version, forms: Forms) -> Vec<u8> {
    let ts = version.commit_ts;
    let mut line = json!({
        "timestamp": ts.to_string(),
        "ms": ts.millis(),
        "time": table::moment(ts),
        "owner": version.owner_id.to_string(),
        "deleted": version.value.is_none(),
    })
    .to_string()
    .into_bytes();
    // The value is no JSON value of this program's, but text.
    line.pop();
    value_fields(forms.values, version.value.as_deref(), &mut line);
    line.extend_from_slice(b"}\n");
    line
}

fn plain_line(version: &Version, forms: Forms) -> Vec<u8> {
    let ts = version.commit_ts;
    let is = if version.value.is_some() { "put" } else { "deleted" };
    let mut line = format!("{}\t{ts}\t{}\t{is}\t", table::moment(ts), version.owner_id).into_bytes();
    if let Some(value) = &version.value {
        forms.values.plain(value, &mut line);
    }
    line.push(b'\n');
    line
}

fn cells(version: &Version, forms: Forms) -> [String; 4] {
    let value = version.value.as_ref().map_or_else(|| "(deleted)".into(), |value| forms.values.show(value));
    [
        table::time(version.commit_ts.millis(), "%Y-%m-%d %H:%M:%S%.3f UTC"),
        version.commit_ts.to_string(),
        version.owner_id.to_string(),
        table::shorten(&value, SHOWN_CHARS),
    ]
}
