//! `percolite put`: sets values, in one transaction.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use percolite::VALUE_MAX_BYTES;
use serde_json::json;

use crate::bytes::Forms;
use crate::exit::Code;
use crate::open::{self, Folder};
use crate::output::{count, say};
use crate::tuning::Tuning;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite put --create shop fruit apple red           makes store and keyspace, if need be
  percolite put shop fruit apple green pear yellow      two rows at once, both or none
  percolite put shop photos cat --value-from cat.jpg    a file's content; - is standard input
  percolite put --keys hex shop ids 00ff one            a key that is no text

It returns when the rows would survive a power cut.")]
pub struct Args {
    #[command(flatten)]
    store: Folder,
    /// The keyspace
    keyspace: String,
    /// Keys, each with its value behind it
    #[arg(required = true, value_name = "KEY VALUE")]
    pairs: Vec<OsString>,
    /// The value of the only key is what this file holds; - is standard input
    #[arg(long, value_name = "FILE")]
    value_from: Option<PathBuf>,
    /// Make the store and the keyspace if they are not there
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    forms: Forms,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let mut rows = Vec::new();
    match (&args.value_from, args.pairs.as_slice()) {
        (Some(file), [key]) => rows.push((args.forms.keys.read(key)?, read(file)?)),
        (Some(_), _) => {
            return Err(Code::Usage.error("--value-from is for one key: put STORE KEYSPACE KEY --value-from FILE"));
        }
        (None, pairs) => {
            for pair in pairs.chunks(2) {
                let [key, value] = pair else {
                    return Err(Code::Usage.error(format!(
                        "the key {:?} has no value behind it",
                        args.pairs.last().map(|key| key.to_string_lossy()).unwrap_or_default()
                    )));
                };
                rows.push((args.forms.keys.read(key)?, args.forms.values.read(value)?));
            }
        }
    }
    let mut seen = HashSet::new();
    if let Some((key, _)) = rows.iter().find(|(key, _)| !seen.insert(key.as_slice())) {
        return Err(Code::Usage.error(format!("the key {:?} is named twice", args.forms.keys.show(key))));
    }
    let store = args.store.write_tuned(args.create, &args.tuning)?;
    let keyspace = open::keyspace_to_write(&store, &args.keyspace, args.create)?;
    store.transact(|txn| rows.iter().try_for_each(|(key, value)| txn.put(&keyspace, key, value)))?;
    open::finish(store)?;
    if args.json {
        return say(json!({ "put": rows.len() }));
    }
    say(format_args!("{} put", count(rows.len() as u64, "row")))
}

fn read(file: &PathBuf) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", file.display());
    let stream: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(file).with_context(cannot)?)
    };
    let mut value = Vec::new();
    // One byte more tells that it is too long, however long it is.
    stream.take(VALUE_MAX_BYTES as u64 + 1).read_to_end(&mut value).with_context(cannot)?;
    if value.len() > VALUE_MAX_BYTES {
        let what = format!("{} has more than {VALUE_MAX_BYTES} bytes, the limit of a value", file.display());
        return Err(Code::Failed.error(what));
    }
    Ok(value)
}
