//! `percolite put`: sets values, in one transaction.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use percolite::{Keyspace, MAX_VALUE_BYTES, Txn};
use serde_json::json;

use crate::encoding::{Encoding, EncodingArgs, Encodings};
use crate::exit::Code;
use crate::open::{self, StoreDir};
use crate::output::{count, print_line};
use crate::text_input::{TextStream, file_argument, input_name};
use crate::tuning::Tuning;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite put --create shop fruit apple red           creates store and keyspace if missing
  percolite put shop fruit apple green pear yellow      two rows, atomically
  percolite put shop photos cat --value-file cat.jpg    the content of a file; - is standard input
  percolite put --key-encoding hex shop ids 00ff one    a binary key
  percolite put --value-encoding json shop people ada '{\"born\": 1815}'
                                                        must be valid JSON, stored verbatim

The rows are durable when the command returns.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    put: PutArgs,
    /// Create the store and the keyspace if they do not exist
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    tuning: Tuning,
}

/// The arguments of `put` on the command line and in the shell.
#[derive(clap::Args)]
pub struct PutArgs {
    /// The keyspace
    pub keyspace: String,
    /// Keys, each followed by its value
    #[arg(required = true, value_name = "KEY VALUE", allow_negative_numbers = true)]
    pairs: Vec<OsString>,
    /// Read the value of the only key from this file, - is standard input: its bytes; only
    /// --value-encoding json reads it as text
    #[arg(long, value_name = "FILE")]
    value_file: Option<PathBuf>,
    #[command(flatten)]
    pub encodings: EncodingArgs,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let put_args = &args.put;
    let rows = put_args.rows(put_args.encodings.get())?;
    let store = args.store.open_tuned(args.create, &args.tuning)?;
    let keyspace = open::keyspace_to_write(&store, &put_args.keyspace, args.create)?;
    store.transact(|txn| put(txn, &keyspace, &rows))?;
    open::close_after_cleanup(store)?;
    if put_args.json {
        return print_line(json!({ "put": rows.len() }));
    }
    print_line(format_args!("{} put", count(rows.len() as u64, "row")))
}

type Row = (Vec<u8>, Vec<u8>);

/// Puts the rows.
pub fn put(txn: &mut Txn, keyspace: &Keyspace, rows: &[Row]) -> percolite::Result<()> {
    rows.iter().try_for_each(|(key, value)| txn.put(keyspace, key, value))
}

impl PutArgs {
    pub fn reads_standard_input(&self) -> bool {
        self.value_file.as_ref().is_some_and(|file| file.as_os_str() == "-")
    }

    /// The rows; a key that is given twice is an error.
    pub fn rows(&self, encodings: Encodings) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        match (&self.value_file, self.pairs.as_slice()) {
            (Some(file), [key]) => {
                rows.push((encodings.keys.decode_arg(key)?, read_value_file(file, encodings.values)?));
            }
            (Some(_), _) => {
                return Err(Code::Usage.error("--value-file is for one key: put STORE KEYSPACE KEY --value-file FILE"));
            }
            (None, pairs) => {
                for pair in pairs.chunks(2) {
                    let [key, value] = pair else {
                        return Err(Code::Usage.error(format!(
                            "the key {:?} has no value",
                            pairs.last().map(|key| key.to_string_lossy()).unwrap_or_default()
                        )));
                    };
                    rows.push((encodings.keys.decode_arg(key)?, encodings.values.decode_arg(value)?));
                }
            }
        }
        let mut seen = HashSet::new();
        match rows.iter().find(|(key, _)| !seen.insert(key.as_slice())) {
            Some((key, _)) => {
                Err(Code::Usage.error(format!("the key {:?} is given twice", encodings.keys.display(key))))
            }
            None => Ok(rows),
        }
    }
}

/// The value in a file: its bytes, since encodings are for arguments. With the encoding JSON the
/// file is text, and is checked and trimmed like an argument.
fn read_value_file(file: &Path, encoding: Encoding) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", input_name(file));
    let stream: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(file).with_context(cannot)?)
    };
    let is_json = encoding == Encoding::Json;
    let stream: Box<dyn Read> = if is_json { Box::new(TextStream::new(stream, file_argument(file))) } else { stream };
    let mut value = Vec::new();
    // The input may be endless, so reading stops one byte beyond the limit: enough to reject the
    // value.
    stream.take(MAX_VALUE_BYTES as u64 + 1).read_to_end(&mut value).with_context(cannot)?;
    if value.len() > MAX_VALUE_BYTES {
        let message = format!("{} has more than {MAX_VALUE_BYTES} bytes, the limit of a value", input_name(file));
        return Err(Code::Failed.error(message));
    }
    if is_json { Encoding::Json.decode_arg(OsStr::from_bytes(&value)) } else { Ok(value) }
}
