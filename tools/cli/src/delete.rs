//! `percolite delete`: deletes rows, in one transaction.

use std::collections::BTreeSet;
use std::ffi::OsString;

use anyhow::Result;
use percolite::{Keyspace, Txn};
use serde_json::json;

use crate::encoding::{EncodingArgs, Encodings};
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, StoreDir};
use crate::output::{count, print_line};
use crate::progress::Progress;
use crate::range::{KeySelection, RangeArgs};
use crate::tuning::Tuning;

/// The progress bar is updated after this many rows.
const PROGRESS_EVERY: u64 = 1024;
const INTERRUPTED_NOTE: &str =
    "nothing was deleted; remaining row locks are released when the store is next opened for writing";

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite delete shop fruit apple             one row
  percolite delete shop fruit apple pear        two rows, atomically
  percolite delete --if-exists shop fruit kiwi  a missing key is no error
  percolite delete shop fruit --prefix 2024-    all rows with this key prefix
  percolite delete shop fruit --from a --to c   all rows from a (inclusive) to c (exclusive)
  percolite keyspaces shop --truncate fruit     all rows of the keyspace

If one of the keys does not exist, nothing is deleted and the exit code is 3. Nothing is deleted after an interrupt.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    delete: DeleteArgs,
    #[command(flatten)]
    tuning: Tuning,
}

/// The arguments of `delete` on the command line and in the shell.
#[derive(clap::Args)]
pub struct DeleteArgs {
    /// The keyspace
    pub keyspace: String,
    /// The keys
    #[arg(value_name = "KEY", allow_negative_numbers = true)]
    #[arg(required_unless_present_any = ["from", "to", "prefix"], conflicts_with_all = ["from", "to", "prefix"])]
    key: Vec<OsString>,
    #[command(flatten)]
    range: RangeArgs,
    /// Ignore missing keys
    #[arg(long)]
    if_exists: bool,
    #[command(flatten)]
    pub encodings: EncodingArgs,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// The rows to delete.
#[derive(Debug, PartialEq, Eq)]
pub enum DeleteTarget {
    Keys(Vec<Vec<u8>>),
    Rows(KeySelection),
}

pub fn run(args: &Args) -> Result<()> {
    let delete = &args.delete;
    let encodings = delete.encodings.get();
    let target = delete.target(encodings)?;
    let interrupt = Interrupt::watch()?;
    let store = args.store.open_tuned(false, &args.tuning)?;
    let keyspace = open::keyspace(&store, &delete.keyspace, false)?;
    let deleted = store.transact(|txn| delete.delete(txn, &keyspace, &target, encodings, &interrupt))?;
    open::close_after_cleanup(store)?;
    delete.print_deleted(deleted)
}

impl DeleteArgs {
    pub fn target(&self, encodings: Encodings) -> Result<DeleteTarget> {
        if self.key.is_empty() {
            return Ok(DeleteTarget::Rows(self.range.selection(encodings.keys)?));
        }
        Ok(DeleteTarget::Keys(self.key.iter().map(|key| encodings.keys.decode_arg(key)).collect::<Result<_>>()?))
    }

    /// Deletes the rows and returns their number. After an error the caller must roll back, because
    /// some of the rows may have been deleted in `txn`.
    pub fn delete(
        &self,
        txn: &mut Txn,
        keyspace: &Keyspace,
        target: &DeleteTarget,
        encodings: Encodings,
        interrupt: &Interrupt,
    ) -> Result<u64> {
        let keys = match target {
            DeleteTarget::Rows(rows) => return delete_rows(txn, keyspace, rows, interrupt),
            DeleteTarget::Keys(keys) => keys,
        };
        let mut existing = BTreeSet::new();
        for key in keys {
            if txn.get_for_update(keyspace, key)?.is_some() {
                existing.insert(key);
            } else if !self.if_exists {
                let key = encodings.keys.display(key);
                let message = format!("{key:?} is not in the keyspace {:?}; nothing was deleted", self.keyspace);
                return Err(Code::NotFound.error(message));
            }
        }
        existing.iter().try_for_each(|key| txn.delete(keyspace, key))?;
        Ok(existing.len() as u64)
    }

    /// Prints the number of deleted rows.
    pub fn print_deleted(&self, deleted: u64) -> Result<()> {
        if self.json {
            return print_line(json!({ "deleted": deleted }));
        }
        print_line(format_args!("{} deleted", count(deleted, "row")))
    }
}

fn delete_rows(txn: &mut Txn, keyspace: &Keyspace, rows: &KeySelection, interrupt: &Interrupt) -> Result<u64> {
    let scan = |txn: &Txn| match rows {
        KeySelection::Prefix(prefix) => txn.prefix(keyspace, prefix),
        KeySelection::Range(..) => txn.range(keyspace, rows.bounds()),
    };
    let progress = Progress::items("rows");
    // Counting takes about a tenth of the time of the deletion, so the rows are counted only for a
    // visible progress bar.
    if progress.is_visible() {
        let mut total = 0;
        let counted = scan(txn).visit(|_, _| {
            total += 1;
            interrupt.control_flow()
        });
        let _ = counted?;
        progress.expect(total, "");
    }
    let mut deleted = 0;
    // Rows are deleted one by one, because the library's call for a whole range cannot be
    // interrupted.
    for row in scan(txn) {
        interrupt.check(INTERRUPTED_NOTE)?;
        txn.delete(keyspace, row?.key())?;
        deleted += 1;
        if deleted % PROGRESS_EVERY == 0 {
            progress.set(deleted, "rows scanned");
        }
    }
    Ok(deleted)
}
