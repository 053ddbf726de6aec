//! `percolite verify`: does everything that is stored make sense?

use anyhow::Result;
use percolite::{IntegrityIssue, Store};
use serde_json::{Value, json};

use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, Folder};
use crate::output::{count, say};
use crate::progress::Progress;
use crate::table;

/// So many problems are shown to people.
const SHOWN: usize = 50;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite verify shop                              reads every cell of every column
  percolite verify shop --json | jq '.problems[]'    what is wrong, one by one
  percolite checkpoint shop copy && percolite verify copy

Nothing is changed. The exit code is 0 if all is sound and 6 if not; what cannot be opened is {\"opens\": false, …} in JSON. Losses of commits that were accepted are in .lost_logs[], all else in .problems[]. Row locks of dead processes are sound as long as their \
primary can tell what is to become of them. A store whose log has lost acknowledged commits does not open; the error has the \
fingerprint of the loss, with which `percolite accept-loss` opens it all the same. An accepted loss is told until \
its record, log/lost-*.record, is moved out of the folder; the damaged segments are beside it. Filters \
and indexes of tables are looked at only as far as reading the cells in order needs them.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let store = opened(args)?;
    let progress = Progress::of("cells");
    if progress.is_seen() {
        progress.expect(store.engine_stats()?.columns.iter().map(|column| column.estimated_keys).sum(), "about ");
    }
    let mut read = (0, 0);
    let verified = store.verify(|so_far| {
        read = (so_far.cells(), so_far.issue_count);
        let problems =
            if so_far.is_ok() { String::new() } else { format!(", {}", count(so_far.issue_count, "problem")) };
        progress.at(so_far.cells(), format!("cells{problems}"));
        interrupt.flow()
    });
    drop(progress);
    let (cells, problems) = (count(read.0, "cell"), count(read.1, "problem"));
    let verified = verified
        .map_err(|why| Interrupt::told(why, || format!("{problems} found in {cells}, and the rest was not read")))?;
    if args.json {
        let lost = |lost: &percolite::DataLoss| json!({ "file": lost.file.display().to_string(), "offset": lost.offset, "bytes": lost.lost_bytes, "what": lost.to_string() });
        say(json!({
            "opens": true,
            "sound": verified.is_ok(),
            "versions": verified.versions,
            "locks": verified.row_locks,
            "values": verified.out_of_line_values,
            "history": verified.history_entries,
            "meta": verified.meta_entries,
            "bytes": verified.bytes,
            "lost_logs": verified.data_losses.iter().map(lost).collect::<Vec<_>>(),
            "problems_found": verified.issue_count,
            "problems": verified.issues.iter().map(problem_json).collect::<Vec<_>>(),
        }))?;
    } else {
        let figures = [
            ("newest versions", verified.versions),
            ("row locks", verified.row_locks),
            ("long values", verified.out_of_line_values),
            ("replaced versions, ended transactions", verified.history_entries),
            ("bookkeeping", verified.meta_entries),
        ];
        let figures = figures.map(|(what, cells)| [what.to_owned(), indicatif::HumanCount(cells).to_string()]);
        say(table::texts(["column", "cells"], figures.to_vec()))?;
        for lost in &verified.data_losses {
            say(lost)?;
        }
        for problem in verified.issues.iter().take(SHOWN) {
            say(problem)?;
        }
        if verified.issues.len() > SHOWN {
            say(format_args!("… and more: --json shows the first thousand"))?;
        }
    }
    if verified.is_ok() {
        return if args.json {
            Ok(())
        } else {
            say(format_args!("sound: {} read", indicatif::HumanBytes(verified.bytes)))
        };
    }
    let problems = count(verified.issue_count + verified.data_losses.len() as u64, "problem");
    Err(Code::Damaged.error(format!("{problems} found; {}", open::backup_or_repair(&args.store.folder))))
}

/// A problem, or a loss of a repair, for programs.
pub fn problem_json(problem: &IntegrityIssue) -> Value {
    let key = problem.row.as_ref().map(|row| json!({ "hex": data_encoding::HEXLOWER.encode(row.user_key()) }));
    json!({
        "column": format!("{:?}", problem.column),
        "keyspace_id": problem.row.as_ref().map(|row| row.keyspace_id().0),
        "keyspace": problem.keyspace,
        "key": key,
        "what": problem.message,
    })
}

/// What has lost its tables, or acknowledged commits of its log, does not open and is damaged, too.
fn opened(args: &Args) -> Result<Store> {
    args.store.look_silently().inspect_err(|why| {
        let is_damaged = Code::of(why) == Code::Damaged;
        if args.json {
            // Of an output that nobody reads the error says enough.
            let _ = say(
                json!({ "opens": false, "sound": if is_damaged { Some(false) } else { None }, "why": why.to_string() }),
            );
        }
    })
}
