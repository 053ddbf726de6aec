//! Tables that fit the width of the terminal.

use comfy_table::{ContentArrangement, Table};

/// The width where it is unknown, as in a pipe.
const WIDTH: u16 = 100;

/// An empty table as wide as the terminal. If the width of the terminal is unknown, the table has
/// the width of the variable `COLUMNS`, or else a fixed one.
pub fn table(preset: &str) -> Table {
    let mut table = Table::new();
    table.load_preset(preset).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        let columns = std::env::var("COLUMNS").ok().and_then(|width| width.parse().ok());
        table.set_width(columns.filter(|width| *width > 0).unwrap_or(WIDTH));
    }
    table
}
