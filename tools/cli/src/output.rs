//! Saying things on standard output.
//!
//! `println!` panics when nobody reads any more (`percolite demo | head`). Here that is an error of its own, [`Unread`],
//! which ends the program without a word, after everything has been tidied up on the way out.
//!
//! A terminal gets tables ([`crate::table`]). Anything else gets plain lines, with a tab between columns: no borders, no colours, nothing
//! cut off.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal as _, Write};

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

/// Standard output takes nothing.
#[derive(Debug)]
pub struct Unsaid(io::Error);

impl fmt::Display for Unsaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for Unsaid {}

/// Whether people read it, and not a program.
pub fn is_for_people() -> bool {
    io::stdout().is_terminal()
}

/// Prints a line.
pub fn say(line: impl fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(unsaid)
}

/// Prints bytes as they are.
pub fn say_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(unsaid)
}

/// What an error of writing to standard output means.
pub fn unsaid(why: io::Error) -> anyhow::Error {
    match why.kind() {
        io::ErrorKind::BrokenPipe => Unread.into(),
        _ => Unsaid(why).into(),
    }
}

/// Many lines, written when there are enough of them.
pub struct Lines(BufWriter<io::StdoutLock<'static>>);

impl Lines {
    pub fn new() -> Self {
        Self(BufWriter::with_capacity(1 << 16, io::stdout().lock()))
    }

    pub fn say(&mut self, line: impl fmt::Display) -> Result<()> {
        writeln!(self.0, "{line}").map_err(unsaid)
    }

    /// A line as it is, or several, with their ends.
    pub fn bytes(&mut self, lines: &[u8]) -> Result<()> {
        self.0.write_all(lines).map_err(unsaid)
    }

    pub fn finish(mut self) -> Result<()> {
        self.0.flush().map_err(unsaid)
    }
}

/// A count and its noun: `1 record`, `2,000 records`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", indicatif::HumanCount(number), if number == 1 { "" } else { "s" })
}
