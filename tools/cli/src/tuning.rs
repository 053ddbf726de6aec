//! `--memory` and `--compression`: options of the commands that write.

use std::time::Duration;

use percolite::{Builder, Store};

/// Below this the store does not keep to it.
const MEMORY_MIN_BYTES: usize = 8 << 20;
/// How often a command that writes for longer says what it does, for `top` to be shown.
pub const STATUS_EVERY: Duration = Duration::from_secs(1);

/// How the store is to be run.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Tuning {
    /// Take about so much memory, besides what the allocator keeps: 64M, 2G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<usize>,
    /// How tables are compressed that are written from now on; default: lz4
    #[arg(long, value_name = "HOW")]
    compression: Option<Compression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Compression {
    /// Not at all: for values that are compressed or encrypted already
    None,
    /// Costs less time than it saves, mostly
    Lz4,
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
            Some(bytes) => Store::builder().memory_limit(bytes),
            None => Store::builder(),
        };
        let builder = builder.publish_status(STATUS_EVERY);
        match self.compression {
            Some(Compression::None) => builder.compression(percolite::Compression::None),
            Some(Compression::Lz4) => builder.compression(percolite::Compression::Lz4),
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
        _ => return Err("not a size: 64M, 2G, or a number of bytes".into()),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    match bytes {
        None => Err("not a size: 64M, 2G, or a number of bytes".into()),
        Some(bytes) if bytes < MEMORY_MIN_BYTES => Err("a store needs 8M at least".into()),
        Some(bytes) => Ok(bytes),
    }
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
        for wrong in ["", "M", "-1M", "64X", "1.5G", "4M", "0", "99999999999T", "64 M", "6\u{e9}M"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
