//! Tables for a terminal, as wide as it is.

use comfy_table::{ContentArrangement, Table};

/// How wide a table is where nobody says how wide the terminal is, as in a pipe.
const WIDTH: u16 = 100;

/// An empty table that keeps to the width of the terminal; where there is none, to that of `COLUMNS` if it is set.
pub fn table(preset: &str) -> Table {
    let mut table = Table::new();
    table.load_preset(preset).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        let columns = std::env::var("COLUMNS").ok().and_then(|width| width.parse().ok());
        table.set_width(columns.filter(|width| *width > 0).unwrap_or(WIDTH));
    }
    table
}
