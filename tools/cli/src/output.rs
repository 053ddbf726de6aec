//! Printing to standard output.
//!
//! `println!` panics when the reader has closed the pipe (`percolite demo | head`). The functions
//! of this module return the error [`BrokenPipe`] instead. Callers return it like any other error,
//! so temporary files are removed, and the program ends without a message.
//!
//! A terminal gets tables ([`crate::table`]). Anything else gets plain lines with a tab between
//! columns: no borders, no colours, nothing truncated.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal as _, Write};

use anyhow::Result;

/// The reader of standard output has closed the pipe.
#[derive(Debug)]
pub struct BrokenPipe;

impl fmt::Display for BrokenPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader has closed the output")
    }
}

impl std::error::Error for BrokenPipe {}

/// Any other error of writing to standard output.
#[derive(Debug)]
pub struct StdoutError(io::Error);

impl fmt::Display for StdoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for StdoutError {}

/// Whether standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Prints a line.
pub fn print_line(line: impl fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(stdout_error)
}

/// Prints bytes verbatim.
pub fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(stdout_error)
}

/// Maps an error of writing to standard output.
pub fn stdout_error(err: io::Error) -> anyhow::Error {
    match err.kind() {
        io::ErrorKind::BrokenPipe => BrokenPipe.into(),
        _ => StdoutError(err).into(),
    }
}

/// A buffered writer of many lines.
pub struct LineWriter(BufWriter<io::StdoutLock<'static>>);

impl LineWriter {
    pub fn new() -> Self {
        Self(BufWriter::with_capacity(1 << 16, io::stdout().lock()))
    }

    pub fn write_line(&mut self, line: impl fmt::Display) -> Result<()> {
        writeln!(self.0, "{line}").map_err(stdout_error)
    }

    /// Writes bytes verbatim; the caller adds the line ends.
    pub fn write_bytes(&mut self, lines: &[u8]) -> Result<()> {
        self.0.write_all(lines).map_err(stdout_error)
    }

    pub fn finish(mut self) -> Result<()> {
        self.0.flush().map_err(stdout_error)
    }
}

/// A count and its noun: `1 record`, `2,000 records`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", indicatif::HumanCount(number), if number == 1 { "" } else { "s" })
}
