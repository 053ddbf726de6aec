//! `percolite delete`: removes rows, in one transaction.

use std::ffi::OsString;
use std::ops::Bound;

use anyhow::Result;
use serde_json::json;

use crate::bytes::Forms;
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, Folder};
use crate::output::{count, say};
use crate::progress::Progress;
use crate::tuning::Tuning;

/// So many rows are met between two looks at the progress bar.
const ROWS_UNTOLD: u64 = 1024;
/// Of one that was interrupted.
const NOTHING: &str =
    "nothing was deleted, and rows that are still locked are let go when the store is next opened for writing";

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite delete shop fruit apple            one row
  percolite delete shop fruit apple pear       both at once
  percolite delete --if-there shop fruit kiwi  no error if it is not there
  percolite delete shop fruit --prefix 2024-   every row whose key begins so, all at once
  percolite delete shop fruit --from a --to c  every row from a up to, and without, c
  percolite keyspaces shop --truncate fruit    every row there is

If any of the named keys is not there nothing is deleted, and the exit code is 3. Nothing is deleted either where Ctrl-C comes first.")]
pub struct Args {
    #[command(flatten)]
    store: Folder,
    /// The keyspace
    keyspace: String,
    /// The keys
    #[arg(required_unless_present_any = ["from", "to", "prefix"], conflicts_with_all = ["from", "to", "prefix"], value_name = "KEY")]
    key: Vec<OsString>,
    /// Rows from this key on
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Rows before this key
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Rows whose keys begin so
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
    /// Delete those that are there
    #[arg(long)]
    if_there: bool,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    forms: Forms,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let keys: Vec<_> = args.key.iter().map(|key| args.forms.keys.read(key)).collect::<Result<_>>()?;
    let optional = |key: &Option<OsString>| key.as_ref().map(|key| args.forms.keys.read(key)).transpose();
    let (from, to, prefix) = (optional(&args.from)?, optional(&args.to)?, optional(&args.prefix)?);
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        return Err(Code::Usage.error("--from lies behind --to"));
    }
    let interrupt = Interrupt::watch()?;
    let store = args.store.write_tuned(false, &args.tuning)?;
    let keyspace = open::keyspace(&store, &args.keyspace, false)?;
    let progress = Progress::of_rows();
    let deleted = store.transact(|txn| {
        let mut deleted = 0;
        if keys.is_empty() {
            let start = from.as_ref().map_or(Bound::Unbounded, Bound::Included);
            let end = to.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let rows = match &prefix {
                Some(prefix) => txn.prefix(&keyspace, prefix),
                None => txn.range(&keyspace, (start, end)),
            };
            // One by one, where the library has a call for all of them, because that one cannot be interrupted.
            for row in rows {
                interrupt.check(NOTHING)?;
                txn.delete(&keyspace, row?.0)?;
                deleted += 1;
                if deleted % ROWS_UNTOLD == 0 {
                    progress.at(deleted, format!("{} met, none deleted yet", count(deleted, "row")));
                }
            }
            return Ok(deleted);
        }
        for key in &keys {
            if txn.get_for_update(&keyspace, key)?.is_some() {
                txn.delete(&keyspace, key)?;
                deleted += 1;
            } else if !args.if_there {
                let key = args.forms.keys.show(key);
                let what = format!("{key:?} is not in the keyspace {:?}, so nothing was deleted", args.keyspace);
                return Err(Code::Missing.error(what));
            }
        }
        Ok::<u64, anyhow::Error>(deleted)
    })?;
    drop(progress);
    open::finish(store)?;
    if args.json {
        return say(json!({ "deleted": deleted }));
    }
    say(format_args!("{} deleted", count(deleted, "row")))
}
