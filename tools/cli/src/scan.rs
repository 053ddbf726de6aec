//! `percolite scan`: prints rows in key order.

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

/// The maximum number of rows of one table. A long scan prints several tables, each with its own
/// column widths.
const TABLE_ROWS: usize = 500;
/// Longer values are truncated in a table.
const MAX_VALUE_CHARS: usize = 400;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite scan shop fruit                       all rows
  percolite scan shop fruit --from b --to d       keys from b (inclusive) to d (exclusive)
  percolite scan shop fruit --prefix app          keys with the prefix app
  percolite scan shop fruit --rev --limit 10      the last ten rows
  percolite scan shop fruit --at 2026-11-21T14:00 a past state (see `percolite retention`)
  percolite scan shop fruit --count               the number of rows
  percolite scan shop fruit --json > fruit.jsonl  JSON lines, which load reads
  percolite scan shop fruit > fruit.tsv           plain lines, which load reads, too
  percolite scan shop people --json --value-encoding json | jq .value.name
  percolite scan shop people --json --value-encoding json |
                       jq -c 'select((.value.born // 9999) < 1900)' |
                       percolite load --create shop old --value-encoding json

The rows are a consistent snapshot.

On a terminal they are printed in columns, and long values are truncated. Elsewhere they are plain lines, with a tab \
between key and value and nothing truncated. The escapes of text are those of PostgreSQL's COPY: \\t, \\n, \\r, \\\\, \
and \\xHH for other control characters and for bytes that are not UTF-8.

With --value-encoding json and --json, \"value\" has a value that is JSON. If that has several lines, \"value\" has it \
in one line and \"text\" has it verbatim. A value that is not JSON is in \"text\", or in \"hex\" if it is not UTF-8, \
without a \"value\". In plain lines a value is JSON in one line, or \\x and two hexadecimal digits a byte. \
`load --value-encoding json` reads JSON lines back without a change, and plain lines but for whitespace in JSON.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    #[command(flatten)]
    scan: ScanArgs,
}

/// The arguments of `scan` on the command line and in the shell.
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(clap::Args)]
pub struct ScanArgs {
    /// The keyspace
    keyspace: String,
    #[command(flatten)]
    range: RangeArgs,
    /// Print the rows in reverse order, from the last key to the first
    #[arg(long, visible_alias = "reverse")]
    rev: bool,
    /// Print at most N rows
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print the keys without the values
    #[arg(long)]
    keys_only: bool,
    /// Print only the number of rows
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    at: AtArgs,
    #[command(flatten)]
    pub encodings: EncodingArgs,
    /// Print JSON lines: {"key": …, "value": …}
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let scan = &args.scan;
    let encodings = scan.encodings.get();
    // An invalid range must be reported before the store is opened.
    scan.range.selection(encodings.keys)?;
    let interrupt = Interrupt::watch()?;
    scan.print(&args.store.open_read_only()?, None, encodings, None, &interrupt)
}

impl ScanArgs {
    /// Prints the rows; if a transaction is open, those that it sees. Without `--limit`, at most
    /// `table_limit` rows are printed as tables.
    pub fn print(
        &self,
        store: &Store,
        txn: Option<&Txn>,
        encodings: Encodings,
        table_limit: Option<u64>,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let selection = self.range.selection(encodings.keys)?;
        let (source, keyspace) = self.at.source(store, txn, &self.keyspace)?;
        let mut rows = source.scan(&keyspace, &selection);
        let limit = self.limit.unwrap_or(u64::MAX);
        if self.count {
            let mut count = 0_u64;
            self.for_each(&mut rows, limit, |_, _| {
                count += 1;
                interrupt.check("not all rows were counted")
            })?;
            return if self.json { print_line(json!({ "rows": count })) } else { print_line(count) };
        }
        let check = || interrupt.check("the output is incomplete");
        let mut out = LineWriter::new();
        let printed = if !self.json && is_terminal() {
            let limit = limit.min(self.limit.or(table_limit).unwrap_or(u64::MAX));
            self.print_tables(&mut rows, limit, encodings, &mut out, check)
        } else {
            self.print_lines(&mut rows, limit, encodings, &mut out, check)
        };
        out.finish().and(printed)
    }

    /// Calls `visit` for each row, until `visit` fails or has seen `limit` rows.
    fn for_each(&self, rows: &mut Scan, limit: u64, mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let mut left = limit;
        if self.rev {
            while left > 0
                && let Some(row) = rows.next_back().transpose()?
            {
                visit(row.key(), row.value())?;
                left -= 1;
            }
            return Ok(());
        }
        if left == 0 {
            return Ok(());
        }
        let visited = rows.visit(|key, value| {
            left -= 1;
            match visit(key, value) {
                Ok(()) if left > 0 => ControlFlow::Continue(()),
                result => ControlFlow::Break(result),
            }
        })?;
        visited.break_value().unwrap_or(Ok(()))
    }

    fn print_lines(
        &self,
        rows: &mut Scan,
        limit: u64,
        encodings: Encodings,
        out: &mut LineWriter,
        check: impl Fn() -> Result<()>,
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
            check()
        })
    }

    fn print_tables(
        &self,
        rows: &mut Scan,
        limit: u64,
        encodings: Encodings,
        out: &mut LineWriter,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut page: Vec<[String; 2]> = Vec::new();
        let mut is_more = false;
        let mut printed = 0;
        // One row more than the limit is read, to know whether there are more rows than printed.
        let scan_limit = limit.saturating_add(1).min(self.limit.unwrap_or(u64::MAX));
        let scanned = self.for_each(rows, scan_limit, |key, value| {
            if printed == limit {
                is_more = true;
                return Ok(());
            }
            printed += 1;
            let value = if self.keys_only { String::new() } else { encodings.values.display(value) };
            page.push([encodings.keys.display(key), table::truncate(&value, MAX_VALUE_CHARS)]);
            if page.len() == TABLE_ROWS {
                out.write_line(self.render_table(std::mem::take(&mut page)))?;
            }
            check()
        });
        if !page.is_empty() {
            out.write_line(self.render_table(page))?;
        }
        if is_more {
            out.write_line(format_args!("… and more; --limit N prints more than {}", count(limit, "row")))?;
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
