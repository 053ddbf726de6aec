//! `percolite get`: prints the values of keys.

use std::ffi::OsString;

use anyhow::Result;
use percolite::{Store, Txn};

use crate::at::AtArgs;
use crate::encoding::{Encoding, EncodingArgs, Encodings, write_value_fields};
use crate::exit::Code;
use crate::open::StoreDir;
use crate::output::LineWriter;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite get shop fruit apple                  the value and a line end
  percolite get shop fruit apple pear             one value a line
  percolite get --raw shop photos cat > cat.jpg   the exact bytes of the value
  percolite get --key-encoding hex shop ids 00ff  a binary key
  percolite get --at 1h shop fruit apple          the value of an hour ago (see: retention)
  percolite get --json shop fruit apple           {\"key\":\"apple\",\"value\":\"red\"}
  percolite get --value-encoding json shop people ada | jq .name

A missing key is reported on standard error, and the exit code is 3. With --json its value is null; with \
--value-encoding json as well there is no value field. See `percolite scan --help` for --value-encoding json.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    get: GetArgs,
}

/// The arguments of `get` on the command line and in the shell.
#[derive(clap::Args)]
pub struct GetArgs {
    /// The keyspace
    keyspace: String,
    /// The keys
    #[arg(required = true, value_name = "KEY", allow_negative_numbers = true)]
    key: Vec<OsString>,
    /// Print the exact bytes of the value, without a line end
    #[arg(long, conflicts_with_all = ["json", "value_encoding"])]
    raw: bool,
    #[command(flatten)]
    at: AtArgs,
    #[command(flatten)]
    pub encodings: EncodingArgs,
    /// Print JSON lines: {"key": …, "value": …}
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let get = &args.get;
    let encodings = get.encodings.get();
    let keys = get.keys(encodings)?;
    let store = args.store.open_read_only()?;
    let mut missing = Vec::new();
    get.print(&store, None, &keys, encodings, &mut |key, _| {
        missing.push(format!("{:?}", encodings.keys.display(key)));
        Ok(())
    })?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(Code::NotFound.error(format!("not found in the keyspace {:?}: {}", get.keyspace, missing.join(", "))))
}

/// Called for each missing key.
type OnMissing<'a> = dyn FnMut(&[u8], &mut LineWriter) -> Result<()> + 'a;

impl GetArgs {
    /// The decoded keys.
    pub fn keys(&self, encodings: Encodings) -> Result<Vec<Vec<u8>>> {
        self.key.iter().map(|key| encodings.keys.decode_arg(key)).collect()
    }

    /// Prints the values; if a transaction is open, those that it sees.
    pub fn print(
        &self,
        store: &Store,
        txn: Option<&Txn>,
        keys: &[Vec<u8>],
        encodings: Encodings,
        on_missing: &mut OnMissing<'_>,
    ) -> Result<()> {
        let (source, keyspace) = self.at.source(store, txn, &self.keyspace)?;
        let mut out = LineWriter::new();
        for key in keys {
            let value = source.get(&keyspace, key)?;
            let mut line = Vec::new();
            match &value {
                _ if self.json => {
                    line.extend_from_slice(b"{\"key\":");
                    encodings.keys.write_json(key, &mut line);
                    write_value_fields(encodings.values, value.as_deref(), &mut line);
                    line.extend_from_slice(b"}\n");
                }
                Some(value) if self.raw => line.extend_from_slice(value),
                Some(value) => {
                    match encodings.values {
                        Encoding::Text => line.extend_from_slice(value),
                        encoding => encoding.write_column(value, &mut line),
                    }
                    line.push(b'\n');
                }
                None => {}
            }
            out.write_bytes(&line)?;
            if value.is_none() {
                on_missing(key, &mut out)?;
            }
        }
        out.finish()
    }
}
