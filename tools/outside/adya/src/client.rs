//! A client of the server, as `adya` drives it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adya::r#gen::TxnOp;
use adya::run::{Client, Outcome};

use crate::request::{parse_answer, request};

/// A connection. After an unknown outcome `adya` drops it and opens another.
pub struct Connection {
    stream: BufReader<UnixStream>,
    power_cuts: Arc<AtomicU64>,
}

impl Connection {
    /// Connects to the server. `power_cuts` is increased before each power cut.
    pub fn open(socket: &Path, power_cuts: &Arc<AtomicU64>) -> std::io::Result<Self> {
        let stream = BufReader::new(UnixStream::connect(socket)?);
        Ok(Self { stream, power_cuts: Arc::clone(power_cuts) })
    }

    fn ask(&mut self, ops: &[TxnOp]) -> anyhow::Result<Outcome> {
        self.stream.get_mut().write_all(request(ops).as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        parse_answer(&line)
    }
}

impl Client for Connection {
    fn txn(&mut self, ops: &[TxnOp]) -> Outcome {
        let before = self.power_cuts.load(Ordering::SeqCst);
        let outcome = self.ask(ops).unwrap_or_else(|error| Outcome::Info(error.to_string()));
        // While ext4 shuts down, a sync may succeed although the new length of the file is lost. A
        // real power cut has no such window, so an answer from then on is none.
        if self.power_cuts.load(Ordering::SeqCst) == before {
            outcome
        } else {
            Outcome::Info("the power was cut".into())
        }
    }
}
