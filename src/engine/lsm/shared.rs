//! The state that writers, snapshots and the flush thread share.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use rapidhash::v3::RapidSecrets;

use super::read_state::{CurrentState, ImmutableMemtable, ReadState};
use crate::cell::Column;
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::stall_tracker::StallTracker;
use crate::engine::storage::Storage;
use crate::memtable::{Memtable, MemtableWriter};
use crate::os_limits::with_advice;
use crate::process::Process;
use crate::sync::Mutex;
use crate::wal::{self, WalHandle, WalWriter};

/// The key of the flushed sequence: the tables have all frames up to it.
pub const FLUSHED_SEQUENCE_KEY: &[u8] = b"\0flushed sequence";

/// The key of the flush target: the last sequence of the memtable whose flush began last. It is
/// written when a flush begins, the flushed sequence when it ends. If the target is higher, the
/// tables may have any part of the frames after the flushed sequence, up to the target.
pub const FLUSH_TARGET_KEY: &[u8] = b"\0flush target";

/// Whether this is the key of an internal cell, which readers do not see. No other metadata key
/// begins with a zero byte.
pub fn is_internal_key(column: Column, key: &[u8]) -> bool {
    column == Column::Meta && key.first() == Some(&0)
}

pub struct Shared<D: Disk, T: Storage> {
    pub tables: T,
    /// `None` if opened read-only.
    pub write_path: Option<WritePath<D>>,
    pub state: Mutex<CurrentState<T::Snapshot>>,
    pub writing: Mutex<()>,
    pub failure: OnceLock<EngineError>,
    /// Always empty. If a flush has given a snapshot the RocksDB snapshot of a stripe, the snapshot
    /// reads nothing else. Its read state then has this memtable as the active one.
    pub empty_memtable: Arc<Memtable>,
    pub stalls: StallTracker,
    pub process: Process,
}

/// What only a writable storage has.
pub struct WritePath<D: Disk> {
    pub wal: WalHandle<D>,
    pub writer: Mutex<WriterState<D>>,
    /// Serializes flushes.
    pub flush_lock: Mutex<()>,
    pub secrets: RapidSecrets,
    pub memtable_bytes: usize,
    /// Whether a sync has made frames durable that the sync record does not cover yet.
    pub record_needed: AtomicBool,
    /// See [`LsmOptions`](super::LsmOptions::is_disk_full).
    pub is_disk_full: Arc<AtomicBool>,
}

/// State under the writer's lock.
pub struct WriterState<D: Disk> {
    pub wal: WalWriter<D>,
    pub memtable: MemtableWriter,
    /// A scratch list, reused for its capacity: the sequences at which snapshots are open or may
    /// still open. When a batch is added, the versions that these snapshots read are kept.
    pub open_sequences: Vec<u64>,
    pub next_salt: Box<dyn FnMut() -> u64 + Send>,
}

impl<D: Disk, T: Storage> Shared<D, T> {
    pub fn new(
        tables: T,
        write_path: Option<WritePath<D>>,
        active: Arc<Memtable>,
        immutable: Option<Arc<Memtable>>,
        secrets: RapidSecrets,
        (flushed_sequence, end): (u64, u64),
    ) -> Result<Self, EngineError> {
        let immutable = immutable
            .filter(|memtable| !memtable.is_empty())
            .map(|memtable| ImmutableMemtable { memtable, last_sequence: end });
        let read_state = ReadState { active, immutable, tables: Arc::new(tables.snapshot()?), flushed_sequence };
        let read_state = Arc::new(read_state);
        let current = CurrentState { visible_sequence: end, read_state, snapshots: BTreeMap::new() };
        Ok(Self {
            tables,
            write_path,
            state: Mutex::new(current),
            writing: Mutex::default(),
            failure: OnceLock::new(),
            empty_memtable: Arc::clone(MemtableWriter::new(u64::MAX, secrets).memtable()),
            stalls: StallTracker::default(),
            process: Process::current(),
        })
    }

    /// Fails in another process than the one that opened the storage, and after a failure.
    pub fn ensure_ok(&self) -> Result<(), EngineError> {
        if let Some(reason) = self.process.sure_refusal() {
            return Err(EngineError::Io(reason));
        }
        self.ensure_not_failed()
    }

    pub fn ensure_not_failed(&self) -> Result<(), EngineError> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Keeps the first failure, which is permanent.
    pub fn record_failure(&self, error: EngineError) -> EngineError {
        let kept = match &error {
            EngineError::Undetermined(_) | EngineError::Corruption(_) => error.clone(),
            _ => EngineError::Undetermined(error.to_string()),
        };
        let _ = self.failure.set(kept);
        error
    }

    pub fn write_path(&self) -> Result<&WritePath<D>, EngineError> {
        self.write_path.as_ref().ok_or(EngineError::Unsupported("write: it was opened read-only"))
    }

    pub fn sync(&self) -> Result<(), EngineError> {
        self.ensure_ok()?;
        let Some(path) = &self.write_path else { return Ok(()) };
        path.wal.sync().map(drop).map_err(|error| self.record_failure(wal_error(error)))
    }
}

/// What to do about an error that came before anything was written to the log.
fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "; let this user read and write the files of the store, and open it again"
        }
        _ => "; check the disk and the system's limits, and open the store again",
    }
}

pub fn wal_error(error: wal::WalError) -> EngineError {
    match error {
        wal::WalError::Io(cause) => {
            let text = with_advice(cause.to_string());
            let more = if text == cause.to_string() { advice(cause.kind()) } else { "" };
            EngineError::Io(format!("{text}{more}"))
        }
        wal::WalError::Failed(_) => EngineError::Undetermined(with_advice(error.to_string())),
        wal::WalError::WrongStore { .. } | wal::WalError::UnsupportedFormat { .. } => {
            EngineError::NotAStore(error.to_string())
        }
        wal::WalError::DataLoss(loss) => EngineError::Corruption(format!(
            "{loss}; restore a backup, repair the store (Builder::repair), or open it without these commits \
             (Builder::accept_data_loss({:#018x}))",
            loss.fingerprint
        )),
        wal::WalError::PayloadTooLarge => {
            EngineError::Limit { what: "a batch's bytes", requested: usize::MAX, limit: wal::PAYLOAD_MAX_BYTES }
        }
    }
}
