//! The commands of the protocol scripts.
//!
//! A command is one step of a transaction at one row: `prewrite T10 a put=1`. `T10` is the
//! transaction that began at timestamp 10. Timestamps are plain numbers. The `read_ts` of a
//! transaction is one below its `start_ts`, unless its prewrite has `read_ts=`. The output is the
//! step's result and then the cells of all rows: one line a row, columns in the order of the
//! protocol.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use goldenscript::Context;
use percolite::Timestamp;
use percolite::engine::{ApplyResult, Engine, EngineSnapshot, RowBatch};
use percolite::internal::protocol::{
    CheckTxnStatus, CommitRow, GcRequest, Heartbeat, OldVersion, OnePhase, OwnerLiveness, Prewrite, PrewriteResult,
    Resolve, Rollback, Step, StepError, check_txn_status, commit, commit_at_least, delete_txn_record, gc_row,
    heartbeat, one_phase, prewrite, resolve, rollback,
};
use percolite::row::WriteRecord;
use percolite::row::{
    KeyspaceId, Lock, LockType, Mutation, RowChange, RowKey, RowState, StoredValue, TxnId, TxnRecord,
};
use percolite::{OwnerId, TxnStatus};

#[derive(goldenscript::Command)]
pub enum Command {
    /// Locks a row: `prewrite T10 b put=1 primary=a`. The primary is the row itself if none is
    /// given. `put` is the value, or `put_bytes` its length; `delete` and `lock_only` are flags.
    Prewrite {
        txn: String,
        key: String,
        #[arg(key)]
        put: Option<String>,
        #[arg(key)]
        put_bytes: Option<usize>,
        #[arg(key, optional)]
        delete: bool,
        #[arg(key, optional)]
        lock_only: bool,
        #[arg(key)]
        primary: Option<String>,
        #[arg(key)]
        read_ts: Option<u64>,
        #[arg(key)]
        write_seq: Option<u32>,
        #[arg(key)]
        ttl_ms: Option<u64>,
    },
    /// Turns the lock into a version: `commit T10 a ts=20 record=true` on a primary with locked
    /// secondaries, `commit T10 b ts=20` on a secondary. With `at_least`, a lock that was pushed
    /// above `ts` is committed at the timestamp that it was pushed to.
    Commit {
        txn: String,
        key: String,
        #[arg(key)]
        ts: u64,
        #[arg(key, optional)]
        record: bool,
        #[arg(key, optional)]
        keep_old_version: bool,
        #[arg(key, optional)]
        on_shared_engine: bool,
        #[arg(key, optional)]
        at_least: bool,
    },
    /// Commits a row in one step: `one_phase T10 a ts=20 put=1`.
    OnePhase {
        txn: String,
        key: String,
        #[arg(key)]
        ts: u64,
        #[arg(key)]
        put: Option<String>,
        #[arg(key, optional)]
        delete: bool,
    },
    /// Rolls the transaction back on a row.
    Rollback { txn: String, key: String },
    /// Extends the primary's time to live: `heartbeat T10 a ttl_ms=5000`.
    Heartbeat {
        txn: String,
        key: String,
        #[arg(key)]
        ttl_ms: u64,
    },
    /// Checks the transaction's status at its primary. A pending one whose owner has ended is
    /// rolled back. Without `now` the owner counts as ended; with it, only if the lock's time to
    /// live is over at that timestamp. A live owner's lock is pushed above `push_above`, if given.
    Status {
        txn: String,
        primary: String,
        #[arg(key)]
        now: Option<u64>,
        #[arg(key)]
        push_above: Option<u64>,
    },
    /// Resolves a lock to the status that the primary shows: `resolve T10 b primary=a`.
    Resolve {
        txn: String,
        key: String,
        #[arg(key)]
        primary: String,
    },
    /// Deletes the transaction record at the primary.
    DeleteRecord { txn: String, primary: String },
    /// Runs GC on a row's entries in the GC queue up to a timestamp.
    Gc {
        key: String,
        #[arg(key)]
        upto: u64,
    },
    /// Advances the safe point.
    SafePoint { ts: u64 },
}

type Output = Result<String, Box<dyn Error>>;

pub struct Runner {
    engine: Arc<dyn Engine>,
    keys: BTreeSet<String>,
    transactions: BTreeSet<Timestamp>,
}

impl Runner {
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self { engine, keys: BTreeSet::new(), transactions: BTreeSet::new() }
    }

    fn txn(&mut self, name: &str) -> Result<TxnId, Box<dyn Error>> {
        let number = name.strip_prefix('T').ok_or("a transaction is T and a number")?.parse()?;
        self.transactions.insert(ts(number));
        Ok(TxnId { start_ts: ts(number), owner: OwnerId::from_u64(number) })
    }

    fn row(&mut self, key: &str) -> RowKey {
        self.keys.insert(key.into());
        row(key)
    }

    fn apply(&self, change: RowChange) -> Result<(), Box<dyn Error>> {
        match self.engine.apply(&[RowBatch::Changes(vec![change])])?.pop() {
            Some(ApplyResult::Applied) => Ok(()),
            refused => Err(format!("the row as read does not meet the preconditions: {refused:?}").into()),
        }
    }

    /// Reads the row, runs the step and applies its change.
    fn step<T>(
        &self,
        row: &RowKey,
        txn: TxnId,
        step: impl FnOnce(&RowState) -> Result<Step<T>, StepError>,
        show: impl FnOnce(T) -> String,
    ) -> Output {
        match step(&self.engine.read_row(row, txn.start_ts)?) {
            Ok(Step::Apply(change, result)) => {
                self.apply(change)?;
                Ok(show(result))
            }
            Ok(Step::Done(result)) => Ok(format!("{} (no change)", show(result))),
            Err(error) => Ok(format!("error: {}", describe_error(&error))),
        }
    }

    fn status(&mut self, txn: &str, primary: &str, now: Option<u64>, push_above: Option<u64>) -> Output {
        let liveness = match now {
            None => OwnerLiveness::Ended,
            Some(now) => OwnerLiveness::ByTtl { current_ts: ts(now), push_above: push_above.map(ts) },
        };
        let txn = self.txn(txn)?;
        let request = CheckTxnStatus { row: self.row(primary), txn, liveness };
        self.step(&request.row, txn, |row| check_txn_status(row, &request), status)
    }

    fn resolve(&mut self, txn: &str, key: &str, primary: &str) -> Output {
        let txn = self.txn(txn)?;
        let at_primary = self.engine.read_row(&row(primary), txn.start_ts)?;
        let status = percolite::internal::protocol::txn_status_or_rolled_back(&at_primary, txn);
        let request = Resolve { row: self.row(key), txn, status, keep_old_version: false, on_shared_engine: false };
        let show = |()| format!("resolved: {}", self::status(status));
        self.step(&request.row, txn, |row| resolve(row, &request), show)
    }

    fn gc(&self, row: RowKey, upto: u64) -> Output {
        let queue = self.engine.gc_candidates(None, ts(upto), usize::MAX)?;
        let replaced_at: Vec<_> = queue.into_iter().filter(|entry| entry.1 == row).map(|entry| entry.0).collect();
        let snapshot = self.engine.snapshot()?;
        let mut old_versions = Vec::new();
        for replaced in &replaced_at {
            old_versions.extend(snapshot.version_at(&row, replaced.previous())?.as_ref().map(OldVersion::from));
        }
        let request = GcRequest { row, replaced_at, old_versions };
        let as_read = self.engine.read_row(&request.row, Timestamp::ZERO)?;
        let change = gc_row(&as_read, &request);
        let done: Vec<_> = change.gc_done.iter().map(|ts| ts.to_u64()).collect();
        self.apply(change)?;
        Ok(format!("GC done: {done:?}"))
    }

    fn run_step(&mut self, command: &Command) -> Output {
        match command {
            Command::Prewrite { txn, key, put, put_bytes, delete, lock_only, primary, read_ts, write_seq, ttl_ms } => {
                let txn = self.txn(txn)?;
                let large = put_bytes.map(|bytes| "x".repeat(bytes));
                let mutation = mutation(put.as_ref().or(large.as_ref()), *delete, *lock_only)?;
                let request = Prewrite {
                    row: self.row(key),
                    txn,
                    read_ts: read_ts.map_or(txn.start_ts.previous(), ts),
                    primary: row(primary.as_ref().unwrap_or(key)),
                    mutation,
                    write_seq: write_seq.unwrap_or(1),
                    ttl_ms: ttl_ms.unwrap_or(0),
                    min_commit_ts: Timestamp::ZERO,
                };
                self.step(&request.row, txn, |row| prewrite(row, &request), prewritten)
            }
            Command::Commit { txn, key, ts: commit_ts, record, keep_old_version, on_shared_engine, at_least } => {
                let txn = self.txn(txn)?;
                let request = CommitRow {
                    row: self.row(key),
                    txn,
                    commit_ts: ts(*commit_ts),
                    keep_txn_record: *record,
                    keep_old_version: *keep_old_version,
                    on_shared_engine: *on_shared_engine,
                };
                let step = if *at_least { commit_at_least } else { commit };
                self.step(&request.row, txn, |row| step(row, &request), |ts| format!("committed {}", at(ts)))
            }
            Command::OnePhase { txn, key, ts: commit_ts, put, delete } => {
                let txn = self.txn(txn)?;
                let (row, mutation) = (self.row(key), mutation(put.as_ref(), *delete, false)?);
                let (read_ts, commit_ts) = (txn.start_ts.previous(), ts(*commit_ts));
                let request =
                    OnePhase { row: &row, txn, read_ts, commit_ts, mutation: &mutation, keep_old_version: false };
                self.step(&row, txn, |row| one_phase(row, &request), |ts| format!("committed {}", at(ts)))
            }
            Command::Rollback { txn, key } => {
                let request = Rollback { txn: self.txn(txn)?, row: self.row(key) };
                self.step(&request.row, request.txn, |row| rollback(row, &request), |()| "rolled back".into())
            }
            Command::Heartbeat { txn, key, ttl_ms } => {
                let request = Heartbeat { txn: self.txn(txn)?, row: self.row(key), ttl_ms: *ttl_ms };
                self.step(&request.row, request.txn, |row| heartbeat(row, &request), |ttl| format!("ttl {ttl} ms"))
            }
            Command::Status { txn, primary, now, push_above } => self.status(txn, primary, *now, *push_above),
            Command::Resolve { txn, key, primary } => self.resolve(txn, key, primary),
            Command::DeleteRecord { txn, primary } => {
                let txn = self.txn(txn)?;
                let change = delete_txn_record(self.row(primary), txn.start_ts);
                self.apply(change)?;
                Ok("deleted".into())
            }
            Command::Gc { key, upto } => {
                let row = self.row(key);
                self.gc(row, *upto)
            }
            Command::SafePoint { ts: to } => {
                self.engine.advance_safe_point(ts(*to))?;
                Ok("advanced".into())
            }
        }
    }

    /// The cells of all rows, as a table.
    fn columns(&self) -> Output {
        let snapshot = self.engine.snapshot()?;
        let mut table = vec![["", "lock", "write", "data", "record", "history"].map(String::from)];
        for key in &self.keys {
            let cells = self.cells(&*snapshot, key)?;
            if cells[1..].iter().any(|cell| !cell.is_empty()) {
                table.push(cells);
            }
        }
        let mut text = String::new();
        let shown = |column: &usize| *column == 0 || table[1..].iter().any(|line| !line[*column].is_empty());
        let columns: Vec<usize> = (0..table[0].len()).filter(shown).collect();
        for line in table.iter().filter(|_| table.len() > 1) {
            let mut padded = String::new();
            for &column in &columns {
                let width = table.iter().map(|line| line[column].len()).max().unwrap_or(0);
                write!(padded, "{:width$}  ", line[column])?;
            }
            writeln!(text, "    {}", padded.trim_end())?;
        }
        Ok(text)
    }

    fn cells(&self, snapshot: &dyn EngineSnapshot, key: &str) -> Result<[String; 6], Box<dyn Error>> {
        let (row, mut data, mut records, mut history) = (row(key), Vec::new(), Vec::new(), Vec::new());
        for &start_ts in &self.transactions {
            let number = start_ts.to_u64();
            let value = snapshot.data(&row, start_ts)?;
            data.extend(value.map(|value| format!("T{number}: {}", text(&value))));
            records.extend(snapshot.txn_record(&row, start_ts)?.map(|record| match record {
                TxnRecord::Committed(commit_ts) => format!("T{number} committed {}", at(commit_ts)),
                TxnRecord::RolledBack => format!("T{number} rolled back"),
            }));
        }
        let mut upto = Timestamp::MAX;
        while let Some(version) = snapshot.version_at(&row, upto)? {
            upto = version.commit_ts.previous();
            history.push(write(&version));
        }
        let lock = snapshot.lock(&row)?.as_ref().map(lock).unwrap_or_default();
        let newest = snapshot.write(&row)?.as_ref().map(write).unwrap_or_default();
        Ok([key.to_string(), lock, newest, data.join(", "), records.join(", "), history.join(", ")])
    }
}

impl goldenscript::Runner for Runner {
    type Command = Command;

    fn run(&mut self, command: &Command, _context: &Context) -> Output {
        let result = self.run_step(command)?;
        Ok(format!("{result}\n{}", self.columns()?))
    }
}

fn ts(number: u64) -> Timestamp {
    Timestamp::from_u64(number)
}

fn at(ts: Timestamp) -> String {
    format!("@{}", ts.to_u64())
}

fn row(key: &str) -> RowKey {
    RowKey::new(KeyspaceId(1), key.as_bytes())
}

fn mutation(put: Option<&String>, delete: bool, lock_only: bool) -> Result<Mutation, Box<dyn Error>> {
    match (put, delete, lock_only) {
        (Some(value), false, false) => Ok(Mutation::Put(value.as_str().into())),
        (None, true, false) => Ok(Mutation::Delete),
        (None, false, true) => Ok(Mutation::LockOnly),
        _ => Err("one of put, put_bytes, delete and lock_only".into()),
    }
}

fn text(value: &[u8]) -> String {
    if value.len() > 16 { format!("{} bytes", value.len()) } else { value.escape_ascii().to_string() }
}

fn prewritten(result: PrewriteResult) -> String {
    match result {
        PrewriteResult::Locked { min_commit_ts: Timestamp::ZERO } => "locked".into(),
        PrewriteResult::Locked { min_commit_ts } => format!("locked, min_commit_ts {}", at(min_commit_ts)),
        PrewriteResult::Committed(commit_ts) => format!("already committed {}", at(commit_ts)),
    }
}

fn content(value: &StoredValue) -> String {
    match value {
        StoredValue::Inline(value) => format!("put {}", text(value)),
        StoredValue::OutOfLine => "put, in data".into(),
    }
}

fn lock(lock: &Lock) -> String {
    let mutation = match &lock.lock_type {
        LockType::Put(value) => content(value),
        LockType::Delete => "delete".into(),
        LockType::LockOnly => "lock only".into(),
    };
    let primary = String::from_utf8_lossy(lock.primary.user_key()).into_owned();
    let mut text = format!("T{} {mutation}, primary {primary}", lock.txn.start_ts.to_u64());
    if lock.write_seq > 1 {
        text += &format!(", write {}", lock.write_seq);
    }
    if lock.ttl_ms > 0 {
        text += &format!(", ttl {} ms", lock.ttl_ms);
    }
    if lock.min_commit_ts > Timestamp::ZERO {
        text += &format!(", min_commit_ts {}", at(lock.min_commit_ts));
    }
    text
}

fn write(write: &WriteRecord) -> String {
    let value = write.value.as_ref().map_or_else(|| "tombstone".into(), content);
    let lock_only = write.lock_only_ts.map(|ts| format!(", locked {}", at(ts))).unwrap_or_default();
    format!("{} T{} {value}{lock_only}", at(write.commit_ts), write.txn.start_ts.to_u64())
}

fn status(status: TxnStatus) -> String {
    match status {
        TxnStatus::Pending => "pending".into(),
        TxnStatus::Committed(commit_ts) => format!("committed {}", at(commit_ts)),
        TxnStatus::RolledBack => "rolled back".into(),
    }
}

fn describe_error(error: &StepError) -> String {
    match error {
        StepError::KeyIsLocked(found) => format!("key is locked by {}", lock(found)),
        StepError::WriteConflict(newer) => format!("write conflict with {}", write(newer)),
        StepError::AlreadyCommitted(commit_ts) => format!("already committed {}", at(*commit_ts)),
        StepError::AlreadyRolledBack => "already rolled back".into(),
        StepError::StaleRequest => "stale request".into(),
        StepError::CommitTsTooLow(earliest) => format!("commit timestamp too low: at least {}", at(*earliest)),
        StepError::PrimaryMismatch(found) => format!("the primary is another row: {}", lock(found)),
        StepError::BelowSafePoint(safe_point) => format!("below the safe point {}", at(*safe_point)),
        StepError::FutureTimestamp(ts) => format!("timestamp {} is in the future", at(*ts)),
    }
}
