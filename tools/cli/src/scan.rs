//! `percolite scan`: rows in order.

use std::ops::ControlFlow;

use anyhow::Result;
use percolite::{Scan, Store, Txn};
use serde_json::json;

use crate::at::AtArgs;
use crate::encoding::{EncodingArgs, Encodings, write_value_fields};
use crate::interrupt::Interrupt;
use crate::open::StoreDir;
use crate::output::{LineWriter, count, is_terminal, print_line};
use crate::range::RangeArgs;
use crate::table;

/// So many rows are laid out as one table; those of the next are as wide as they need to be.
const TABLE_ROWS: usize = 500;
/// What people see of a value.
const MAX_VALUE_CHARS: usize = 400;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite scan shop fruit                       every row
  percolite scan shop fruit --from b --to d       keys from b up to, and without, d
  percolite scan shop fruit --prefix app          keys that begin with app
  percolite scan shop fruit --rev --limit 10      the last ten
  percolite scan shop fruit --at 2026-11-21T14:00 what there was then (see: percolite retention)
  percolite scan shop fruit --count               how many there are
  percolite scan shop fruit --json > fruit.jsonl  JSON lines, which load reads back
  percolite scan shop fruit > fruit.tsv           plain lines, which load reads back, too
  percolite scan shop people --json --value-encoding json | jq .value.name
  percolite scan shop people --json --value-encoding json |
                       jq -c 'select((.value.born // 9999) < 1900)' | percolite load shop old --value-encoding json

The rows are those of one moment.

A terminal gets a table, in which long values are cut. Anything else gets all of them, a line each: the key, a tab, the value. In text a \
tab is \\t there, a line end \\n, a carriage return \\r, a backslash \\\\, and any other control character, and whatever is no text, \\x and \
two hexadecimal digits a byte.

With --value-encoding json, a value that is JSON stands as it is in \"value\" of --json. If it has several lines \"value\" has it in one, and \"text\" \
as it was. One that is no JSON is in \"text\" alone, or in \"hex\" if it is no text, and there is no \"value\". `load --value-encoding json` reads all \
of that back to the bit. In plain lines it is JSON in one line, or \\x and two digits a byte.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    scan: ScanArgs,
}

/// What is asked for.
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(clap::Args)]
pub struct ScanArgs {
    /// The keyspace
    keyspace: String,
    #[command(flatten)]
    range: RangeArgs,
    /// From the last key to the first
    #[arg(long, visible_alias = "reverse")]
    rev: bool,
    /// At most so many rows
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Leave the values out
    #[arg(long)]
    keys_only: bool,
    /// Only how many rows there are
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    at: AtArgs,
    #[command(flatten)]
    pub encodings: EncodingArgs,
    /// JSON lines: {"key": …, "value": …}
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let what = &args.scan;
    let encodings = what.encodings.get();
    // A range that makes no sense is told before the store is opened.
    what.range.selection(encodings.keys)?;
    let interrupt = Interrupt::watch()?;
    what.print(&args.store.open_read_only()?, None, encodings, None, &interrupt)
}

impl ScanArgs {
    /// Shows the rows, as the open transaction sees them if there is one. A table for people has at most so many, unless it is said how
    /// many there are to be.
    pub fn print(
        &self,
        store: &Store,
        txn: Option<&Txn>,
        encodings: Encodings,
        shown: Option<u64>,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let rows = self.range.selection(encodings.keys)?;
        let (view, keyspace) = self.at.source(store, txn, &self.keyspace)?;
        let mut rows = view.scan(&keyspace, &rows);
        let limit = self.limit.unwrap_or(u64::MAX);
        if self.count {
            let mut count = 0_u64;
            self.for_each(&mut rows, limit, |_, _| {
                count += 1;
                interrupt.check("the rows were not counted to the end")
            })?;
            return if self.json { print_line(json!({ "rows": count })) } else { print_line(count) };
        }
        let partly = || interrupt.check("these are not all rows");
        let mut out = LineWriter::new();
        let ended = if !self.json && is_terminal() {
            self.print_tables(
                &mut rows,
                limit.min(self.limit.or(shown).unwrap_or(u64::MAX)),
                encodings,
                &mut out,
                partly,
            )
        } else {
            self.print_lines(&mut rows, limit, encodings, &mut out, partly)
        };
        out.finish().and(ended)
    }

    /// Has `see` see each row, until it fails or there are enough.
    fn for_each(&self, rows: &mut Scan, limit: u64, mut see: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let mut left = limit;
        if self.rev {
            while left > 0
                && let Some(row) = rows.next_back().transpose()?
            {
                see(&row.0, &row.1)?;
                left -= 1;
            }
            return Ok(());
        }
        if left == 0 {
            return Ok(());
        }
        let ended = rows.visit(|key, value| {
            left -= 1;
            match see(key, value) {
                Ok(()) if left > 0 => ControlFlow::Continue(()),
                ended => ControlFlow::Break(ended),
            }
        })?;
        ended.break_value().unwrap_or(Ok(()))
    }

    fn print_lines(
        &self,
        rows: &mut Scan,
        limit: u64,
        encodings: Encodings,
        out: &mut LineWriter,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut line = Vec::new();
        self.for_each(rows, limit, |key, value| {
            line.clear();
            let value = (!self.keys_only).then_some(value);
            if self.json {
                json_line(encodings, key, value, &mut line);
            } else {
                plain_line(encodings, key, value, &mut line);
            }
            out.write_bytes(&line)?;
            go_on()
        })
    }

    fn print_tables(
        &self,
        rows: &mut Scan,
        limit: u64,
        encodings: Encodings,
        out: &mut LineWriter,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut page: Vec<[String; 2]> = Vec::new();
        let mut is_more = false;
        let mut seen = 0;
        let scanned = self.for_each(rows, limit.saturating_add(1).min(self.limit.unwrap_or(u64::MAX)), |key, value| {
            if seen == limit {
                is_more = true;
                return Ok(());
            }
            seen += 1;
            let value = if self.keys_only { String::new() } else { encodings.values.display(value) };
            page.push([encodings.keys.display(key), table::truncate(&value, MAX_VALUE_CHARS)]);
            if page.len() == TABLE_ROWS {
                out.write_line(self.render_table(std::mem::take(&mut page)))?;
            }
            go_on()
        });
        if !page.is_empty() {
            out.write_line(self.render_table(page))?;
        }
        if is_more {
            out.write_line(format_args!("… and more; --limit N shows more than {}", count(limit, "row")))?;
        }
        scanned
    }

    fn render_table(&self, rows: Vec<[String; 2]>) -> String {
        if self.keys_only {
            return table::text_table(["key"], rows.into_iter().map(|[key, _]| [key]).collect());
        }
        table::text_table(["key", "value"], rows)
    }
}

fn json_line(encodings: Encodings, key: &[u8], value: Option<&[u8]>, line: &mut Vec<u8>) {
    line.extend_from_slice(b"{\"key\":");
    encodings.keys.write_json(key, line);
    if let Some(value) = value {
        write_value_fields(encodings.values, Some(value), line);
    }
    line.extend_from_slice(b"}\n");
}

fn plain_line(encodings: Encodings, key: &[u8], value: Option<&[u8]>, line: &mut Vec<u8>) {
    encodings.keys.write_column(key, line);
    if let Some(value) = value {
        line.push(b'\t');
        encodings.values.write_column(value, line);
    }
    line.push(b'\n');
}
