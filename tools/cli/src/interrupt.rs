//! Ctrl-C: long work ends where that makes sense and says what is done. A second one ends the program at once.

use std::io::{self, Cursor, Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use percolite::ErrorKind;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::Code;

/// Whether somebody wants the program to end.
#[derive(Clone)]
pub struct Interrupt(pub Arc<AtomicBool>);

impl Interrupt {
    pub fn watch() -> Result<Self> {
        let wanted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal only sets what the second one looks at.
            flag::register_conditional_shutdown(signal, Code::Interrupted as i32, Arc::clone(&wanted))
                .and_then(|_| flag::register(signal, Arc::clone(&wanted)))
                .context("cannot watch for signals")?;
        }
        Ok(Self(wanted))
    }

    /// For work that is ended in other ways.
    pub fn never() -> Self {
        Self(Arc::default())
    }

    /// What a progress callback of the library answers.
    pub fn control_flow(&self) -> ControlFlow<()> {
        if self.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// What is said of work that the library has ended for it; of other errors, they themselves.
    pub fn map_error(err: percolite::Error, what: impl FnOnce() -> String) -> anyhow::Error {
        match err.kind() {
            ErrorKind::Cancelled(_) => Code::Interrupted.error(format!("interrupted; {}", what())),
            _ => err.into(),
        }
    }

    /// Fails when the program is to end.
    pub fn check(&self, what: &str) -> Result<()> {
        if self.is_requested() { Err(Code::Interrupted.error(format!("interrupted; {what}"))) } else { Ok(()) }
    }

    /// Ends the program beside threads that are at work in a store, which is as if it had crashed: nothing is lost, and nobody
    /// waits for them.
    pub fn exit_now(what: &str) -> ! {
        eprintln!("error: interrupted; {what}");
        signal_hook::low_level::exit(Code::Interrupted as i32)
    }

    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that ends in an error when the program is to end.
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

/// How often a stream that waits for its writer looks whether the program is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const CHUNK_BYTES: usize = 256 << 10;

/// A stream that is opened and read by a thread of its own, so that one whose writer is silent does not keep the program from
/// ending: reading is an error then.
pub struct InterruptibleReader {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Cursor<Vec<u8>>,
    interrupt: Interrupt,
}

impl InterruptibleReader {
    pub fn open<S: Read>(open: impl FnOnce() -> io::Result<S> + Send + 'static, interrupt: &Interrupt) -> Self {
        let (give, chunks) = sync_channel(2);
        std::thread::spawn(move || {
            let read = open().and_then(|mut stream| {
                loop {
                    let mut chunk = vec![0; CHUNK_BYTES];
                    let length = match stream.read(&mut chunk) {
                        Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                        read => read?,
                    };
                    chunk.truncate(length);
                    if length == 0 || give.send(Ok(chunk)).is_err() {
                        return Ok(());
                    }
                }
            });
            // After an interrupt the receiver is gone.
            let _ = read.map_err(|err| give.send(Err(err)));
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
