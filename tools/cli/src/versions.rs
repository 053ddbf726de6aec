//! `percolite versions`: what commits have made of a row.

use std::ffi::OsString;

use anyhow::Result;
use percolite::Version;
use serde_json::json;

use crate::bytes::Forms;
use crate::exit::Code;
use crate::moment::Moment;
use crate::open::Folder;
use crate::output::Lines;
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
A key that never was is told on standard error, and the exit code is 3.")]
pub struct Args {
    #[command(flatten)]
    store: Folder,
    /// The keyspace
    keyspace: String,
    /// The key
    key: OsString,
    #[command(flatten)]
    moment: Moment,
    /// At most so many versions
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    forms: Forms,
    /// JSON lines: {"timestamp": …, "ms": …, "time": …, "owner": …, "value": …}
    #[arg(long)]
    json: bool,
}

/// Of a table of versions.
pub const HEADER: [&str; 4] = ["committed", "timestamp", "owner", "value"];

/// A version's row in such a table.
pub fn cells(version: &Version, forms: Forms) -> [String; 4] {
    let value = version.value.as_ref().map_or_else(|| "(deleted)".into(), |value| forms.values.show(value));
    [
        table::time(version.commit_ts.millis(), "%Y-%m-%d %H:%M:%S%.3f UTC"),
        version.commit_ts.to_string(),
        version.owner.to_string(),
        table::shorten(&value, SHOWN_CHARS),
    ]
}

pub fn run(args: &Args) -> Result<()> {
    let key = args.forms.keys.read(&args.key)?;
    let store = args.store.look()?;
    let snapshot = args.moment.snapshot(&store)?;
    let keyspace = args.moment.keyspace(&store, &snapshot, &args.keyspace)?;
    let versions = snapshot.versions(&keyspace, &key)?;
    let mut out = Lines::new();
    let mut rows = Vec::new();
    let mut versions = versions.peekable();
    let found = versions.peek().is_some();
    for version in versions.take(args.limit.unwrap_or(usize::MAX)) {
        let version = version?;
        if args.json {
            let Version { commit_ts, owner, value, .. } = version;
            out.say(json!({
                "timestamp": commit_ts.to_string(),
                "ms": commit_ts.millis(),
                "time": table::moment(commit_ts),
                "owner": owner.to_string(),
                "value": value.map(|value| args.forms.values.json(&value)),
            }))?;
            continue;
        }
        rows.push(cells(&version, args.forms));
    }
    if !found {
        return Err(Code::Missing.error(format!(
            "{:?} was never in the keyspace {:?}",
            args.forms.keys.show(&key),
            args.keyspace
        )));
    }
    if !args.json {
        out.say(table::texts(HEADER, rows))?;
    }
    out.finish()
}
