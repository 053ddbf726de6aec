//! The options of most commands, and the conditions that they define.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::child::ScratchDir;
use crate::rounds::ResultsFile;
use crate::spec::Conditions;

#[derive(Args)]
pub struct CommonArgs {
    /// Three rounds of short measurements
    #[arg(long)]
    pub quick: bool,
    /// Number of rounds [default: 7, quick 3]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: Option<u64>,
    /// Duration of each measurement [default: 4, quick 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Warm-up before each measurement [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub warm_up: Option<Duration>,
    /// Size of each value
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = bytes)]
    pub value_size: u64,
    /// Cache of each store for reads
    #[arg(long, value_name = "BYTES", default_value = "128M", value_parser = bytes)]
    pub cache: u64,
    /// Write buffers of each store
    #[arg(long, value_name = "BYTES", default_value = "128M", value_parser = bytes)]
    pub write_buffers: u64,
    /// Limit of a process's private memory; a store that needs more fails
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = bytes)]
    pub memory_limit: u64,
    /// Limit of one measurement, with its preparation and verification
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub timeout: Duration,
    /// Where to create the temporary stores [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Save every result in this file, one line of JSON each
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Continue with the results in that file
    #[arg(long, requires = "results")]
    pub resume: bool,
    /// Write an HTML page with tables and charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document instead of tables
    #[arg(long)]
    pub json: bool,
}

impl CommonArgs {
    pub fn rounds(&self) -> u64 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 7 })
    }

    pub fn conditions(&self) -> Conditions {
        let millis = |duration: Option<Duration>, default| {
            duration.map_or(default, |duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
        };
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Conditions {
            // A value has at least eight bytes, because it starts with a number of that size.
            value_bytes: size(self.value_size).max(8),
            cache_bytes: size(self.cache),
            write_buffer_bytes: size(self.write_buffers),
            memory_bytes: self.memory_limit,
            // Long enough to read the blocks of a million rows once.
            warm_up_millis: millis(self.warm_up, 1000),
            millis: millis(self.seconds, if self.quick { 1000 } else { 4000 }),
            operations: None,
        }
    }

    pub fn scratch_dir(&self) -> Result<ScratchDir> {
        ScratchDir::new(self.dir.as_deref(), self.timeout)
    }

    pub fn results_file(&self) -> Result<ResultsFile> {
        ResultsFile::open(self.results.as_deref(), self.resume)
    }
}

fn seconds(text: &str) -> Result<Duration> {
    Duration::try_from_secs_f64(text.parse()?).context("not a duration in seconds")
}

/// Parses a size: a number, and optionally K, M or G.
fn bytes(text: &str) -> Result<u64> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().with_context(|| format!("{text:?} is not a size such as 1000, 64K, 128M or 2G"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => bail!("the size {text:?} is zero or too large"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, size) in [("100", 100), ("64K", 64 << 10), ("128M", 128 << 20), ("2g", 2 << 30)] {
            assert_eq!(bytes(text).unwrap(), size);
        }
        for text in ["", "K", "-1", "0", "1.5M", "99999999999G", "é"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_parsed() {
        assert_eq!(seconds("0.5").unwrap(), Duration::from_millis(500));
        for text in ["", "-1", "NaN", "inf", "1e300"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
