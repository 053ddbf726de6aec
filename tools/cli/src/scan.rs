//! `percolite scan`: rows in order.

use std::ffi::OsString;
use std::ops::Bound;

use anyhow::Result;
use percolite::Scan;
use serde_json::json;

use crate::bytes::Forms;
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::moment::Moment;
use crate::open::Folder;
use crate::output::{Lines, say};
use crate::table;

/// So many rows are laid out as one table; those of the next are as wide as they need to be.
const TABLE_ROWS: usize = 500;
/// What people see of a value.
const SHOWN_CHARS: usize = 400;

/// The command's options.
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite scan shop fruit                       every row
  percolite scan shop fruit --from b --to d       keys from b up to, and without, d
  percolite scan shop fruit --prefix app          keys that begin with app
  percolite scan shop fruit --reverse --limit 10  the last ten
  percolite scan shop fruit --at 2026-11-21T14:00 what there was then (see: percolite history)
  percolite scan shop fruit --count               how many there are
  percolite scan shop fruit --json > fruit.jsonl  JSON lines, which load reads back

The rows are those of one moment.")]
pub struct Args {
    #[command(flatten)]
    store: Folder,
    /// The keyspace
    keyspace: String,
    /// The first key
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// The key that is not shown any more
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// What keys begin with
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
    /// From the last key to the first
    #[arg(long)]
    reverse: bool,
    /// At most so many rows
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Leave the values out
    #[arg(long)]
    keys_only: bool,
    /// Only how many rows there are
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    moment: Moment,
    #[command(flatten)]
    forms: Forms,
    /// JSON lines: {"key": …, "value": …}
    #[arg(long)]
    json: bool,
}

type Row = (Vec<u8>, Vec<u8>);

pub fn run(args: &Args) -> Result<()> {
    let read = |key: &Option<OsString>| key.as_ref().map(|key| args.forms.keys.read(key)).transpose();
    let (from, to, prefix) = (read(&args.from)?, read(&args.to)?, read(&args.prefix)?);
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        return Err(Code::Usage.error("--from lies behind --to: they name the range from below, in either direction"));
    }
    let interrupt = Interrupt::watch()?;
    let store = args.store.look()?;
    let snapshot = args.moment.snapshot(&store)?;
    let keyspace = args.moment.keyspace(&store, &snapshot, &args.keyspace)?;
    let rows = if let Some(prefix) = prefix {
        snapshot.prefix(&keyspace, prefix)
    } else {
        let from = from.map_or(Bound::Unbounded, Bound::Included);
        snapshot.range(&keyspace, (from, to.map_or(Bound::Unbounded, Bound::Excluded)))
    };
    let rows = in_order(rows, args.reverse).take(args.limit.unwrap_or(usize::MAX));
    if args.count {
        let mut count = 0_u64;
        for row in rows {
            interrupt.check("the rows were not counted to the end")?;
            row?;
            count += 1;
        }
        return if args.json { say(json!({ "rows": count })) } else { say(count) };
    }
    show(args, rows, &interrupt)
}

fn in_order(rows: Scan, reverse: bool) -> Box<dyn Iterator<Item = percolite::Result<Row>>> {
    if reverse { Box::new(rows.rev()) } else { Box::new(rows) }
}

fn show(args: &Args, rows: impl Iterator<Item = percolite::Result<Row>>, interrupt: &Interrupt) -> Result<()> {
    let mut out = Lines::new();
    let mut page: Vec<Row> = Vec::new();
    for row in rows {
        if interrupt.is_wanted() {
            out.finish()?;
            return interrupt.check("these are not all rows");
        }
        let (key, value) = row?;
        if args.json {
            let key = args.forms.keys.json(&key);
            out.say(if args.keys_only {
                json!({ "key": key })
            } else {
                json!({ "key": key, "value": args.forms.values.json(&value) })
            })?;
            continue;
        }
        page.push((key, value));
        if page.len() == TABLE_ROWS {
            out.say(table_of(args, &std::mem::take(&mut page)))?;
        }
    }
    if !page.is_empty() {
        out.say(table_of(args, &page))?;
    }
    out.finish()
}

fn table_of(args: &Args, rows: &[Row]) -> String {
    let value = |value: &[u8]| table::shorten(&args.forms.values.show(value), SHOWN_CHARS);
    if args.keys_only {
        return table::texts(["key"], rows.iter().map(|(key, _)| [args.forms.keys.show(key)]).collect());
    }
    table::texts(["key", "value"], rows.iter().map(|(key, v)| [args.forms.keys.show(key), value(v)]).collect())
}
