//! `percolite get`: values of keys.

use std::ffi::OsString;

use anyhow::Result;
use percolite::{Store, Txn};

use crate::bytes::{Form, FormArgs, Forms, value_fields};
use crate::exit::Code;
use crate::moment::Moment;
use crate::open::Folder;
use crate::output::Lines;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite get shop fruit apple                the value and a line end
  percolite get shop fruit apple pear           several, one a line
  percolite get --raw shop photos cat > cat.jpg the value alone, to the byte
  percolite get --keys hex shop ids 00ff        a key that is no text
  percolite get --at 1h shop fruit apple        what it was an hour ago (see: percolite history)
  percolite get --json shop fruit apple         {\"key\":\"apple\",\"value\":\"red\"}
  percolite get --values json shop people ada | jq .name

A key that is not there is told on standard error, and the exit code is 3. With --json its value is null, and with --values json, \
too, it has none. What --values json makes of values says `percolite scan --help`.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    #[command(flatten)]
    what: What,
}

/// What is asked for.
#[derive(clap::Args)]
pub struct What {
    /// The keyspace
    keyspace: String,
    /// The keys
    #[arg(required = true, value_name = "KEY", allow_negative_numbers = true)]
    key: Vec<OsString>,
    /// The value as it is, without a line end
    #[arg(long, conflicts_with_all = ["json", "values"])]
    raw: bool,
    #[command(flatten)]
    moment: Moment,
    #[command(flatten)]
    pub forms: FormArgs,
    /// JSON lines: {"key": …, "value": …}
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let what = &args.what;
    let forms = what.forms.get();
    let keys = what.keys(forms)?;
    let store = args.store.look()?;
    let mut missing = Vec::new();
    what.show(&store, None, &keys, forms, &mut |key, _| {
        missing.push(format!("{:?}", forms.keys.show(key)));
        Ok(())
    })?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(Code::Missing.error(format!("not in the keyspace {:?}: {}", what.keyspace, missing.join(", "))))
}

/// What is done about a key that is not there.
type Missing<'a> = dyn FnMut(&[u8], &mut Lines) -> Result<()> + 'a;

impl What {
    /// The keys that are asked for.
    pub fn keys(&self, forms: Forms) -> Result<Vec<Vec<u8>>> {
        self.key.iter().map(|key| forms.keys.read(key)).collect()
    }

    /// Shows the values, as the open transaction sees them if there is one.
    pub fn show(
        &self,
        store: &Store,
        txn: Option<&Txn>,
        keys: &[Vec<u8>],
        forms: Forms,
        missing: &mut Missing<'_>,
    ) -> Result<()> {
        let (view, keyspace) = self.moment.view(store, txn, &self.keyspace)?;
        let mut out = Lines::new();
        for key in keys {
            let value = view.get(&keyspace, key)?;
            let mut line = Vec::new();
            match &value {
                _ if self.json => {
                    line.extend_from_slice(b"{\"key\":");
                    forms.keys.json(key, &mut line);
                    value_fields(forms.values, value.as_deref(), &mut line);
                    line.extend_from_slice(b"}\n");
                }
                Some(value) if self.raw => line.extend_from_slice(value),
                Some(value) => {
                    match forms.values {
                        Form::Text => line.extend_from_slice(value),
                        form => form.plain(value, &mut line),
                    }
                    line.push(b'\n');
                }
                None => {}
            }
            out.bytes(&line)?;
            if value.is_none() {
                missing(key, &mut out)?;
            }
        }
        out.finish()
    }
}
