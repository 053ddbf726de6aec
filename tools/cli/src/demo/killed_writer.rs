//! A writer process that is killed in the middle of a commit.
//!
//! A two-phase commit (Percolator) has three steps: it locks every row and stores the new value
//! there; it turns the lock of one row, the primary, into a version, which is the *commit point*;
//! then it turns the locks of the other rows into versions. The store's engine would commit a
//! thousand rows in one batch, which leaves no locks. So the engine of the writer, a child process,
//! reports a limit of one row per batch.
//!
//! To be killed at a chosen point, the child puts an [`Engine`] between the store and its engine.
//! The engine in between inspects each batch. Immediately before or after the batch with the commit
//! point, it prints a line and never returns. The parent reads the line and sends SIGKILL, which no
//! process can catch: the files are those of a crash.
//!
//! The child reads its task from standard input, as a line of JSON. The parent keeps that pipe
//! open; when the parent ends, the pipe is closed and the child exits.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use percolite::engine::TxnRecordPage;
use percolite::engine::{ApplyResult, Capabilities, Engine, EngineError, EngineSnapshot, GcEntry, RowBatch};
use percolite::row::{CellChange, RowState, TxnRecord};
use percolite::{CommitProtocol, KeyspaceId, RowKey, Store, Timestamp, TxnOptions};
use serde_json::{Value, json};

use super::planned_txns::PlannedTxn;
use super::store::Keyspaces;
use crate::output::print_line;

const SIGKILL: i32 = 9;
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// When the child is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillPoint {
    /// All rows are locked.
    BeforeCommitPoint,
    /// The primary is committed, the other rows are still locked.
    AfterCommitPoint,
}

impl KillPoint {
    /// A description.
    pub fn name(self) -> &'static str {
        match self {
            Self::BeforeCommitPoint => "before the commit point",
            Self::AfterCommitPoint => "after the commit point",
        }
    }

    /// The line that the child prints when it has reached the point.
    fn ready_line(self) -> &'static str {
        match self {
            Self::BeforeCommitPoint => "locked, not committed",
            Self::AfterCommitPoint => "committed, secondaries still locked",
        }
    }
}

/// How a child has ended.
pub struct KillResult {
    /// The line that the child has printed.
    pub ready_line: String,
    /// Whether `ready_line` is the expected line, and SIGKILL ended the child.
    pub as_planned: bool,
}

/// Runs the transaction in a child, on the store in `path`, and kills the child at `kill_at`.
pub fn kill_in_commit(path: &Path, kill_at: KillPoint, txn: &PlannedTxn) -> Result<KillResult> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.arg("demo-child").arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = KillOnDrop(command.spawn().context("cannot start the child process")?);
    let mut stdin = child.0.stdin.take().ok_or_else(|| anyhow!("the child has no standard input"))?;
    let stdout = child.0.stdout.take().ok_or_else(|| anyhow!("the child has no standard output"))?;
    let task = json!({ "after": kill_at == KillPoint::AfterCommitPoint, "txn": txn.to_json() });
    // Writing fails if the child has already ended. Then its output is empty, which is an error
    // below.
    let _ = writeln!(stdin, "{task}");

    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        let _ = sender.send(read.map(|_| line));
    });
    let line = receiver.recv_timeout(KILL_TIMEOUT).context("the child did not reach the kill point in time")?;
    let ready_line = line.context("cannot read the output of the child")?.trim_end().to_owned();
    if ready_line.is_empty() {
        let status = child.0.wait().context("cannot wait for the child")?;
        bail!("the child ended by itself ({status})");
    }
    child.0.kill().context("cannot kill the child")?;
    let status = child.0.wait().context("cannot wait for the child")?;
    drop(stdin);
    let as_planned = status.signal() == Some(SIGKILL) && ready_line == kill_at.ready_line();
    Ok(KillResult { ready_line, as_planned })
}

/// A child that is killed when its parent returns an error.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both calls have no effect if the child was already reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The command line of the child.
#[derive(clap::Args)]
pub struct ChildArgs {
    /// The directory of the store.
    path: PathBuf,
}

/// Runs the child.
pub fn run_child(args: &ChildArgs) -> Result<()> {
    let mut task = String::new();
    io::stdin().lock().read_line(&mut task).context("cannot read the task")?;
    std::thread::spawn(|| {
        // The read returns when the pipe is closed, or with an error: in both cases the parent has
        // ended.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let task: Value = serde_json::from_str(&task).context("the task is not JSON")?;
    let planned = task.get("txn").and_then(PlannedTxn::from_json).ok_or_else(|| anyhow!("the task has no txn"))?;
    let after = task.get("after").and_then(Value::as_bool).unwrap_or_default();
    let kill_at = if after { KillPoint::AfterCommitPoint } else { KillPoint::BeforeCommitPoint };

    let builder = Store::builder().background_resolve(false);
    let engine = PausingEngine { inner: builder.durable_engine(&args.path)?, kill_at };
    let store = builder.open_engine(Arc::new(engine))?;
    let keyspaces = Keyspaces::open(&store)?;
    let mut txn = store.begin_with(TxnOptions::default().commit_protocol(CommitProtocol::TwoPhase))?;
    planned.run(&mut txn, &keyspaces)?;
    txn.commit()?;
    bail!("the commit ended without reaching the kill point")
}

/// An engine that blocks forever at a point of a commit, and passes all other calls on to the
/// store's engine.
struct PausingEngine {
    inner: Arc<dyn Engine>,
    kill_at: KillPoint,
}

impl PausingEngine {
    fn pause_forever(&self) -> ! {
        if print_line(self.kill_at.ready_line()).is_err() {
            std::process::exit(1);
        }
        loop {
            std::thread::park();
        }
    }
}

impl Engine for PausingEngine {
    fn apply(&self, batches: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        let mut changes = batches.iter().flat_map(|batch| batch.changes().into_owned());
        let is_commit_point =
            changes.any(|change| matches!(change.txn_record, CellChange::Put(TxnRecord::Committed(_))));
        if is_commit_point && self.kill_at == KillPoint::BeforeCommitPoint {
            self.pause_forever();
        }
        let results = self.inner.apply(batches)?;
        if is_commit_point {
            self.pause_forever();
        }
        Ok(results)
    }

    /// Limits a batch to one row and the transaction record beside it. Without this limit all rows
    /// would be committed in one batch, and no lock would be left to roll forward.
    fn capabilities(&self) -> Capabilities {
        Capabilities { batch_rows_max: 2, ..self.inner.capabilities() }
    }

    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
        self.inner.snapshot()
    }

    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
        self.inner.read_row(row, start_ts)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.inner.sync()
    }

    fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
        self.inner.get_meta(name)
    }

    fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        self.inner.scan_meta(prefix)
    }

    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        self.inner.write_meta(entries)
    }

    fn safe_point(&self) -> Result<Timestamp, EngineError> {
        self.inner.safe_point()
    }

    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError> {
        self.inner.advance_safe_point(to)
    }

    fn gc_candidates(
        &self,
        after: Option<&GcEntry>,
        upto: Timestamp,
        limit: usize,
    ) -> Result<Vec<GcEntry>, EngineError> {
        self.inner.gc_candidates(after, upto, limit)
    }

    fn txn_records(
        &self,
        before: Timestamp,
        after: Option<&(RowKey, Timestamp)>,
        limit: usize,
    ) -> Result<TxnRecordPage, EngineError> {
        self.inner.txn_records(before, after, limit)
    }

    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        self.inner.delete_keyspace(keyspace)
    }
}
