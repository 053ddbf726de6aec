//! Tables: how rows, times and row locks look.
//!
//! Tables are as wide as the terminal, at most 100 columns. Keys are any bytes;
//! what is not printable is escaped, and what is too long ends in an ellipsis. A zero byte, which the demo's index puts
//! between its two halves, is shown as a dot.
//!
//! Without a terminal a table is plain: a line a row, the header first, a tab between columns. Only the demo draws its tables always, as
//! parts of its story, 100 columns wide.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use comfy_table::presets::{UTF8_FULL, UTF8_FULL_CONDENSED};
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};
use indicatif::HumanCount;
use percolite::{Keyspace, KeyspaceId, RowKey, RowLock, Timestamp, TransactionStatus};

use crate::encoding::Encoding;
use crate::output::{count, is_terminal};

const MAX_WIDTH: u16 = 100;
const MIN_WIDTH: u16 = 20;
/// The least that a primary gets.
const MIN_PRIMARY_WIDTH: usize = 13;
/// What the table of locks needs besides its two columns of keys: the other columns' contents, padding and borders.
const FIXED_WIDTH: u16 = 16 + 12 + 7 + 5 * 2 + 6;

/// So many transactions have a row in a table of locks.
const MAX_TXNS: usize = 100;
/// So many locks of each are shown.
const MAX_LOCKS_PER_TXN: usize = 20;

/// The names of keyspaces, by number.
#[derive(Clone)]
pub struct KeyspaceNames(HashMap<KeyspaceId, String>);

impl KeyspaceNames {
    /// Of these keyspaces.
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

/// A table with a header and numbers, which stand to the right.
pub fn numeric_table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    if is_terminal() { drawn_numeric_table(header, rows) } else { plain_table(header, &rows) }
}

/// The same as [`texts`], drawn for whoever reads it.
pub fn drawn_text_table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = new_table(UTF8_FULL_CONDENSED);
    table.set_header(header);
    table.add_rows(rows);
    table.to_string()
}

/// The same as [`figures`], drawn for whoever reads it.
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

/// Row locks, one row of the table for each transaction that holds some.
pub fn row_lock_table(locks: &[RowLock], names: &KeyspaceNames) -> String {
    let mut table = RowLockTable::new(names.clone(), Encoding::Text);
    locks.iter().for_each(|lock| table.add(lock));
    table.finish().unwrap_or_default()
}

/// A table of row locks as they come, however many they are: of the first transactions the first rows are shown, and the rest is
/// counted.
pub struct RowLockTable {
    names: KeyspaceNames,
    encoding: Encoding,
    shown: BTreeMap<Timestamp, TxnLocks>,
    /// Locks of transactions that are not shown.
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
        let room = self.shown.len() < MAX_TXNS;
        let held = match self.shown.entry(lock.start_ts) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(held) if room => held.insert(TxnLocks { first: lock.clone(), rows: Vec::new(), more: 0 }),
            Entry::Vacant(_) => {
                self.other_locks += 1;
                return;
            }
        };
        if held.rows.len() < MAX_LOCKS_PER_TXN {
            held.rows.push(lock.row.clone());
        } else {
            held.more += 1;
        }
    }

    /// `None` when there were no locks.
    pub fn finish(self) -> Option<String> {
        if self.shown.is_empty() {
            return None;
        }
        let mut table = new_table(UTF8_FULL);
        let left =
            usize::from(table.width().unwrap_or(MAX_WIDTH).saturating_sub(FIXED_WIDTH)).max(2 * MIN_PRIMARY_WIDTH);
        let primary = MIN_PRIMARY_WIDTH.max(left * 2 / 5);
        let keys = left - primary;
        table.set_header(["locked rows", "owner, began", "primary", "commit point", "will be"]);
        for TxnLocks { first, rows, more } in self.shown.values() {
            let mut rows: Vec<String> = rows.iter().map(|row| self.names.row(row, self.encoding, keys)).collect();
            if *more > 0 {
                rows.push(format!("… and {} more", HumanCount(*more)));
            }
            let began = format_time(first.owner_id.created_at_millis(), "%Y-%m-%d\n%H:%M:%S%.3f UTC");
            let (point, verdict) = resolution(first);
            table.add_row([
                Cell::new(rows.join("\n")),
                Cell::new(format!("{}\n{began}", first.owner_id)),
                Cell::new(self.names.row(&first.primary, self.encoding, primary)),
                Cell::new(point),
                verdict,
            ]);
        }
        let more = match self.other_locks {
            0 => String::new(),
            others => format!("\n… and {} of other transactions", count(others, "row lock")),
        };
        Some(format!("{table}{more}"))
    }
}

/// What the lock's primary says, and what that means for the locked rows.
fn resolution(lock: &RowLock) -> (String, Cell) {
    let back = || Cell::new("rolled\nback").fg(Color::Yellow);
    match lock.txn_status {
        TransactionStatus::Pending if lock.is_orphan => ("pending".into(), back()),
        TransactionStatus::Pending => ("pending".into(), Cell::new("live")),
        TransactionStatus::Committed(ts) => {
            let at = format_time(ts.millis(), "%H:%M:%S%.3f");
            (format!("committed @\n{at}"), Cell::new("rolled\nforward").fg(Color::Green))
        }
        TransactionStatus::RolledBack => ("rolled back".into(), back()),
    }
}

/// A moment in UTC, from milliseconds since 1970.
pub fn format_time(unix_millis: u64, format: &str) -> String {
    let moment = i64::try_from(unix_millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    moment.map_or_else(|| format!("{unix_millis} ms"), |moment| moment.strftime(format).to_string())
}

/// A timestamp's moment, as programs and `--at` read it.
pub fn format_timestamp(ts: Timestamp) -> String {
    format_time(ts.millis(), "%Y-%m-%dT%H:%M:%S%.3fZ")
}

/// A key, readable.
pub fn display_key(bytes: &[u8]) -> String {
    let halves: Vec<String> = bytes.split(|byte| *byte == 0).map(|half| Encoding::Text.display(half)).collect();
    halves.join(" · ")
}

/// At most so many characters.
pub fn truncate(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn new_table(preset: &str) -> Table {
    let mut table = Table::new();
    table.load_preset(preset).set_content_arrangement(ContentArrangement::Dynamic);
    // Some terminals do not know their width and say 0.
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
    fn a_plain_table_has_a_line_for_each_row_and_a_tab_between_columns() {
        let rows = vec![["a".to_owned(), "1\n2\t3".to_owned()], [String::new(), "x".repeat(500)]];
        assert_eq!(plain_table(["key", "value"], &rows), format!("key\tvalue\na\t1 2 3\n\t{}", "x".repeat(500)));
    }

    proptest! {
        #[test]
        fn the_library_tells_the_time_of_day_as_the_tables_do(number: u64) {
            let ts = Timestamp::from_u64(number);
            let shown = format!("{ts} ({})", format_time(ts.millis(), "%Y-%m-%d %H:%M:%S%.3f UTC"));
            prop_assert_eq!(format!("{ts:#}"), shown);
        }
    }
}
