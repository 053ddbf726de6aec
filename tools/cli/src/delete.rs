//! `percolite delete`: removes rows, in one transaction.

use std::ffi::OsString;

use anyhow::Result;
use serde_json::json;

use crate::bytes::Forms;
use crate::exit::Code;
use crate::open::{self, Folder};
use crate::output::{count, say};

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite delete shop fruit apple            one row
  percolite delete shop fruit apple pear       both at once
  percolite delete --if-there shop fruit kiwi  no error if it is not there
  percolite keyspaces shop --drop fruit        a whole keyspace

If any of the keys is not there nothing is deleted, and the exit code is 3.")]
pub struct Args {
    #[command(flatten)]
    store: Folder,
    /// The keyspace
    keyspace: String,
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    key: Vec<OsString>,
    /// Delete those that are there
    #[arg(long)]
    if_there: bool,
    #[command(flatten)]
    forms: Forms,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let keys: Vec<_> = args.key.iter().map(|key| args.forms.keys.read(key)).collect::<Result<_>>()?;
    let store = args.store.write(false)?;
    let keyspace = open::keyspace(&store, &args.keyspace, false)?;
    let deleted = store.transact(|txn| {
        let mut deleted = 0;
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
    store.close()?;
    if args.json {
        return say(json!({ "deleted": deleted }));
    }
    say(format_args!("{} deleted", count(deleted, "row")))
}
