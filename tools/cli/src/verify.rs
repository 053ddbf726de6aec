//! `percolite verify`: checks all stored data for corruption.

use anyhow::Result;
use percolite::{IntegrityIssue, Store, VerifyReport};
use serde_json::{Value, json};

use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, StoreDir};
use crate::output::{count, print_line};
use crate::progress::Progress;
use crate::table;

/// The maximum number of issues that are listed without `--json`.
const MAX_LISTED: usize = 50;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite verify shop                           reads every cell of every column
  percolite verify shop --json | jq '.issues[]'   one issue a line
  percolite checkpoint shop copy && percolite verify copy

Nothing is changed. The exit code is 0 if no issue is found, else 6. In JSON, accepted data losses are in \
.data_losses[], all else in .issues[]; for a store that does not open the document is {\"opened\": false, …}. An \
orphan lock is no issue as long as its primary has the transaction's status. Filters and indexes of tables are \
checked only as far as reading the cells in order uses them.

A store whose WAL has lost acknowledged commits does not open. The error has the fingerprint of the loss, with which \
`percolite accept-data-loss` opens it. An accepted loss is reported until its file, wal/lost-*.txt, is \
moved out of the directory; the damaged segments are beside it.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let store = open_for_verify(args)?;
    let progress = Progress::items("cells");
    if progress.is_visible() {
        progress.expect(store.engine_stats()?.columns.iter().map(|column| column.estimated_keys).sum(), "about ");
    }
    let (mut cells, mut issues) = (0, 0);
    let verified = store.verify(|so_far| {
        (cells, issues) = (so_far.cells(), so_far.issue_count);
        let issues = if so_far.is_ok() { String::new() } else { format!(", {}", count(issues, "issue")) };
        progress.set(cells, format!("cells{issues}"));
        interrupt.control_flow()
    });
    drop(progress);
    let (cells, issues) = (count(cells, "cell"), count(issues, "issue"));
    let verified = verified.map_err(|err| {
        Interrupt::map_error(err, || format!("{issues} found in {cells}; the other cells were not read"))
    })?;
    if args.json {
        print_json(&verified)?;
    } else {
        print_text(&verified)?;
    }
    if verified.is_ok() {
        return if args.json {
            Ok(())
        } else {
            print_line(format_args!("ok: {} checked", indicatif::HumanBytes(verified.bytes)))
        };
    }
    let message = if verified.issue_count == 0 {
        let losses = match verified.data_losses.len() {
            1 => "1 accepted loss".to_owned(),
            several => format!("{several} accepted losses"),
        };
        let files = open::shell_quoted(&args.store.path.join("wal"));
        format!("{losses}, and nothing else is wrong; when it is dealt with: mv {files}/lost-* ELSEWHERE")
    } else {
        let issues = count(verified.issue_count, "issue");
        format!("{issues} found; {}", open::recovery_advice(&args.store.path))
    };
    Err(Code::Corrupt.error(message))
}

fn print_json(verified: &VerifyReport) -> Result<()> {
    let loss = |loss: &percolite::DataLoss| {
        json!({
            "file": loss.file.display().to_string(),
            "offset": loss.offset,
            "lost_bytes": loss.lost_bytes,
            "message": loss.to_string(),
        })
    };
    print_line(json!({
        "opened": true,
        "ok": verified.is_ok(),
        "versions": verified.versions,
        "row_locks": verified.row_locks,
        "out_of_line_values": verified.out_of_line_values,
        "history_entries": verified.history_entries,
        "meta_entries": verified.meta_entries,
        "bytes": verified.bytes,
        "data_losses": verified.data_losses.iter().map(loss).collect::<Vec<_>>(),
        "issue_count": verified.issue_count,
        "issues": verified.issues.iter().map(issue_json).collect::<Vec<_>>(),
    }))
}

/// Prints the number of cells of each column, and the first of the losses and issues.
fn print_text(verified: &VerifyReport) -> Result<()> {
    let columns = [
        ("write", verified.versions),
        ("lock", verified.row_locks),
        ("data", verified.out_of_line_values),
        ("history", verified.history_entries),
        ("meta", verified.meta_entries),
    ];
    let rows = columns.map(|(column, cells)| [column.to_owned(), indicatif::HumanCount(cells).to_string()]);
    print_line(table::text_table(["column", "cells"], rows.to_vec()))?;
    for loss in &verified.data_losses {
        print_line(loss)?;
    }
    for issue in verified.issues.iter().take(MAX_LISTED) {
        print_line(issue)?;
    }
    if verified.issues.len() > MAX_LISTED {
        print_line(format_args!("… and more: --json shows the first thousand"))?;
    }
    Ok(())
}

/// The JSON of an issue, or of a loss of `percolite repair`.
pub fn issue_json(issue: &IntegrityIssue) -> Value {
    let key = issue.row.as_ref().map(|row| json!({ "hex": data_encoding::HEXLOWER.encode(row.user_key()) }));
    json!({
        "column": format!("{:?}", issue.column),
        "keyspace_id": issue.row.as_ref().map(|row| row.keyspace_id().0),
        "keyspace": issue.keyspace,
        "key": key,
        "message": issue.message,
    })
}

/// Opens the store. If the store is so damaged that it cannot be opened, this is a result of the
/// check as well, so `--json` prints a document for it.
fn open_for_verify(args: &Args) -> Result<Store> {
    args.store.open_read_only_quiet().inspect_err(|err| {
        let is_damaged = Code::of(err) == Code::Corrupt;
        if args.json {
            let ok = if is_damaged { Some(false) } else { None };
            // If the output is closed, the error on standard error is enough.
            let _ = print_line(json!({ "opened": false, "ok": ok, "error": err.to_string() }));
        }
    })
}
