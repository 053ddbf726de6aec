//! `percolite keyspaces`: lists, creates, renames, truncates and drops keyspaces.

use anyhow::Result;
use percolite::Store;
use serde_json::json;

use crate::encoding::Encoding;
use crate::interrupt::Interrupt;
use crate::open::{self, StoreDir};
use crate::output::{is_terminal, print_line};
use crate::table;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite keyspaces shop                 names and ids
  percolite keyspaces shop --count         names, ids and row counts; reads all rows
  percolite keyspaces shop --create fruit  creates a keyspace, and the store if there is none
  percolite keyspaces shop --drop fruit    drops a keyspace with all its rows
  percolite keyspaces shop --truncate fruit
                                           removes all rows, in constant time
  percolite keyspaces shop --rename fruit berries

Without a terminal a keyspace is a plain line: name, id and row count, with tabs between them.")]
#[command(group = clap::ArgGroup::new("change").args(["create", "drop", "truncate", "rename"]))]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// Create a keyspace of this name
    #[arg(long, value_name = "NAME")]
    create: Option<String>,
    /// Drop the keyspace of this name, with all its rows
    #[arg(long, value_name = "NAME")]
    drop: Option<String>,
    /// Remove all rows of the keyspace of this name
    #[arg(long, value_name = "NAME")]
    truncate: Option<String>,
    /// Rename a keyspace
    #[arg(long, num_args = 2, value_names = ["NAME", "TO"])]
    rename: Option<Vec<String>>,
    /// Count the rows
    #[arg(long, conflicts_with = "change")]
    count: bool,
    /// Print JSON lines: {"name": …, "id": …, "rows": …}
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether the command changes the store.
    pub fn changes(&self) -> bool {
        self.create.is_some() || self.drop.is_some() || self.truncate.is_some() || self.rename.is_some()
    }
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(name) = &args.create {
        let store = args.store.open(true)?;
        let id = store.keyspace(name)?.id().0;
        store.close()?;
        return if args.json {
            print_line(json!({ "name": name, "id": id }))
        } else {
            print_line(format_args!("created the keyspace {name:?}"))
        };
    }
    if let Some(name) = &args.drop {
        let store = args.store.open(false)?;
        open::keyspace(&store, name, false)?;
        store.drop_keyspace(name)?;
        store.close()?;
        return if args.json {
            print_line(json!({ "dropped": name }))
        } else {
            print_line(format_args!("dropped the keyspace {name:?}"))
        };
    }
    if let Some(name) = &args.truncate {
        let store = args.store.open(false)?;
        open::keyspace(&store, name, false)?;
        let id = store.truncate_keyspace(name)?.id().0;
        store.close()?;
        return if args.json {
            print_line(json!({ "truncated": name, "id": id }))
        } else {
            print_line(format_args!("truncated the keyspace {name:?}"))
        };
    }
    if let Some([name, to]) = args.rename.as_deref() {
        let store = args.store.open(false)?;
        open::keyspace(&store, name, false)?;
        store.rename_keyspace(name, to)?;
        store.close()?;
        return if args.json {
            print_line(json!({ "renamed": name, "to": to }))
        } else {
            print_line(format_args!("renamed the keyspace {name:?} to {to:?}"))
        };
    }
    let interrupt = Interrupt::watch()?;
    list(&args.store.open_read_only()?, args.count, args.json, &interrupt)
}

/// Lists the keyspaces, with the number of their rows if `count_rows`.
pub fn list(store: &Store, count_rows: bool, json: bool, interrupt: &Interrupt) -> Result<()> {
    let snapshot = store.snapshot()?;
    let mut rows = Vec::new();
    for keyspace in snapshot.keyspaces()? {
        let mut count = None;
        if count_rows {
            let mut counted = 0_u64;
            for row in snapshot.range(&keyspace, ..) {
                interrupt.check("not all rows were counted")?;
                row?;
                counted += 1;
            }
            count = Some(counted);
        }
        if json {
            print_line(json!({ "name": keyspace.name(), "id": keyspace.id().0, "rows": count }))?;
        } else if is_terminal() {
            let counted = count.map_or_else(String::new, |count| indicatif::HumanCount(count).to_string());
            rows.push((keyspace.name().to_owned(), keyspace.id().0.to_string(), counted));
        } else {
            let mut name = Vec::new();
            Encoding::Text.write_column(keyspace.name().as_bytes(), &mut name);
            let counted = count.map_or_else(String::new, |count| format!("\t{count}"));
            print_line(format_args!("{}\t{}{counted}", String::from_utf8_lossy(&name), keyspace.id().0))?;
        }
    }
    let rows = rows.into_iter();
    match (json || !is_terminal(), count_rows) {
        (true, _) => Ok(()),
        (false, true) => {
            let rows = rows.map(|(name, id, count)| [name, id, count]).collect();
            print_line(table::text_table(["keyspace", "id", "rows"], rows))
        }
        (false, false) => {
            let rows = rows.map(|(name, id, _)| [name, id]).collect();
            print_line(table::text_table(["keyspace", "id"], rows))
        }
    }
}
