//! A writer that is killed in the middle of a commit.
//!
//! A commit in two phases goes: lock every row and leave there what is to be written; then turn the lock of one row, the
//! primary, into a version, which is the *commit point*; then do the same to the other rows. (RocksDB could do that to a thousand rows
//! together; the child's engine says that it can do one at a time.) To die at a chosen moment the
//! child puts an [`Engine`] of its own between store and RocksDB. It looks at the changes that pass. Just before the one with
//! the commit point, or just after it, it says so on standard output and never returns. The parent reads that and sends
//! SIGKILL, which no program can catch: what the child leaves on disk is what a crash would leave.
//!
//! The order comes to the child on standard input as one line of JSON. That pipe stays open while the parent lives; when it
//! ends, so does the child.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use percolite::engine::{ApplyResult, Capabilities, Engine, EngineError, EngineSnapshot, GcEntry, RowBatch};
use percolite::row::{CellChange, Row, TxnRecord};
use percolite::{CommitProtocol, KeyspaceId, RowKey, Store, Timestamp, TxnOptions};
use serde_json::{Value, json};

use super::planned_txns::PlannedTxn;
use super::store::Keyspaces;
use crate::output::print_line;

const SIGKILL: i32 = 9;
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// When the child stops and is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillPoint {
    /// All rows are locked.
    BeforeCommitPoint,
    /// The primary is committed, the other rows are still locked.
    AfterCommitPoint,
}

impl KillPoint {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::BeforeCommitPoint => "before the commit point",
            Self::AfterCommitPoint => "after the commit point",
        }
    }

    fn ready_line(self) -> &'static str {
        match self {
            Self::BeforeCommitPoint => "locked, not committed",
            Self::AfterCommitPoint => "committed, secondaries still locked",
        }
    }
}

/// What the parent has seen of a child.
pub struct KillResult {
    /// The line that it said last.
    pub ready_line: String,
    /// Whether it said what it should and then died of SIGKILL.
    pub killed_as_planned: bool,
}

/// Has a child do the job on the store in `path` and kills it at the moment.
pub fn kill_in_commit(path: &Path, kill_at: KillPoint, job: &PlannedTxn) -> Result<KillResult> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.arg("demo-child").arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = KillOnDrop(command.spawn().context("cannot start the child process")?);
    let mut orders = child.0.stdin.take().ok_or_else(|| anyhow!("the child has no standard input"))?;
    let answers = child.0.stdout.take().ok_or_else(|| anyhow!("the child has no standard output"))?;
    let order = json!({ "after": kill_at == KillPoint::AfterCommitPoint, "job": job.to_json() });
    // A child that died at once is told by what it left on standard output.
    let _ = writeln!(orders, "{order}");

    let (said, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(answers).read_line(&mut line);
        let _ = said.send(read.map(|_| line));
    });
    let line = heard.recv_timeout(KILL_TIMEOUT).context("the child did not come to the moment to be killed at")?;
    let last_words = line.context("cannot listen to the child")?.trim_end().to_owned();
    if last_words.is_empty() {
        let status = child.0.wait().context("cannot wait for the child")?;
        bail!("the child ended by itself ({status})");
    }
    child.0.kill().context("cannot kill the child")?;
    let status = child.0.wait().context("cannot wait for the child")?;
    drop(orders);
    let as_planned = status.signal() == Some(SIGKILL) && last_words == kill_at.ready_line();
    Ok(KillResult { ready_line: last_words, killed_as_planned: as_planned })
}

/// A child that does not outlive an error of its parent.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both do nothing to a child that was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child's command line.
#[derive(clap::Args)]
pub struct ChildArgs {
    /// The store's directory.
    path: PathBuf,
}

/// What the child does.
pub fn run_child(args: &ChildArgs) -> Result<()> {
    let mut order = String::new();
    io::stdin().lock().read_line(&mut order).context("cannot read the order")?;
    std::thread::spawn(|| {
        // The end of the pipe, or an error: either way the parent is gone.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let order: Value = serde_json::from_str(&order).context("the order is not JSON")?;
    let job = order.get("job").and_then(PlannedTxn::from_json).ok_or_else(|| anyhow!("the order names no job"))?;
    let after = order.get("after").and_then(Value::as_bool).unwrap_or_default();
    let kill_at = if after { KillPoint::AfterCommitPoint } else { KillPoint::BeforeCommitPoint };

    let builder = Store::builder().background_resolve(false);
    let engine = PausingEngine { inner: builder.durable_engine(&args.path)?, kill_at };
    let store = builder.open_engine(Arc::new(engine))?;
    let keyspaces = Keyspaces::open(&store)?;
    let mut txn =
        store.begin_with(TxnOptions { commit_protocol: Some(CommitProtocol::TwoPhase), ..TxnOptions::default() })?;
    job.run(&mut txn, &keyspaces)?;
    txn.commit()?;
    bail!("the commit went through without coming to the moment to stop at")
}

/// An engine that stops for good at a moment of a commit, and hands everything on until then.
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
    fn apply(&self, groups: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        let changes = || groups.iter().flat_map(|group| group.changes().into_owned());
        let is_commit_point =
            changes().any(|change| matches!(change.txn_record, CellChange::Put(TxnRecord::Committed(_))));
        if is_commit_point && self.kill_at == KillPoint::BeforeCommitPoint {
            self.pause_forever();
        }
        let outcomes = self.inner.apply(groups)?;
        if is_commit_point {
            self.pause_forever();
        }
        Ok(outcomes)
    }

    /// As if it could change one row at a time, and beside it the record of how a transaction ended: RocksDB would commit all rows
    /// together, and nothing would be left to roll forward.
    fn capabilities(&self) -> Capabilities {
        Capabilities { batch_rows_max: 2, ..self.inner.capabilities() }
    }

    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
        self.inner.snapshot()
    }

    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<Row, EngineError> {
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

    fn txn_records(&self, before: Timestamp, limit: usize) -> Result<Vec<(RowKey, Timestamp)>, EngineError> {
        self.inner.txn_records(before, limit)
    }

    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        self.inner.delete_keyspace(keyspace)
    }
}
