//! SIGINT and SIGTERM. The first signal ends long work at a good point, with a message about what
//! was done. A second signal ends the program immediately.

use std::io::{self, Cursor, Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use percolite::ErrorKind;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::exit::Code;

/// Whether a signal has requested the end of the program.
#[derive(Clone)]
pub struct Interrupt(pub Arc<AtomicBool>);

impl Interrupt {
    /// Handles the signals from here on.
    pub fn watch() -> Result<Self> {
        let requested = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Handlers run in the order of their registration. The handler that ends the program if
            // the flag is set must run first, and then the one that sets the flag. In the other
            // order the first signal would already end the program.
            flag::register_conditional_shutdown(signal, Code::Interrupted as i32, Arc::clone(&requested))
                .and_then(|_| flag::register(signal, Arc::clone(&requested)))
                .context("cannot watch for signals")?;
        }
        Ok(Self(requested))
    }

    /// An interrupt that is never requested, for work that is interrupted in another way.
    pub fn never() -> Self {
        Self(Arc::default())
    }

    /// The return value of a progress callback of the library.
    pub fn control_flow(&self) -> ControlFlow<()> {
        if self.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The error of a call; if a progress callback has cancelled the call, the error of an
    /// interrupt.
    pub fn map_error(err: percolite::Error, outcome: impl FnOnce() -> String) -> anyhow::Error {
        match err.kind() {
            ErrorKind::Cancelled(_) => Code::Interrupted.error(format!("interrupted; {}", outcome())),
            _ => err.into(),
        }
    }

    /// An error if the end is requested.
    pub fn check(&self, outcome: &str) -> Result<()> {
        if self.is_requested() { Err(Code::Interrupted.error(format!("interrupted; {outcome}"))) } else { Ok(()) }
    }

    /// Ends the program while other threads use the store. For the store this is a crash: no
    /// durable commit is lost.
    pub fn exit_now(outcome: &str) -> ! {
        eprintln!("error: interrupted; {outcome}");
        signal_hook::low_level::exit(Code::Interrupted as i32)
    }

    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Makes a write beyond the limit of file size an error, which otherwise ends the program. Not so
/// in programs that this one starts.
pub fn survive_file_size_limit() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// A stream that returns an error once the end is requested.
pub struct InterruptibleStream<S> {
    pub stream: S,
    pub interrupt: Interrupt,
}

impl<S> InterruptibleStream<S> {
    fn check(&self) -> io::Result<()> {
        if self.interrupt.is_requested() { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }
}

impl<S: Read> Read for InterruptibleStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.read(buffer)
    }
}

/// How often a read that waits for data checks for an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const CHUNK_BYTES: usize = 256 << 10;

/// A reader of a pipe or a terminal whose reads fail on an interrupt, even while no data arrives. A
/// separate thread opens and reads the stream, because its calls cannot be interrupted.
pub struct InterruptibleReader {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Cursor<Vec<u8>>,
    interrupt: Interrupt,
}

impl InterruptibleReader {
    pub fn open<S: Read>(open: impl FnOnce() -> io::Result<S> + Send + 'static, interrupt: &Interrupt) -> Self {
        let (sender, chunks) = sync_channel(2);
        std::thread::spawn(move || {
            let read = open().and_then(|mut stream| {
                loop {
                    let mut chunk = vec![0; CHUNK_BYTES];
                    let length = match stream.read(&mut chunk) {
                        Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                        read => read?,
                    };
                    chunk.truncate(length);
                    if length == 0 || sender.send(Ok(chunk)).is_err() {
                        return Ok(());
                    }
                }
            });
            // Sending fails after an interrupt, if the receiver is already dropped.
            let _ = read.map_err(|err| sender.send(Err(err)));
        });
        Self { chunks, chunk: Cursor::default(), interrupt: interrupt.clone() }
    }

    /// Standard input.
    pub fn stdin(interrupt: &Interrupt) -> Self {
        Self::open(|| Ok(io::stdin().lock()), interrupt)
    }
}

impl Read for InterruptibleReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.chunk.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match self.chunks.recv_timeout(POLL_INTERVAL) {
                Ok(chunk) => self.chunk = Cursor::new(chunk?),
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
                Err(RecvTimeoutError::Timeout) if self.interrupt.is_requested() => {
                    return Err(io::Error::other("interrupted"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl<S: Write> Write for InterruptibleStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
