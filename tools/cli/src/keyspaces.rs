//! `percolite keyspaces`: lists, makes, renames, empties and drops them.

use anyhow::Result;
use percolite::Store;
use serde_json::json;

use crate::bytes::Form;
use crate::interrupt::Interrupt;
use crate::open::{self, Folder};
use crate::output::{is_for_people, say};
use crate::table;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite keyspaces shop                 their names and numbers
  percolite keyspaces shop --count         with the number of their rows, which takes reading them
  percolite keyspaces shop --create fruit  makes one, and the store if there is none
  percolite keyspaces shop --drop fruit    drops one and all its rows
  percolite keyspaces shop --truncate fruit
                                           removes all its rows at once, however many
  percolite keyspaces shop --rename fruit berries

Without a terminal a keyspace is a plain line, with a tab between name, number and the number of rows.")]
#[command(group = clap::ArgGroup::new("change").args(["create", "drop", "truncate", "rename"]))]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    /// Make one of this name
    #[arg(long, value_name = "NAME")]
    create: Option<String>,
    /// Drop the one of this name, with all its rows
    #[arg(long, value_name = "NAME")]
    drop: Option<String>,
    /// Remove all rows of the one of this name
    #[arg(long, value_name = "NAME")]
    truncate: Option<String>,
    /// Give one another name
    #[arg(long, num_args = 2, value_names = ["NAME", "TO"])]
    rename: Option<Vec<String>>,
    /// Count the rows
    #[arg(long, conflicts_with = "change")]
    count: bool,
    /// JSON lines: {"name": …, "id": …, "rows": …}
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn changes(&self) -> bool {
        self.create.is_some() || self.drop.is_some() || self.truncate.is_some() || self.rename.is_some()
    }
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(name) = &args.create {
        let store = args.store.write(true)?;
        let id = store.keyspace(name)?.id().0;
        store.close()?;
        return if args.json {
            say(json!({ "name": name, "id": id }))
        } else {
            say(format_args!("there is a keyspace {name:?}"))
        };
    }
    if let Some(name) = &args.drop {
        let store = args.store.write(false)?;
        open::keyspace(&store, name, false)?;
        store.drop_keyspace(name)?;
        store.close()?;
        return if args.json {
            say(json!({ "dropped": name }))
        } else {
            say(format_args!("the keyspace {name:?} is gone"))
        };
    }
    if let Some(name) = &args.truncate {
        let store = args.store.write(false)?;
        open::keyspace(&store, name, false)?;
        let id = store.truncate_keyspace(name)?.id().0;
        store.close()?;
        return if args.json {
            say(json!({ "truncated": name, "id": id }))
        } else {
            say(format_args!("the keyspace {name:?} is empty"))
        };
    }
    if let Some([name, to]) = args.rename.as_deref() {
        let store = args.store.write(false)?;
        open::keyspace(&store, name, false)?;
        store.rename_keyspace(name, to)?;
        store.close()?;
        return if args.json {
            say(json!({ "renamed": name, "to": to }))
        } else {
            say(format_args!("the keyspace {name:?} is called {to:?} now"))
        };
    }
    let interrupt = Interrupt::watch()?;
    show(&args.store.look()?, args.count, args.json, &interrupt)
}

/// Shows them, with the number of their rows if these are to be counted.
pub fn show(store: &Store, counts: bool, json: bool, interrupt: &Interrupt) -> Result<()> {
    let snapshot = store.snapshot()?;
    let mut rows = Vec::new();
    for keyspace in snapshot.keyspaces()? {
        let mut count = None;
        if counts {
            let mut counted = 0_u64;
            for row in snapshot.range(&keyspace, ..) {
                interrupt.check("the rows were not counted to the end")?;
                row?;
                counted += 1;
            }
            count = Some(counted);
        }
        if json {
            say(json!({ "name": keyspace.name(), "id": keyspace.id().0, "rows": count }))?;
        } else if is_for_people() {
            let counted = count.map_or_else(String::new, |count| indicatif::HumanCount(count).to_string());
            rows.push((keyspace.name().to_owned(), keyspace.id().0.to_string(), counted));
        } else {
            let mut name = Vec::new();
            Form::Text.plain(keyspace.name().as_bytes(), &mut name);
            let counted = count.map_or_else(String::new, |count| format!("\t{count}"));
            say(format_args!("{}\t{}{counted}", String::from_utf8_lossy(&name), keyspace.id().0))?;
        }
    }
    match (json || !is_for_people(), counts) {
        (true, _) => Ok(()),
        (false, true) => {
            say(table::texts(["keyspace", "number", "rows"], rows.into_iter().map(|(a, b, c)| [a, b, c]).collect()))
        }
        (false, false) => say(table::texts(["keyspace", "number"], rows.into_iter().map(|(a, b, _)| [a, b]).collect())),
    }
}
