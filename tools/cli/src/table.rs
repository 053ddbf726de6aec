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

use crate::bytes::Form;
use crate::output::{count, is_for_people};

const WIDTH_MAX: u16 = 100;
const WIDTH_MIN: u16 = 20;
/// The least that a primary gets.
const PRIMARY_MIN: usize = 13;
/// What the table of locks needs besides its two columns of keys: the other columns' contents, padding and borders.
const BESIDE_KEYS: u16 = 16 + 12 + 7 + 5 * 2 + 6;

/// So many transactions have a row in a table of locks.
const TXNS_SHOWN: usize = 100;
/// So many locks of each are shown.
const LOCKS_SHOWN: usize = 20;

/// The names of keyspaces, by number.
#[derive(Clone)]
pub struct Names(HashMap<KeyspaceId, String>);

impl Names {
    /// Of these keyspaces.
    pub fn of<'a>(keyspaces: impl IntoIterator<Item = &'a Keyspace>) -> Self {
        Self(keyspaces.into_iter().map(|keyspace| (keyspace.id(), keyspace.name().to_owned())).collect())
    }

    fn row(&self, row: &RowKey, form: Form, width: usize) -> String {
        let name = self.0.get(&row.keyspace_id()).cloned().unwrap_or_else(|| row.keyspace_id().0.to_string());
        let shown = if form == Form::Text { key(row.user_key()) } else { form.show(row.user_key()) };
        shorten(&format!("{name}/{shown}"), width)
    }
}

/// A table with a header.
pub fn texts<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    if is_for_people() { drawn(header, rows) } else { plain(header, &rows) }
}

/// A table with a header and numbers, which stand to the right.
pub fn figures<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    if is_for_people() { drawn_figures(header, rows) } else { plain(header, &rows) }
}

/// The same as [`texts`], drawn for whoever reads it.
pub fn drawn<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = empty(UTF8_FULL_CONDENSED);
    table.set_header(header);
    table.add_rows(rows);
    table.to_string()
}

/// The same as [`figures`], drawn for whoever reads it.
pub fn drawn_figures<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = empty(UTF8_FULL_CONDENSED);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn plain<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let rows = rows.iter().map(|row| row.each_ref().map(String::as_str));
    let line = |cells: [&str; N]| cells.map(|cell| cell.replace(['\t', '\n', '\r'], " ")).join("\t");
    std::iter::once(header).chain(rows).map(line).collect::<Vec<_>>().join("\n")
}

/// Row locks, one row of the table for each transaction that holds some.
pub fn locks(locks: &[RowLock], names: &Names) -> String {
    let mut table = LockTable::new(names.clone(), Form::Text);
    locks.iter().for_each(|lock| table.add(lock));
    table.finish().unwrap_or_default()
}

/// A table of row locks as they come, however many they are: of the first transactions the first rows are shown, and the rest is
/// counted.
pub struct LockTable {
    names: Names,
    form: Form,
    shown: BTreeMap<Timestamp, Held>,
    /// Locks of transactions that are not shown.
    others: u64,
}

struct Held {
    first: RowLock,
    rows: Vec<RowKey>,
    more: u64,
}

impl LockTable {
    pub fn new(names: Names, form: Form) -> Self {
        Self { names, form, shown: BTreeMap::new(), others: 0 }
    }

    pub fn add(&mut self, lock: &RowLock) {
        let room = self.shown.len() < TXNS_SHOWN;
        let held = match self.shown.entry(lock.start_ts) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(held) if room => held.insert(Held { first: lock.clone(), rows: Vec::new(), more: 0 }),
            Entry::Vacant(_) => {
                self.others += 1;
                return;
            }
        };
        if held.rows.len() < LOCKS_SHOWN {
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
        let mut table = empty(UTF8_FULL);
        let left = usize::from(table.width().unwrap_or(WIDTH_MAX).saturating_sub(BESIDE_KEYS)).max(2 * PRIMARY_MIN);
        let primary = PRIMARY_MIN.max(left * 2 / 5);
        let keys = left - primary;
        table.set_header(["locked rows", "owner, began", "primary", "commit point", "will be"]);
        for Held { first, rows, more } in self.shown.values() {
            let mut rows: Vec<String> = rows.iter().map(|row| self.names.row(row, self.form, keys)).collect();
            if *more > 0 {
                rows.push(format!("… and {} more", HumanCount(*more)));
            }
            let began = time(first.owner_id.created_at_millis(), "%Y-%m-%d\n%H:%M:%S%.3f UTC");
            let (point, verdict) = fate(first);
            table.add_row([
                Cell::new(rows.join("\n")),
                Cell::new(format!("{}\n{began}", first.owner_id)),
                Cell::new(self.names.row(&first.primary, self.form, primary)),
                Cell::new(point),
                verdict,
            ]);
        }
        let more = match self.others {
            0 => String::new(),
            others => format!("\n… and {} of other transactions", count(others, "row lock")),
        };
        Some(format!("{table}{more}"))
    }
}

/// What the lock's primary says, and what that means for the locked rows.
fn fate(lock: &RowLock) -> (String, Cell) {
    let back = || Cell::new("rolled\nback").fg(Color::Yellow);
    match lock.txn_status {
        TransactionStatus::Pending if lock.is_orphan => ("pending".into(), back()),
        TransactionStatus::Pending => ("pending".into(), Cell::new("live")),
        TransactionStatus::Committed(ts) => {
            let at = time(ts.millis(), "%H:%M:%S%.3f");
            (format!("committed @\n{at}"), Cell::new("rolled\nforward").fg(Color::Green))
        }
        TransactionStatus::RolledBack => ("rolled back".into(), back()),
    }
}

/// A moment in UTC, from milliseconds since 1970.
pub fn time(unix_millis: u64, format: &str) -> String {
    let moment = i64::try_from(unix_millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    moment.map_or_else(|| format!("{unix_millis} ms"), |moment| moment.strftime(format).to_string())
}

/// A timestamp's moment, as programs and `--at` read it.
pub fn moment(ts: Timestamp) -> String {
    time(ts.millis(), "%Y-%m-%dT%H:%M:%S%.3fZ")
}

/// A key, readable.
pub fn key(bytes: &[u8]) -> String {
    let halves: Vec<String> = bytes.split(|byte| *byte == 0).map(|half| Form::Text.show(half)).collect();
    halves.join(" · ")
}

/// At most so many characters.
pub fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn empty(preset: &str) -> Table {
    let mut table = Table::new();
    table.load_preset(preset).set_content_arrangement(ContentArrangement::Dynamic);
    // Some terminals do not know their width and say 0.
    let width = table.width().filter(|width| *width >= WIDTH_MIN).unwrap_or(WIDTH_MAX).min(WIDTH_MAX);
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
        assert_eq!(plain(["key", "value"], &rows), format!("key\tvalue\na\t1 2 3\n\t{}", "x".repeat(500)));
    }

    proptest! {
        #[test]
        fn the_library_tells_the_time_of_day_as_the_tables_do(number: u64) {
            let ts = Timestamp::from_u64(number);
            let shown = format!("{ts} ({})", time(ts.millis(), "%Y-%m-%d %H:%M:%S%.3f UTC"));
            prop_assert_eq!(format!("{ts:#}"), shown);
        }
    }
}
