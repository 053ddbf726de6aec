//! Saying things on standard output.
//!
//! `println!` panics when nobody reads any more (`percolite demo | head`). Here that is an error of its own, [`Unread`],
//! which ends the program without a word, after everything has been tidied up on the way out.

use std::fmt;
use std::io::{self, Write as _};

use anyhow::Result;

/// Standard output has no reader.
#[derive(Debug)]
pub struct Unread;

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for Unread {}

/// Prints a line.
pub fn say(line: impl fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|why| match why.kind() {
        io::ErrorKind::BrokenPipe => Unread.into(),
        _ => anyhow::Error::new(why).context("cannot write to standard output"),
    })
}

/// A count and its noun: `1 record`, `2,000 records`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", indicatif::HumanCount(number), if number == 1 { "" } else { "s" })
}
