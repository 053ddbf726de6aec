//! `percolite scan`: rows in order.

use std::ops::ControlFlow;

use anyhow::Result;
use percolite::{Scan, Store, Txn};
use serde_json::json;

use crate::bytes::{FormArgs, Forms, value_fields};
use crate::interrupt::Interrupt;
use crate::moment::Moment;
use crate::open::Folder;
use crate::output::{Lines, count, is_for_people, say};
use crate::range::Range;
use crate::table;

/// So many rows are laid out as one table; those of the next are as wide as they need to be.
const TABLE_ROWS: usize = 500;
/// What people see of a value.
const SHOWN_CHARS: usize = 400;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite scan shop fruit                       every row
  percolite scan shop fruit --from b --to d       keys from b up to, and without, d
  percolite scan shop fruit --prefix app          keys that begin with app
  percolite scan shop fruit --rev --limit 10      the last ten
  percolite scan shop fruit --at 2026-11-21T14:00 what there was then (see: percolite history)
  percolite scan shop fruit --count               how many there are
  percolite scan shop fruit --json > fruit.jsonl  JSON lines, which load reads back
  percolite scan shop fruit > fruit.tsv           plain lines, which load reads back, too
  percolite scan shop people --json --values json | jq .value.name
  percolite scan shop people --json --values json |
                       jq -c 'select((.value.born // 9999) < 1900)' | percolite load shop old --values json

The rows are those of one moment.

A terminal gets a table, in which long values are cut. Anything else gets all of them, a line each: the key, a tab, the value. In text a \
tab is \\t there, a line end \\n, a carriage return \\r, a backslash \\\\, and any other control character, and whatever is no text, \\x and \
two hexadecimal digits a byte.

With --values json, a value that is JSON stands as it is in \"value\" of --json. If it has several lines \"value\" has it in one, and \"text\" \
as it was. One that is no JSON is in \"text\" alone, or in \"hex\" if it is no text, and there is no \"value\". `load --values json` reads all \
of that back to the bit. In plain lines it is JSON in one line, or \\x and two digits a byte.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
    #[command(flatten)]
    what: What,
}

/// What is asked for.
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(clap::Args)]
pub struct What {
    /// The keyspace
    keyspace: String,
    #[command(flatten)]
    range: Range,
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
    // A range that makes no sense is told before the store is opened.
    what.range.rows(forms.keys)?;
    let interrupt = Interrupt::watch()?;
    what.show(&args.store.look()?, None, forms, None, &interrupt)
}

impl What {
    /// Shows the rows, as the open transaction sees them if there is one. A table for people has at most so many, unless it is said how
    /// many there are to be.
    pub fn show(
        &self,
        store: &Store,
        txn: Option<&Txn>,
        forms: Forms,
        shown: Option<u64>,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let rows = self.range.rows(forms.keys)?;
        let (view, keyspace) = self.moment.view(store, txn, &self.keyspace)?;
        let mut rows = view.scan(&keyspace, &rows);
        let limit = self.limit.unwrap_or(u64::MAX);
        if self.count {
            let mut count = 0_u64;
            self.each(&mut rows, limit, |_, _| {
                count += 1;
                interrupt.check("the rows were not counted to the end")
            })?;
            return if self.json { say(json!({ "rows": count })) } else { say(count) };
        }
        let partly = || interrupt.check("these are not all rows");
        let mut out = Lines::new();
        let ended = if !self.json && is_for_people() {
            self.tables(&mut rows, limit.min(self.limit.or(shown).unwrap_or(u64::MAX)), forms, &mut out, partly)
        } else {
            self.lines(&mut rows, limit, forms, &mut out, partly)
        };
        out.finish().and(ended)
    }

    /// Has `see` see each row, until it fails or there are enough.
    fn each(&self, rows: &mut Scan, limit: u64, mut see: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
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

    fn lines(
        &self,
        rows: &mut Scan,
        limit: u64,
        forms: Forms,
        out: &mut Lines,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut line = Vec::new();
        self.each(rows, limit, |key, value| {
            line.clear();
            let value = (!self.keys_only).then_some(value);
            if self.json {
                json_line(forms, key, value, &mut line);
            } else {
                plain_line(forms, key, value, &mut line);
            }
            out.bytes(&line)?;
            go_on()
        })
    }

    fn tables(
        &self,
        rows: &mut Scan,
        limit: u64,
        forms: Forms,
        out: &mut Lines,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut page: Vec<[String; 2]> = Vec::new();
        let mut is_more = false;
        let mut seen = 0;
        let scanned = self.each(rows, limit.saturating_add(1).min(self.limit.unwrap_or(u64::MAX)), |key, value| {
            if seen == limit {
                is_more = true;
                return Ok(());
            }
            seen += 1;
            let value = if self.keys_only { String::new() } else { forms.values.show(value) };
            page.push([forms.keys.show(key), table::shorten(&value, SHOWN_CHARS)]);
            if page.len() == TABLE_ROWS {
                out.say(self.table_of(std::mem::take(&mut page)))?;
            }
            go_on()
        });
        if !page.is_empty() {
            out.say(self.table_of(page))?;
        }
        if is_more {
            out.say(format_args!("… and more; --limit N shows more than {}", count(limit, "row")))?;
        }
        scanned
    }

    fn table_of(&self, rows: Vec<[String; 2]>) -> String {
        if self.keys_only {
            return table::texts(["key"], rows.into_iter().map(|[key, _]| [key]).collect());
        }
        table::texts(["key", "value"], rows)
    }
}

fn json_line(forms: Forms, key: &[u8], value: Option<&[u8]>, line: &mut Vec<u8>) {
    line.extend_from_slice(b"{\"key\":");
    forms.keys.json(key, line);
    if let Some(value) = value {
        value_fields(forms.values, Some(value), line);
    }
    line.extend_from_slice(b"}\n");
}

fn plain_line(forms: Forms, key: &[u8], value: Option<&[u8]>, line: &mut Vec<u8>) {
    forms.keys.plain(key, line);
    if let Some(value) = value {
        line.push(b'\t');
        forms.values.plain(value, line);
    }
    line.push(b'\n');
}
