//! Opening: the log is read from the position of the tables on, and its frames become a frozen generation.
//!
//! A life leaves four times a generation's limit in the log at most: one that is frozen and one that is written, each twice full. It
//! leaves more if it is killed before it has handed down what it has read itself. Therefore an opening that reads more than four times
//! the limit hands it down itself, so lives that are killed again and again do not make the log longer and longer.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use rapidhash::v3::RapidSecrets;

use super::background::FlushThread;
use super::{
    CurrentState, FLUSH_TARGET_KEY, FLUSHED_SEQUENCE_KEY, ImmutableMemtable, LsmStorage, ReadState, Shared, WritePath,
    WriterState, wal_error,
};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::stalls::StallTracker;
use crate::engine::storage::{Column, Storage};
use crate::memtable::{MalformedPayload, MemtableWriter};
use crate::sync::Mutex;
use crate::wal::{self, Recovered};

/// How a storage in layers is to be opened.
pub struct LsmOptions {
    /// Of the store: a log of another one is refused.
    pub wal_id: u64,
    /// Whether there may be no log yet.
    pub is_new: bool,
    /// Random numbers: salts of segments, and the seed of the window's hash.
    pub random: Box<dyn FnMut() -> u64 + Send>,
    /// How many bytes of memory a generation has when it is full.
    pub memtable_bytes: usize,
    /// The fingerprint of a loss of acknowledged batches with which to open all the same.
    pub accept_data_loss: Option<u64>,
    /// Whether a thread hands down. Without one, tests do.
    pub background_flush: bool,
}

/// An opening that has read more segments than this hands them down.
const REPLAYED_SEGMENTS_MAX: usize = 16;

/// Why reading the log ended.
enum ReplayError {
    Wal(wal::WalError),
    Malformed(u64),
}

impl From<wal::WalError> for ReplayError {
    fn from(why: wal::WalError) -> Self {
        Self::Wal(why)
    }
}

impl From<ReplayError> for EngineError {
    fn from(why: ReplayError) -> Self {
        match why {
            ReplayError::Wal(why) => wal_error(why),
            ReplayError::Malformed(sequence) => {
                EngineError::Corruption(format!("frame {sequence} of the log is whole and not made of records"))
            }
        }
    }
}

/// What the log has above the position.
fn replay<D: Disk>(
    disk: &D,
    (identity, position, is_new): (u64, u64, bool),
    replayed: &mut MemtableWriter,
) -> Result<Recovered, ReplayError> {
    wal::recover(disk, identity, position, is_new, |sequence, payload: &[u8]| {
        let added = replayed.add(payload.into(), sequence, &[]);
        added.map_err(|MalformedPayload| ReplayError::Malformed(sequence))
    })
}

/// The position of the tables, and what the log has above it.
fn replay_wal<D: Disk, T: Storage>(
    disk: &D,
    tables: &T,
    (identity, is_new): (u64, bool),
    secrets: RapidSecrets,
) -> Result<(u64, MemtableWriter, Recovered), EngineError> {
    let position = read_internal_u64(tables, FLUSHED_SEQUENCE_KEY)?;
    let mut replayed = MemtableWriter::new(position, secrets);
    let recovered = replay(disk, (identity, position, is_new), &mut replayed)?;
    if let Some(part) = describe_partial_flush(tables, recovered.last_sequence())? {
        let why = format!("the log is damaged: {part}; take a backup, or repair it (Builder::repair)");
        return Err(EngineError::Corruption(why));
    }
    Ok((position, replayed, recovered))
}

/// Says what the tables have of frames that the log, which ends with `last`, has lost. A hand-down writes only what is durable in the log.
/// So if the log ends before a hand-down that was begun does, the tables have a part of what is lost, and no prefix of the log is left to
/// go on with.
fn describe_partial_flush<T: Storage>(tables: &T, last: u64) -> Result<Option<String>, EngineError> {
    let begun = read_internal_u64(tables, FLUSH_TARGET_KEY)?;
    let part = || {
        format!(
            "it ends at frame {last}, and of the frames up to {begun} the tables have a part, because a hand-down was cut short"
        )
    };
    Ok((begun > last).then(part))
}

/// What of a damaged log can be read above the position; `oldest` is the store of its first segment and the sequence with which that begins.
fn replay_salvageable<D: Disk>(
    disk: &D,
    (identity, first): (u64, u64),
    position: u64,
    secrets: RapidSecrets,
    notes: &mut Vec<String>,
) -> Result<MemtableWriter, EngineError> {
    let from = position.max(first.saturating_sub(1));
    if from > position {
        notes.push(format!("the log begins at {first}, and the tables end at {position}: what lies between is lost"));
    }
    let mut replayed = MemtableWriter::new(from, secrets);
    match replay(disk, (identity, from, false), &mut replayed) {
        Ok(recovered) => notes.extend(recovered.data_loss().map(ToString::to_string)),
        // What cannot be read is no reason to give up what was read before it.
        Err(why @ (ReplayError::Wal(wal::WalError::Io(_)) | ReplayError::Malformed(_))) => {
            let why = EngineError::from(why);
            notes.push(format!("{why}: the log is taken up to {}", replayed.last_sequence()));
        }
        Err(why) => return Err(why.into()),
    }
    Ok(replayed)
}

impl<D: Disk, T: Storage> LsmStorage<D, T> {
    /// Opens what lies on the disk and in the tables, or begins there if both are empty.
    pub fn open(disk: D, tables: T, options: LsmOptions) -> Result<Self, EngineError> {
        let LsmOptions {
            wal_id: identity,
            is_new,
            random: mut salts,
            memtable_bytes: memory_limit,
            accept_data_loss: accepted_loss,
            background_flush: has_worker,
        } = options;
        let secrets = RapidSecrets::seed(salts());
        let (position, replayed, recovered) = replay_wal(&disk, &tables, (identity, is_new), secrets)?;
        let is_long = replayed.memtable().memory_bytes() > memory_limit.saturating_mul(4)
            || recovered.segment_count() > REPLAYED_SEGMENTS_MAX;
        let log = wal::resume(disk, &recovered, salts(), accepted_loss).map_err(wal_error)?;
        let end = log.last_sequence();
        let window = MemtableWriter::new(end, secrets);
        let active = Arc::clone(window.memtable());
        let life = WritePath {
            wal: log.handle(),
            writer: Mutex::new(WriterState {
                wal: log,
                memtable: window,
                open_sequences: Vec::new(),
                next_salt: salts,
            }),
            flush_lock: Mutex::default(),
            secrets,
            memtable_bytes: memory_limit,
            noop_needed: AtomicBool::new(false),
        };
        let shared = Arc::new(Shared::new(tables, Some(life), active, replayed, secrets, (position, end))?);
        if is_long {
            shared.flush(shared.write_path()?)?;
        }
        let worker = has_worker.then(|| FlushThread::start(&shared)).transpose()?;
        Ok(Self { shared, flush_thread: worker })
    }

    /// Opens it to be read only; nothing is written. A loss of acknowledged batches is an error.
    pub fn open_read_only(disk: D, tables: T, identity: u64, seed: u64) -> Result<Self, EngineError> {
        let secrets = RapidSecrets::seed(seed);
        let (position, replayed, recovered) = replay_wal(&disk, &tables, (identity, false), secrets)?;
        if let Some(lost) = recovered.data_loss() {
            return Err(wal_error(wal::WalError::DataLoss(Box::new(lost.clone()))));
        }
        Self::from_replayed(tables, secrets, replayed, (position, recovered.last_sequence()))
    }

    /// The same of what is damaged: all that can be read of the log up to the first damage, and what cannot, in the notes.
    pub fn open_for_salvage(disk: D, tables: T, seed: u64, notes: &mut Vec<String>) -> Result<Self, EngineError> {
        let secrets = RapidSecrets::seed(seed);
        let position = read_internal_u64(&tables, FLUSHED_SEQUENCE_KEY).unwrap_or_else(|why| {
            notes.push(why.to_string());
            0
        });
        let oldest = wal::oldest_segment(&disk).unwrap_or_else(|why| {
            notes.push(why.to_string());
            None
        });
        let replayed = if let Some(oldest) = oldest {
            replay_salvageable(&disk, oldest, position, secrets, notes)?
        } else {
            notes.push("no segment of the log can be read: what was not in tables yet is lost".into());
            MemtableWriter::new(position, secrets)
        };
        let end = replayed.last_sequence();
        match describe_partial_flush(&tables, end) {
            Ok(part) => notes.extend(part.map(|part| format!("the log is damaged: {part}"))),
            Err(why) => notes.push(why.to_string()),
        }
        Self::from_replayed(tables, secrets, replayed, (position, end))
    }

    fn from_replayed(
        tables: T,
        secrets: RapidSecrets,
        replayed: MemtableWriter,
        (position, end): (u64, u64),
    ) -> Result<Self, EngineError> {
        let active = Arc::clone(MemtableWriter::new(end, secrets).memtable());
        let shared = Shared::new(tables, None, active, replayed, secrets, (position, end))?;
        Ok(Self { shared: Arc::new(shared), flush_thread: None })
    }
}

impl<D: Disk, T: Storage> Shared<D, T> {
    fn new(
        tables: T,
        life: Option<WritePath<D>>,
        active: Arc<crate::memtable::Memtable>,
        replayed: MemtableWriter,
        secrets: RapidSecrets,
        (position, end): (u64, u64),
    ) -> Result<Self, EngineError> {
        let generation = Arc::clone(replayed.memtable());
        let frozen = (!generation.is_empty()).then_some(ImmutableMemtable { memtable: generation, last_sequence: end });
        let layers =
            ReadState { active, immutable: frozen, tables: Arc::new(tables.snapshot()?), flushed_sequence: position };
        let current = CurrentState { visible_sequence: end, read_state: Arc::new(layers), snapshots: BTreeMap::new() };
        Ok(Self {
            tables,
            write_path: life,
            state: Mutex::new(current),
            writing: Mutex::default(),
            failure: OnceLock::new(),
            empty_memtable: Arc::clone(MemtableWriter::new(u64::MAX, secrets).memtable()),
            stalls: StallTracker::default(),
        })
    }
}

/// A number of the layers' own; 0 if it was never written.
fn read_internal_u64<T: Storage>(tables: &T, cell: &[u8]) -> Result<u64, EngineError> {
    let read = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).map(u64::from_be_bytes);
    match tables.get(Column::Meta, cell, read)? {
        Some(Ok(position)) => Ok(position),
        Some(Err(_)) => Err(EngineError::Corruption(format!("{} in the tables is not a number", cell.escape_ascii()))),
        None => Ok(0),
    }
}
