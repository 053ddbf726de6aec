//! Tables of rows, statistics and row locks.
//!
//! A table is as wide as the terminal, at most 100 columns. In keys, unprintable bytes are escaped,
//! and long texts end in an ellipsis. A zero byte, which separates the two parts of an index key of
//! the demo, is shown as a dot.
//!
//! Without a terminal a table is plain: a line per row, the header first, a tab between columns.
//! The exception is the demo, which draws its tables even then, 100 columns wide.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use comfy_table::presets::{UTF8_FULL, UTF8_FULL_CONDENSED};
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};
use indicatif::HumanCount;
use percolite::{Keyspace, KeyspaceId, RowKey, RowLock, Timestamp, TxnStatus};

use crate::encoding::Encoding;
use crate::output::{count, is_terminal};

const MAX_WIDTH: u16 = 100;
const MIN_WIDTH: u16 = 20;
/// The minimal width of the primary's column.
const MIN_PRIMARY_WIDTH: usize = 13;
/// The width of the row lock table without the content of its two columns of keys: the content of
/// the other three columns, and all padding and borders.
const FIXED_WIDTH: u16 = 16 + 12 + 10 + 5 * 2 + 6;

/// The maximum number of transactions in a row lock table.
const MAX_TXNS: usize = 100;
/// The maximum number of locks that are shown of each transaction.
const MAX_LOCKS_PER_TXN: usize = 20;

/// The names of keyspaces, by id.
#[derive(Clone)]
pub struct KeyspaceNames(HashMap<KeyspaceId, String>);

impl KeyspaceNames {
    pub fn of<'a>(keyspaces: impl IntoIterator<Item = &'a Keyspace>) -> Self {
        Self(keyspaces.into_iter().map(|keyspace| (keyspace.id(), keyspace.name().to_owned())).collect())
    }

    fn row(&self, row: &RowKey, encoding: Encoding, width: usize) -> String {
        let name = self.0.get(&row.keyspace_id()).cloned().unwrap_or_else(|| row.keyspace_id().0.to_string());
        let shown =
            if encoding == Encoding::Text { display_key(row.user_key()) } else { encoding.display(row.user_key()) };
        truncate(&format!("{name}/{shown}"), width)
    }
}

/// A table with a header.
pub fn text_table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    if is_terminal() { drawn_text_table(header, rows) } else { plain_table(header, &rows) }
}

/// A table with a header and right-aligned numbers.
pub fn numeric_table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    if is_terminal() { drawn_numeric_table(header, rows) } else { plain_table(header, &rows) }
}

/// Like [`text_table`], but always drawn.
pub fn drawn_text_table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = new_table(UTF8_FULL_CONDENSED);
    table.set_header(header);
    table.add_rows(rows);
    table.to_string()
}

/// Like [`numeric_table`], but always drawn.
pub fn drawn_numeric_table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = new_table(UTF8_FULL_CONDENSED);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn plain_table<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let rows = rows.iter().map(|row| row.each_ref().map(String::as_str));
    let line = |cells: [&str; N]| cells.map(|cell| cell.replace(['\t', '\n', '\r'], " ")).join("\t");
    std::iter::once(header).chain(rows).map(line).collect::<Vec<_>>().join("\n")
}

/// A table of these row locks.
pub fn row_lock_table(locks: &[RowLock], names: &KeyspaceNames) -> String {
    let mut table = RowLockTable::new(names.clone(), Encoding::Text);
    locks.iter().for_each(|lock| table.add(lock));
    table.finish().unwrap_or_default()
}

/// A table of row locks, with a row per transaction. The size of the table is bounded: it shows the
/// first locks of the first transactions, and the number of the other locks.
pub struct RowLockTable {
    names: KeyspaceNames,
    encoding: Encoding,
    shown: BTreeMap<Timestamp, TxnLocks>,
    /// How many locks belong to transactions that are not shown.
    other_locks: u64,
}

struct TxnLocks {
    first: RowLock,
    rows: Vec<RowKey>,
    more: u64,
}

impl RowLockTable {
    pub fn new(names: KeyspaceNames, encoding: Encoding) -> Self {
        Self { names, encoding, shown: BTreeMap::new(), other_locks: 0 }
    }

    pub fn add(&mut self, lock: &RowLock) {
        let is_full = self.shown.len() >= MAX_TXNS;
        let locks = match self.shown.entry(lock.start_ts) {
            Entry::Occupied(locks) => locks.into_mut(),
            Entry::Vacant(_) if is_full => {
                self.other_locks += 1;
                return;
            }
            Entry::Vacant(entry) => entry.insert(TxnLocks { first: lock.clone(), rows: Vec::new(), more: 0 }),
        };
        if locks.rows.len() < MAX_LOCKS_PER_TXN {
            locks.rows.push(lock.row.clone());
        } else {
            locks.more += 1;
        }
    }

    /// The table; `None` if there were no locks.
    pub fn finish(self) -> Option<String> {
        if self.shown.is_empty() {
            return None;
        }
        let mut table = new_table(UTF8_FULL);
        let left =
            usize::from(table.width().unwrap_or(MAX_WIDTH).saturating_sub(FIXED_WIDTH)).max(2 * MIN_PRIMARY_WIDTH);
        let primary_width = MIN_PRIMARY_WIDTH.max(left * 2 / 5);
        let row_width = left - primary_width;
        table.set_header(["locked rows", "owner, created", "primary", "status", "resolution"]);
        for TxnLocks { first, rows, more } in self.shown.values() {
            let mut rows: Vec<String> = rows.iter().map(|row| self.names.row(row, self.encoding, row_width)).collect();
            if *more > 0 {
                rows.push(format!("… and {} more", HumanCount(*more)));
            }
            let created = format_time(first.owner_id.created_at_millis(), "%Y-%m-%d\n%H:%M:%S%.3f UTC");
            let (status, resolution) = resolution(first);
            table.add_row([
                Cell::new(rows.join("\n")),
                Cell::new(format!("{}\n{created}", first.owner_id)),
                Cell::new(self.names.row(&first.primary, self.encoding, primary_width)),
                Cell::new(status),
                resolution,
            ]);
        }
        let more = match self.other_locks {
            0 => String::new(),
            others => format!("\n… and {} of other transactions", count(others, "row lock")),
        };
        Some(format!("{table}{more}"))
    }
}

/// The transaction's status, and how its locks will be resolved.
fn resolution(lock: &RowLock) -> (String, Cell) {
    let roll_back = || Cell::new("roll\nback").fg(Color::Yellow);
    match lock.txn_status {
        TxnStatus::Pending if lock.is_orphan => ("pending".into(), roll_back()),
        TxnStatus::Pending => ("pending".into(), Cell::new("active")),
        TxnStatus::Committed(ts) => {
            let at = format_time(ts.millis(), "%H:%M:%S%.3f");
            (format!("committed @\n{at}"), Cell::new("roll\nforward").fg(Color::Green))
        }
        TxnStatus::RolledBack => ("rolled back".into(), roll_back()),
    }
}

/// A time in UTC, from milliseconds since 1970.
pub fn format_time(unix_millis: u64, format: &str) -> String {
    let time = i64::try_from(unix_millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    time.map_or_else(|| format!("{unix_millis} ms"), |time| time.strftime(format).to_string())
}

/// The time of a timestamp, in the format that `--at` reads.
pub fn format_timestamp(ts: Timestamp) -> String {
    format_time(ts.millis(), "%Y-%m-%dT%H:%M:%S%.3fZ")
}

/// A key as text, with a dot for each zero byte.
pub fn display_key(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.split(|byte| *byte == 0).map(|part| Encoding::Text.display(part)).collect();
    parts.join(" · ")
}

/// The text, at most this many characters long.
pub fn truncate(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn new_table(preset: &str) -> Table {
    let mut table = Table::new();
    table.load_preset(preset).set_content_arrangement(ContentArrangement::Dynamic);
    // Some terminals report a width of 0.
    let width = table.width().filter(|width| *width >= MIN_WIDTH).unwrap_or(MAX_WIDTH).min(MAX_WIDTH);
    table.set_width(width);
    if std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty()) {
        table.force_no_tty();
    }
    table
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_plain_table_is_tab_separated() {
        let rows = vec![["a".to_owned(), "1\n2\t3".to_owned()], [String::new(), "x".repeat(500)]];
        assert_eq!(plain_table(["key", "value"], &rows), format!("key\tvalue\na\t1 2 3\n\t{}", "x".repeat(500)));
    }

    proptest! {
        #[test]
        fn times_look_as_in_the_library(number: u64) {
            let ts = Timestamp::from_u64(number);
            let shown = format!("{ts} ({})", format_time(ts.millis(), "%Y-%m-%d %H:%M:%S%.3f UTC"));
            prop_assert_eq!(format!("{ts:#}"), shown);
        }
    }
}
