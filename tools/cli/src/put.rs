//! `percolite put`: sets values, in one transaction.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use percolite::{Keyspace, MAX_VALUE_BYTES, Txn};
use serde_json::json;

use crate::bytes::{Form, FormArgs, Forms};
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
  percolite put --values json shop people ada '{\"born\": 1815}'
                                                        refused unless it is JSON, and kept as given

It returns when the rows would survive a power cut.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    #[command(flatten)]
    what: What,
    /// Make the store and the keyspace if they are not there
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    tuning: Tuning,
}

/// What is put.
#[derive(clap::Args)]
pub struct What {
    /// The keyspace
    pub keyspace: String,
    /// Keys, each with its value behind it
    #[arg(required = true, value_name = "KEY VALUE", allow_negative_numbers = true)]
    pairs: Vec<OsString>,
    /// The value of the only key is what this file holds; - is standard input
    #[arg(long, value_name = "FILE")]
    value_from: Option<PathBuf>,
    #[command(flatten)]
    pub forms: FormArgs,
    /// One JSON document
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let what = &args.what;
    let rows = what.rows(what.forms.get())?;
    let store = args.store.write_tuned(args.create, &args.tuning)?;
    let keyspace = open::keyspace_to_write(&store, &what.keyspace, args.create)?;
    store.transact(|txn| put(txn, &keyspace, &rows))?;
    open::finish(store)?;
    if what.json {
        return say(json!({ "put": rows.len() }));
    }
    say(format_args!("{} put", count(rows.len() as u64, "row")))
}

type Row = (Vec<u8>, Vec<u8>);

/// Puts these rows.
pub fn put(txn: &mut Txn, keyspace: &Keyspace, rows: &[Row]) -> percolite::Result<()> {
    rows.iter().try_for_each(|(key, value)| txn.put(keyspace, key, value))
}

impl What {
    /// The rows, no two of the same key.
    pub fn rows(&self, forms: Forms) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        match (&self.value_from, self.pairs.as_slice()) {
            (Some(file), [key]) => {
                let content = read(file)?;
                // The form of values is that of arguments; but what is to be JSON must be some.
                let value = match forms.values {
                    Form::Json => Form::Json.read(OsStr::from_bytes(&content))?,
                    _ => content,
                };
                rows.push((forms.keys.read(key)?, value));
            }
            (Some(_), _) => {
                return Err(Code::Usage.error("--value-from is for one key: put STORE KEYSPACE KEY --value-from FILE"));
            }
            (None, pairs) => {
                for pair in pairs.chunks(2) {
                    let [key, value] = pair else {
                        return Err(Code::Usage.error(format!(
                            "the key {:?} has no value behind it",
                            pairs.last().map(|key| key.to_string_lossy()).unwrap_or_default()
                        )));
                    };
                    rows.push((forms.keys.read(key)?, forms.values.read(value)?));
                }
            }
        }
        let mut seen = HashSet::new();
        match rows.iter().find(|(key, _)| !seen.insert(key.as_slice())) {
            Some((key, _)) => Err(Code::Usage.error(format!("the key {:?} is named twice", forms.keys.show(key)))),
            None => Ok(rows),
        }
    }
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
    stream.take(MAX_VALUE_BYTES as u64 + 1).read_to_end(&mut value).with_context(cannot)?;
    if value.len() > MAX_VALUE_BYTES {
        let what = format!("{} has more than {MAX_VALUE_BYTES} bytes, the limit of a value", file.display());
        return Err(Code::Failed.error(what));
    }
    Ok(value)
}
