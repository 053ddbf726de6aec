//! `percolite get`: values of keys.

use std::ffi::OsString;

use anyhow::Result;
use serde_json::json;

use crate::bytes::{Form, Forms};
use crate::exit::Code;
use crate::moment::Moment;
use crate::open::Folder;
use crate::output::{say, say_bytes};

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

A key that is not there is told on standard error, and the exit code is 3. With --json its value is null.")]
pub struct Args {
    #[command(flatten)]
    store: Folder,
    /// The keyspace
    keyspace: String,
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    key: Vec<OsString>,
    /// The value as it is, without a line end
    #[arg(long, conflicts_with_all = ["json", "values"])]
    raw: bool,
    #[command(flatten)]
    moment: Moment,
    #[command(flatten)]
    forms: Forms,
    /// JSON lines: {"key": …, "value": …}
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let keys: Vec<_> = args.key.iter().map(|key| args.forms.keys.read(key)).collect::<Result<_>>()?;
    let store = args.store.look()?;
    let snapshot = args.moment.snapshot(&store)?;
    let keyspace = args.moment.keyspace(&store, &snapshot, &args.keyspace)?;
    let mut missing = Vec::new();
    for key in &keys {
        let value = snapshot.get(&keyspace, key)?;
        if value.is_none() {
            missing.push(format!("{:?}", args.forms.keys.show(key)));
        }
        if args.json {
            let value = value.map(|value| args.forms.values.json(&value));
            say(json!({ "key": args.forms.keys.json(key), "value": value }))?;
        } else if let Some(mut value) = value {
            if !args.raw {
                if args.forms.values != Form::Text {
                    value = args.forms.values.show(&value).into_bytes();
                }
                value.push(b'\n');
            }
            say_bytes(&value)?;
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Code::Missing.error(format!("not in the keyspace {:?}: {}", args.keyspace, missing.join(", "))))
}
