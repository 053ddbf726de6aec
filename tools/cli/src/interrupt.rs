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
    pub fn flow(&self) -> ControlFlow<()> {
        if self.is_wanted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// What is said of work that the library has ended for it; of other errors, they themselves.
    pub fn told(why: percolite::Error, what: impl FnOnce() -> String) -> anyhow::Error {
        match why.kind() {
            ErrorKind::Cancelled(_) => Code::Interrupted.error(format!("interrupted; {}", what())),
            _ => why.into(),
        }
    }

    /// Fails when the program is to end.
    pub fn check(&self, what: &str) -> Result<()> {
        if self.is_wanted() { Err(Code::Interrupted.error(format!("interrupted; {what}"))) } else { Ok(()) }
    }

    /// Ends the program beside threads that are at work in a store, which is as if it had crashed: nothing is lost, and nobody
    /// waits for them.
    pub fn end_at_once(what: &str) -> ! {
        eprintln!("error: interrupted; {what}");
        signal_hook::low_level::exit(Code::Interrupted as i32)
    }

    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that ends in an error when the program is to end.
pub struct Ending<S> {
    pub stream: S,
    pub interrupt: Interrupt,
}

impl<S> Ending<S> {
    fn check(&self) -> io::Result<()> {
        if self.interrupt.is_wanted() { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }
}

impl<S: Read> Read for Ending<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.read(buffer)
    }
}

/// How often a stream that waits for its writer looks whether the program is to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const CHUNK_BYTES: usize = 256 << 10;

/// A stream that is opened and read by a thread of its own, so that one whose writer is silent does not keep the program from
/// ending: reading is an error then.
pub struct Patient {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Cursor<Vec<u8>>,
    interrupt: Interrupt,
}

impl Patient {
    pub fn open<S: Read>(open: impl FnOnce() -> io::Result<S> + Send + 'static, interrupt: &Interrupt) -> Self {
        let (give, chunks) = sync_channel(2);
        std::thread::spawn(move || {
            let read = open().and_then(|mut stream| {
                loop {
                    let mut chunk = vec![0; CHUNK_BYTES];
                    let length = match stream.read(&mut chunk) {
                        Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                        read => read?,
                    };
                    chunk.truncate(length);
                    if length == 0 || give.send(Ok(chunk)).is_err() {
                        return Ok(());
                    }
                }
            });
            // After an interrupt the receiver is gone.
            let _ = read.map_err(|why| give.send(Err(why)));
        });
        Self { chunks, chunk: Cursor::default(), interrupt: interrupt.clone() }
    }

    /// Standard input.
    pub fn stdin(interrupt: &Interrupt) -> Self {
        Self::open(|| Ok(io::stdin().lock()), interrupt)
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.chunk.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match self.chunks.recv_timeout(LOOK_EVERY) {
                Ok(chunk) => self.chunk = Cursor::new(chunk?),
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
                Err(RecvTimeoutError::Timeout) if self.interrupt.is_wanted() => {
                    return Err(io::Error::other("interrupted"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl<S: Write> Write for Ending<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
