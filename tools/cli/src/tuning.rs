//! `--memory-budget` and `--compression`: options of the commands that write.

use std::time::Duration;

use percolite::option_ranges::MEMORY_BUDGET;
use percolite::{Builder, Store};

const NOT_A_SIZE: &str = "not a size: 64M, 2G, or a number of bytes";
/// How often a command that writes publishes its status, which `top` shows.
pub const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Options of the store.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Tuning {
    /// Memory for the store, from 8M to 1T, allocator overhead excluded: 64M, 2G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_budget: Option<usize>,
    /// Compression of new tables; default: lz4
    #[arg(long, value_name = "METHOD")]
    compression: Option<Compression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Compression {
    /// No compression: for values that are compressed or encrypted already
    None,
    /// Fast: mostly saves more I/O time than it costs
    Lz4,
}

impl From<Compression> for percolite::Compression {
    fn from(compression: Compression) -> Self {
        match compression {
            Compression::None => Self::None,
            Compression::Lz4 => Self::Lz4,
        }
    }
}

impl Tuning {
    pub fn is_set(&self) -> bool {
        self.memory_budget.is_some() || self.compression.is_some()
    }

    /// How many items of this size fit into the memory budget; without a budget, any number.
    pub fn items_that_fit(&self, bytes: usize) -> usize {
        self.memory_budget.map_or(usize::MAX, |memory| memory / bytes)
    }

    pub fn builder(&self) -> Builder {
        let builder = match self.memory_budget {
            Some(bytes) => Store::builder().memory_budget(bytes),
            None => Store::builder(),
        };
        let builder = builder.status_file_interval(STATUS_INTERVAL);
        match self.compression {
            Some(compression) => builder.compression(compression.into()),
            None => builder,
        }
    }
}

fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default().to_ascii_uppercase();
    let shift = match unit.trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(NOT_A_SIZE.into()),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(NOT_A_SIZE.into());
    }
    // A number that exceeds u128 becomes the greatest u128, which is out of bounds, too.
    let bytes = digits.parse().unwrap_or(u128::MAX).saturating_mul(1 << shift);
    let within = MEMORY_BUDGET.check(bytes).ok().and_then(|()| usize::try_from(bytes).ok());
    within.ok_or_else(|| format!("it must be {MEMORY_BUDGET}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_or_are_bytes() {
        for (text, bytes) in
            [("64M", 64 << 20), ("2g", 2 << 30), ("16MiB", 16 << 20), ("8388608", 8 << 20), ("1T", 1 << 40)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "M", "-1M", "+64M", "64X", "1.5G", "64 M", "6\u{e9}M"] {
            assert_eq!(parse_size(wrong), Err(NOT_A_SIZE.into()), "{wrong}");
        }
        let many = "9".repeat(100);
        for out_of_bounds in
            ["0", "0T", "4M", "8388607", "1048577M", "2T", "99999999999T", &many, &(many.clone() + "T")]
        {
            assert_eq!(parse_size(out_of_bounds), Err("it must be from 8 MiB to 1 TiB".into()), "{out_of_bounds}");
        }
    }
}
