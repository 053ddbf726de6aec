//! `percolite delete`: removes rows, in one transaction.

use std::collections::BTreeSet;
use std::ffi::OsString;

use anyhow::Result;
use percolite::{Keyspace, Txn};
use serde_json::json;

use crate::bytes::{FormArgs, Forms};
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, Folder};
use crate::output::{count, say};
use crate::progress::Progress;
use crate::range::{Range, Rows};
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
    pub store: Folder,
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    tuning: Tuning,
}

/// What is removed.
#[derive(clap::Args)]
pub struct What {
    /// The keyspace
    pub keyspace: String,
    /// The keys
    #[arg(required_unless_present_any = ["from", "to", "prefix"], conflicts_with_all = ["from", "to", "prefix"], value_name = "KEY", allow_negative_numbers = true)]
    key: Vec<OsString>,
    #[command(flatten)]
    range: Range,
    /// Delete those that are there
    #[arg(long)]
    if_there: bool,
    #[command(flatten)]
    pub forms: FormArgs,
    /// One JSON document
    #[arg(long)]
    pub json: bool,
}

/// The rows that are meant.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    Keys(Vec<Vec<u8>>),
    Rows(Rows),
}

pub fn run(args: &Args) -> Result<()> {
    let what = &args.what;
    let forms = what.forms.get();
    let wanted = what.wanted(forms)?;
    let interrupt = Interrupt::watch()?;
    let store = args.store.write_tuned(false, &args.tuning)?;
    let keyspace = open::keyspace(&store, &what.keyspace, false)?;
    let deleted = store.transact(|txn| what.delete(txn, &keyspace, &wanted, forms, &interrupt))?;
    open::finish(store)?;
    what.tell(deleted)
}

impl What {
    pub fn wanted(&self, forms: Forms) -> Result<Wanted> {
        if self.key.is_empty() {
            return Ok(Wanted::Rows(self.range.rows(forms.keys)?));
        }
        Ok(Wanted::Keys(self.key.iter().map(|key| forms.keys.read(key)).collect::<Result<_>>()?))
    }

    /// Removes the rows. The answer is how many there were. After an error nothing is removed.
    pub fn delete(
        &self,
        txn: &mut Txn,
        keyspace: &Keyspace,
        wanted: &Wanted,
        forms: Forms,
        interrupt: &Interrupt,
    ) -> Result<u64> {
        let keys = match wanted {
            Wanted::Rows(rows) => return delete_rows(txn, keyspace, rows, interrupt),
            Wanted::Keys(keys) => keys,
        };
        let mut there = BTreeSet::new();
        for key in keys {
            if txn.get_for_update(keyspace, key)?.is_some() {
                there.insert(key);
            } else if !self.if_there {
                let key = forms.keys.show(key);
                let what = format!("{key:?} is not in the keyspace {:?}, so nothing was deleted", self.keyspace);
                return Err(Code::Missing.error(what));
            }
        }
        there.iter().try_for_each(|key| txn.delete(keyspace, key))?;
        Ok(there.len() as u64)
    }

    /// Says how many there were.
    pub fn tell(&self, deleted: u64) -> Result<()> {
        if self.json {
            return say(json!({ "deleted": deleted }));
        }
        say(format_args!("{} deleted", count(deleted, "row")))
    }
}

fn delete_rows(txn: &mut Txn, keyspace: &Keyspace, rows: &Rows, interrupt: &Interrupt) -> Result<u64> {
    let scan = |txn: &Txn| match rows {
        Rows::Prefix(prefix) => txn.prefix(keyspace, prefix),
        Rows::Between(..) => txn.range(keyspace, rows.bounds()),
    };
    let progress = Progress::of("rows");
    // Only for whoever watches: it takes a tenth of the time or so.
    if progress.is_seen() {
        let mut total = 0;
        let counted = scan(txn).visit(|_, _| {
            total += 1;
            interrupt.flow()
        });
        let _ = counted?;
        progress.expect(total, "");
    }
    let mut deleted = 0;
    // One by one, where the library has a call for all of them, because that one cannot be interrupted.
    for row in scan(txn) {
        interrupt.check(NOTHING)?;
        txn.delete(keyspace, row?.0)?;
        deleted += 1;
        if deleted % ROWS_UNTOLD == 0 {
            progress.at(deleted, "rows met, none deleted yet");
        }
    }
    Ok(deleted)
}
