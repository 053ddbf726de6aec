//! `--memory` and `--compression`: options of the commands that write.

use std::time::Duration;

use percolite::bounds::MEMORY_BUDGET;
use percolite::{Builder, Store};

const NO_SIZE: &str = "not a size: 64M, 2G, or a number of bytes";
/// How often a command that writes for longer says what it does, for `top` to be shown.
pub const STATUS_EVERY: Duration = Duration::from_secs(1);

/// How the store is to be run.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Tuning {
    /// Take about so much memory, from 8M to 1T, besides what the allocator keeps: 64M, 2G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<usize>,
    /// How tables are compressed that are written from now on; default: lz4
    #[arg(long, value_name = "HOW")]
    compression: Option<Compression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Compression {
    /// Not at all: for values that are compressed or encrypted already
    None,
    /// Costs less time than it saves, mostly
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
        self.memory.is_some() || self.compression.is_some()
    }

    /// How many of these fit into the memory that is named; any number if none is.
    pub fn share(&self, bytes: usize) -> usize {
        self.memory.map_or(usize::MAX, |memory| memory / bytes)
    }

    pub fn builder(&self) -> Builder {
        let builder = match self.memory {
            Some(bytes) => Store::builder().memory_budget(bytes),
            None => Store::builder(),
        };
        let builder = builder.status_file_interval(STATUS_EVERY);
        match self.compression {
            Some(compression) => builder.compression(compression.into()),
            None => builder,
        }
    }
}

fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default().to_ascii_uppercase();
    let shift = match unit.trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(NO_SIZE.into()),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(NO_SIZE.into());
    }
    // With more digits than there are numbers it is as far out of bounds as the greatest of them.
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
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "M", "-1M", "+64M", "64X", "1.5G", "64 M", "6\u{e9}M"] {
            assert_eq!(size(wrong), Err(NO_SIZE.into()), "{wrong}");
        }
        let many = "9".repeat(100);
        for out_of_bounds in
            ["0", "0T", "4M", "8388607", "1048577M", "2T", "99999999999T", &many, &(many.clone() + "T")]
        {
            assert_eq!(size(out_of_bounds), Err("it must be from 8 MiB to 1 TiB".into()), "{out_of_bounds}");
        }
    }
}
