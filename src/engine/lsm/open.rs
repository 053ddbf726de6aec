//! Opening: the frames of the log above the tables' flushed sequence are replayed into a memtable.
//!
//! A replayed memtable that is not full goes on as the active memtable: this incarnation's frames
//! follow in it. So an opening that writes little makes no table, and the segments of several
//! incarnations belong to one memtable. A full one becomes immutable, and is flushed.
//!
//! The frames that an incarnation writes itself take at most four times the memtable limit in the
//! log at a time: those of an immutable and an active memtable, each of up to twice the limit. If
//! the incarnation is killed before it has flushed the frames that it replayed at its opening,
//! those stay in the log, too. So incarnations that are killed again and again would make the log
//! longer and longer. To prevent this, an opening that replays more than four times the limit, or
//! too many segments, flushes the replayed frames before it returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rapidhash::v3::RapidSecrets;

use super::flush::flush;
use super::shared::{FLUSH_TARGET_KEY, FLUSHED_SEQUENCE_KEY, Shared, WritePath, WriterState, wal_error};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::{Column, Storage};
use crate::memtable::{MalformedPayload, MemtableWriter};
use crate::sync::Mutex;
use crate::wal::{self, Recovered};

/// How to open an LSM storage.
pub struct LsmOptions {
    /// WAL id of the store; a log of another store is refused.
    pub wal_id: u64,
    /// Whether the log may be missing, as in a new store.
    pub is_new: bool,
    /// Random numbers: the salts of segments, and the seed of the memtables' hash.
    pub random: Box<dyn FnMut() -> u64 + Send>,
    /// Memory in bytes at which a memtable is full.
    pub memtable_bytes: usize,
    /// Fingerprint of a data loss that is accepted.
    pub accept_data_loss: Option<u64>,
    /// Whether a background thread flushes. If not, the test or the simulator calls
    /// `run_background_once`.
    pub background_flush: bool,
    /// Whether the disk was full when the store was opened and is still. A flush may then find no
    /// room. So none is made but by
    /// [`flush_to_free_space`](super::LsmStorage::flush_to_free_space), however long the log is:
    /// the replayed memtable goes on.
    pub is_disk_full: Arc<AtomicBool>,
}

/// An opening that replays more segments than this flushes the replayed frames.
const REPLAYED_SEGMENTS_MAX: usize = 16;

/// Why the replay of the log failed.
enum ReplayError {
    Wal(wal::WalError),
    Malformed(u64),
}

impl From<wal::WalError> for ReplayError {
    fn from(error: wal::WalError) -> Self {
        Self::Wal(error)
    }
}

impl From<ReplayError> for EngineError {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Wal(error) => wal_error(error),
            ReplayError::Malformed(sequence) => EngineError::Corruption(format!(
                "frame {sequence} of the write-ahead log has a valid checksum but a malformed payload"
            )),
        }
    }
}

/// Replays the frames above the flushed sequence.
fn replay<D: Disk>(
    disk: &D,
    (wal_id, flushed_sequence, is_new): (u64, u64, bool),
    replayed: &mut MemtableWriter,
) -> Result<Recovered, ReplayError> {
    wal::recover(disk, wal_id, flushed_sequence, is_new, |sequence, payload: &[u8]| {
        let added = replayed.add(payload.into(), sequence, &[]);
        added.map_err(|MalformedPayload| ReplayError::Malformed(sequence))
    })
}

/// Replays the log above the tables' flushed sequence; returns that sequence, the memtable, and the
/// result of recovery.
fn replay_wal<D: Disk, T: Storage>(
    disk: &D,
    tables: &T,
    (wal_id, is_new): (u64, bool),
    secrets: RapidSecrets,
) -> Result<(u64, MemtableWriter, Recovered), EngineError> {
    let flushed_sequence = read_internal_u64(tables, FLUSHED_SEQUENCE_KEY)?;
    let mut replayed = MemtableWriter::new(flushed_sequence, secrets);
    let recovered = replay(disk, (wal_id, flushed_sequence, is_new), &mut replayed)?;
    if let Some(part) = describe_partial_flush(tables, recovered.last_sequence())? {
        let text =
            format!("the write-ahead log is damaged: {part}; restore a backup, or repair the store (Builder::repair)");
        return Err(EngineError::Corruption(text));
    }
    Ok((flushed_sequence, replayed, recovered))
}

/// `last` is the sequence of the log's last frame. If the log has lost frames of an interrupted
/// flush, returns a description of this flush; otherwise `None`.
///
/// A flush writes only frames that are durable in the log. So a log that ends before the flush
/// target has lost frames. The tables may have a part of the lost frames, and nothing can add the
/// other part: there is no consistent state to continue from.
fn describe_partial_flush<T: Storage>(tables: &T, last: u64) -> Result<Option<String>, EngineError> {
    let target = read_internal_u64(tables, FLUSH_TARGET_KEY)?;
    let part =
        || format!("it ends at frame {last}, but the tables have a part of an interrupted flush up to frame {target}");
    Ok((target > last).then(part))
}

/// Replays what can be read of a damaged log above the flushed sequence. `wal_id` and `first` are
/// the WAL id and the first sequence of the oldest segment.
fn replay_salvageable<D: Disk>(
    disk: &D,
    (wal_id, first): (u64, u64),
    flushed_sequence: u64,
    secrets: RapidSecrets,
    notes: &mut Vec<String>,
) -> Result<MemtableWriter, EngineError> {
    let from = flushed_sequence.max(first.saturating_sub(1));
    if from > flushed_sequence {
        notes.push(format!(
            "the write-ahead log begins at frame {first}, and the tables end at frame {flushed_sequence}: the frames \
             between are lost"
        ));
    }
    let mut replayed = MemtableWriter::new(from, secrets);
    match replay(disk, (wal_id, from, false), &mut replayed) {
        Ok(recovered) => notes.extend(recovered.data_loss().map(ToString::to_string)),
        // The frames that were read before the error are kept.
        Err(error @ (ReplayError::Wal(wal::WalError::Io(_)) | ReplayError::Malformed(_))) => {
            let error = EngineError::from(error);
            notes.push(format!("{error}: the write-ahead log is replayed up to frame {}", replayed.last_sequence()));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(replayed)
}

/// Opens the store on this disk and in these tables. In a new store, creates the log if it is
/// missing.
pub fn open<D: Disk, T: Storage>(disk: D, tables: T, options: LsmOptions) -> Result<Shared<D, T>, EngineError> {
    let LsmOptions { wal_id, is_new, mut random, memtable_bytes, accept_data_loss, is_disk_full: full, .. } = options;
    let is_disk_full = full.load(Ordering::Relaxed);
    let secrets = RapidSecrets::seed(random());
    let (flushed_sequence, replayed, recovered) = replay_wal(&disk, &tables, (wal_id, is_new), secrets)?;
    let memory = replayed.memtable().memory_bytes();
    let has_many_segments = recovered.segment_count() > REPLAYED_SEGMENTS_MAX;
    let is_long = !is_disk_full && (has_many_segments || memory > memtable_bytes.saturating_mul(4));
    let wal = wal::resume(disk, &recovered, random(), accept_data_loss).map_err(wal_error)?;
    let end = wal.last_sequence();
    let memtable_bytes = if is_disk_full { memtable_bytes.saturating_add(memory) } else { memtable_bytes };
    let (memtable, immutable) = if is_disk_full || memory < memtable_bytes && !has_many_segments {
        (replayed, None)
    } else {
        (MemtableWriter::new(end, secrets), Some(Arc::clone(replayed.memtable())))
    };
    let active = Arc::clone(memtable.memtable());
    let write_path = WritePath {
        wal: wal.handle(),
        writer: Mutex::new(WriterState { wal, memtable, open_sequences: Vec::new(), next_salt: random }),
        flush_lock: Mutex::default(),
        secrets,
        memtable_bytes,
        record_needed: AtomicBool::new(false),
        is_disk_full: full,
    };
    let shared = Shared::new(tables, Some(write_path), active, immutable, secrets, (flushed_sequence, end))?;
    if is_long {
        flush(&shared, shared.write_path()?)?;
        shared.tables.after_flush();
    }
    Ok(shared)
}

/// Opens the store read-only; nothing is written. Data loss is an error.
pub fn open_read_only<D: Disk, T: Storage>(
    disk: D,
    tables: T,
    wal_id: u64,
    seed: u64,
) -> Result<Shared<D, T>, EngineError> {
    let secrets = RapidSecrets::seed(seed);
    let (flushed_sequence, replayed, recovered) = replay_wal(&disk, &tables, (wal_id, false), secrets)?;
    if let Some(loss) = recovered.data_loss() {
        return Err(wal_error(wal::WalError::DataLoss(Box::new(loss.clone()))));
    }
    from_replayed(tables, secrets, replayed, (flushed_sequence, recovered.last_sequence()))
}

/// Opens a damaged store read-only, with the frames of the log up to the first damage. What cannot
/// be read is described in `notes`.
pub fn open_for_salvage<D: Disk, T: Storage>(
    disk: D,
    tables: T,
    seed: u64,
    notes: &mut Vec<String>,
) -> Result<Shared<D, T>, EngineError> {
    let secrets = RapidSecrets::seed(seed);
    let flushed_sequence = read_internal_u64(&tables, FLUSHED_SEQUENCE_KEY).unwrap_or_else(|error| {
        notes.push(error.to_string());
        0
    });
    let oldest = wal::oldest_segment(&disk).unwrap_or_else(|error| {
        notes.push(error.to_string());
        None
    });
    let replayed = if let Some(oldest) = oldest {
        replay_salvageable(&disk, oldest, flushed_sequence, secrets, notes)?
    } else {
        notes.push("no segment of the write-ahead log can be read: frames that were not flushed are lost".into());
        MemtableWriter::new(flushed_sequence, secrets)
    };
    let end = replayed.last_sequence();
    match describe_partial_flush(&tables, end) {
        Ok(part) => notes.extend(part.map(|part| format!("the write-ahead log is damaged: {part}"))),
        Err(error) => notes.push(error.to_string()),
    }
    from_replayed(tables, secrets, replayed, (flushed_sequence, end))
}

fn from_replayed<D: Disk, T: Storage>(
    tables: T,
    secrets: RapidSecrets,
    replayed: MemtableWriter,
    (flushed_sequence, end): (u64, u64),
) -> Result<Shared<D, T>, EngineError> {
    let active = Arc::clone(MemtableWriter::new(end, secrets).memtable());
    let immutable = Some(Arc::clone(replayed.memtable()));
    Shared::new(tables, None, active, immutable, secrets, (flushed_sequence, end))
}

/// A number in an internal cell; 0 if it was never written.
fn read_internal_u64<T: Storage>(tables: &T, cell: &[u8]) -> Result<u64, EngineError> {
    let read = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).map(u64::from_be_bytes);
    match tables.get(Column::Meta, cell, read)? {
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) => Err(EngineError::Corruption(format!("{} in the tables is not a number", cell.escape_ascii()))),
        None => Ok(0),
    }
}
