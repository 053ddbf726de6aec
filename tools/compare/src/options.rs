//! Options that several commands have, and what they come to.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::child::Scratch;
use crate::rounds::Journal;
use crate::spec::Conditions;

/// What every run has.
#[derive(Args)]
pub struct Arguments {
    /// Three rounds of short measurements
    #[arg(long)]
    pub quick: bool,
    /// How many rounds ratios are taken over [default: 7, quick 3]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: Option<u64>,
    /// How long each measurement runs [default: 4, quick 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// How long the clients run before that [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub warm_up: Option<Duration>,
    /// The size of each value, in bytes
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = bytes)]
    pub value: u64,
    /// Memory of each store for what it reads
    #[arg(long, value_name = "BYTES", default_value = "128M", value_parser = bytes)]
    pub cache: u64,
    /// Memory of each store for what it has yet to write
    #[arg(long, value_name = "BYTES", default_value = "128M", value_parser = bytes)]
    pub write_buffers: u64,
    /// Memory that a process can have of its own; one that needs more fails
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = bytes)]
    pub memory: u64,
    /// How long a store may take over one measurement with all that belongs to it
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub limit: Duration,
    /// Where the stores are made, in a folder that goes in the end [default: the system's for temporary files]
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Keeps every result in this file, a line of JSON each
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Goes on with the results that are there
    #[arg(long, requires = "results")]
    pub resume: bool,
    /// Writes a page with tables and drawings
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// One JSON document instead of tables
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    pub fn rounds(&self) -> u64 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 7 })
    }

    pub fn conditions(&self) -> Conditions {
        let millis = |duration: Option<Duration>, default| {
            duration.map_or(default, |duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
        };
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Conditions {
            // A value begins with a number.
            value_bytes: size(self.value).max(8),
            cache_bytes: size(self.cache),
            write_buffer_bytes: size(self.write_buffers),
            memory_bytes: self.memory,
            // As long as it takes to read the blocks of a million rows once.
            warm_up_millis: millis(self.warm_up, 1000),
            millis: millis(self.seconds, if self.quick { 1000 } else { 4000 }),
            operations: None,
        }
    }

    pub fn scratch(&self) -> Result<Scratch> {
        Scratch::new(self.folder.as_deref(), self.limit)
    }

    pub fn journal(&self) -> Result<Journal> {
        Journal::open(self.results.as_deref(), self.resume)
    }
}

fn seconds(text: &str) -> Result<Duration> {
    Duration::try_from_secs_f64(text.parse()?).context("no time")
}

/// A number with K, M or G behind it, or nothing.
fn bytes(text: &str) -> Result<u64> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().with_context(|| format!("{text:?} is no size; one is 1000, 64K, 128M or 2G"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => bail!("{text:?} is no size"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, size) in [("100", 100), ("64K", 64 << 10), ("128M", 128 << 20), ("2g", 2 << 30)] {
            assert_eq!(bytes(text).unwrap(), size);
        }
        for text in ["", "K", "-1", "0", "1.5M", "99999999999G", "é"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!(seconds("0.5").unwrap(), Duration::from_millis(500));
        for text in ["", "-1", "NaN", "inf", "1e300"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
