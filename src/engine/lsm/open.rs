//! Opening: the log is read from the position of the tables on, and its frames become a frozen generation.
//!
//! A life leaves four times a generation's limit in the log at most: one that is frozen and one that is written, each twice full. It
//! leaves more if it is killed before it has handed down what it has read itself. Therefore an opening that reads more than four times
//! the limit hands it down itself, so lives that are killed again and again do not make the log longer and longer.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use rapidhash::v3::RapidSecrets;

use super::background::Worker;
use super::{BEGUN, Current, Frozen, Layered, Layers, Leader, Life, POSITION, Shared, failed};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::stalls::Stalls;
use crate::engine::storage::{Column, Storage};
use crate::memtable::{Malformed, Writer};
use crate::sync::Mutex;
use crate::wal::{self, Recovered};

/// How a storage in layers is to be opened.
pub struct Setup {
    /// Of the store: a log of another one is refused.
    pub identity: u64,
    /// Whether there may be no log yet.
    pub is_new: bool,
    /// Random numbers: salts of segments, and the seed of the window's hash.
    pub random: Box<dyn FnMut() -> u64 + Send>,
    /// How many bytes of memory a generation has when it is full.
    pub memory_limit: usize,
    /// The fingerprint of a loss of acknowledged batches with which to open all the same.
    pub accepted_loss: Option<u64>,
    /// Whether a thread hands down. Without one, tests do.
    pub has_worker: bool,
}

/// An opening that has read more segments than this hands them down.
const SEGMENTS_MAX: usize = 16;

/// Why reading the log ended.
enum Unreadable {
    Log(wal::Error),
    Malformed(u64),
}

impl From<wal::Error> for Unreadable {
    fn from(why: wal::Error) -> Self {
        Self::Log(why)
    }
}

impl From<Unreadable> for EngineError {
    fn from(why: Unreadable) -> Self {
        match why {
            Unreadable::Log(why) => failed(why),
            Unreadable::Malformed(sequence) => {
                EngineError::Corruption(format!("frame {sequence} of the log is whole and not made of records"))
            }
        }
    }
}

/// What the log has above the position.
fn replay<D: Disk>(
    disk: &D,
    (identity, position, is_new): (u64, u64, bool),
    replayed: &mut Writer,
) -> Result<Recovered, Unreadable> {
    wal::read(disk, identity, position, is_new, |sequence, payload: &[u8]| {
        let added = replayed.add(payload.into(), sequence, &[]);
        added.map_err(|Malformed| Unreadable::Malformed(sequence))
    })
}

/// The position of the tables, and what the log has above it.
fn read_whole<D: Disk, T: Storage>(
    disk: &D,
    tables: &T,
    (identity, is_new): (u64, bool),
    secrets: RapidSecrets,
) -> Result<(u64, Writer, Recovered), EngineError> {
    let position = read_number(tables, POSITION)?;
    let mut replayed = Writer::new(position, secrets);
    let recovered = replay(disk, (identity, position, is_new), &mut replayed)?;
    if let Some(part) = part_of_lost(tables, recovered.last())? {
        let why = format!("the log is damaged: {part}; take a backup, or repair it (Builder::repair)");
        return Err(EngineError::Corruption(why));
    }
    Ok((position, replayed, recovered))
}

/// Says what the tables have of frames that the log, which ends with `last`, has lost. A hand-down writes only what is durable in the log.
/// So if the log ends before a hand-down that was begun does, the tables have a part of what is lost, and no prefix of the log is left to
/// go on with.
fn part_of_lost<T: Storage>(tables: &T, last: u64) -> Result<Option<String>, EngineError> {
    let begun = read_number(tables, BEGUN)?;
    let part = || {
        format!(
            "it ends at frame {last}, and of the frames up to {begun} the tables have a part, because a hand-down was cut short"
        )
    };
    Ok((begun > last).then(part))
}

/// What of a damaged log can be read above the position; `oldest` is the store of its first segment and the sequence with which that begins.
fn replay_readable<D: Disk>(
    disk: &D,
    (identity, first): (u64, u64),
    position: u64,
    secrets: RapidSecrets,
    notes: &mut Vec<String>,
) -> Result<Writer, EngineError> {
    let from = position.max(first.saturating_sub(1));
    if from > position {
        notes.push(format!("the log begins at {first}, and the tables end at {position}: what lies between is lost"));
    }
    let mut replayed = Writer::new(from, secrets);
    match replay(disk, (identity, from, false), &mut replayed) {
        Ok(recovered) => notes.extend(recovered.lost().map(ToString::to_string)),
        // What cannot be read is no reason to give up what was read before it.
        Err(why @ (Unreadable::Log(wal::Error::Io(_)) | Unreadable::Malformed(_))) => {
            let why = EngineError::from(why);
            notes.push(format!("{why}: the log is taken up to {}", replayed.last()));
        }
        Err(why) => return Err(why.into()),
    }
    Ok(replayed)
}

impl<D: Disk, T: Storage> Layered<D, T> {
    /// Opens what lies on the disk and in the tables, or begins there if both are empty.
    pub fn open(disk: D, tables: T, setup: Setup) -> Result<Self, EngineError> {
        let Setup { identity, is_new, random: mut salts, memory_limit, accepted_loss, has_worker } = setup;
        let secrets = RapidSecrets::seed(salts());
        let (position, replayed, recovered) = read_whole(&disk, &tables, (identity, is_new), secrets)?;
        let is_long =
            replayed.generation().bytes() > memory_limit.saturating_mul(4) || recovered.segments() > SEGMENTS_MAX;
        let log = wal::begin(disk, &recovered, salts(), accepted_loss).map_err(failed)?;
        let end = log.last();
        let window = Writer::new(end, secrets);
        let active = Arc::clone(window.generation());
        let life = Life {
            syncer: log.syncer(),
            leader: Mutex::new(Leader { log, window, views: Vec::new(), salts }),
            handing_down: Mutex::default(),
            secrets,
            memory_limit,
            unmarked: AtomicBool::new(false),
        };
        let shared = Arc::new(Shared::new(tables, Some(life), active, replayed, secrets, (position, end))?);
        if is_long {
            shared.hand_down(shared.life()?)?;
        }
        let worker = has_worker.then(|| Worker::start(&shared)).transpose()?;
        Ok(Self { shared, worker })
    }

    /// Opens it to be read only; nothing is written. A loss of acknowledged batches is an error.
    pub fn open_read_only(disk: D, tables: T, identity: u64, seed: u64) -> Result<Self, EngineError> {
        let secrets = RapidSecrets::seed(seed);
        let (position, replayed, recovered) = read_whole(&disk, &tables, (identity, false), secrets)?;
        if let Some(lost) = recovered.lost() {
            return Err(failed(wal::Error::Lost(Box::new(lost.clone()))));
        }
        Self::to_be_read(tables, secrets, replayed, (position, recovered.last()))
    }

    /// The same of what is damaged: all that can be read of the log up to the first damage, and what cannot, in the notes.
    pub fn open_damaged(disk: D, tables: T, seed: u64, notes: &mut Vec<String>) -> Result<Self, EngineError> {
        let secrets = RapidSecrets::seed(seed);
        let position = read_number(&tables, POSITION).unwrap_or_else(|why| {
            notes.push(why.to_string());
            0
        });
        let oldest = wal::oldest(&disk).unwrap_or_else(|why| {
            notes.push(why.to_string());
            None
        });
        let replayed = if let Some(oldest) = oldest {
            replay_readable(&disk, oldest, position, secrets, notes)?
        } else {
            notes.push("no segment of the log can be read: what was not in tables yet is lost".into());
            Writer::new(position, secrets)
        };
        let end = replayed.last();
        match part_of_lost(&tables, end) {
            Ok(part) => notes.extend(part.map(|part| format!("the log is damaged: {part}"))),
            Err(why) => notes.push(why.to_string()),
        }
        Self::to_be_read(tables, secrets, replayed, (position, end))
    }

    fn to_be_read(
        tables: T,
        secrets: RapidSecrets,
        replayed: Writer,
        (position, end): (u64, u64),
    ) -> Result<Self, EngineError> {
        let active = Arc::clone(Writer::new(end, secrets).generation());
        let shared = Shared::new(tables, None, active, replayed, secrets, (position, end))?;
        Ok(Self { shared: Arc::new(shared), worker: None })
    }
}

impl<D: Disk, T: Storage> Shared<D, T> {
    fn new(
        tables: T,
        life: Option<Life<D>>,
        active: Arc<crate::memtable::Generation>,
        replayed: Writer,
        secrets: RapidSecrets,
        (position, end): (u64, u64),
    ) -> Result<Self, EngineError> {
        let generation = Arc::clone(replayed.generation());
        let frozen = (!generation.is_empty()).then_some(Frozen { generation, end });
        let layers = Layers { active, frozen, tables: Arc::new(tables.view()?), position };
        let current = Current { visible: end, layers: Arc::new(layers), moments: BTreeMap::new() };
        Ok(Self {
            tables,
            life,
            current: Mutex::new(current),
            writing: Mutex::default(),
            failure: OnceLock::new(),
            nothing: Arc::clone(Writer::new(u64::MAX, secrets).generation()),
            stalls: Stalls::default(),
        })
    }
}

/// A number of the layers' own; 0 if it was never written.
fn read_number<T: Storage>(tables: &T, cell: &[u8]) -> Result<u64, EngineError> {
    let read = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).map(u64::from_be_bytes);
    match tables.get(Column::Meta, cell, read)? {
        Some(Ok(position)) => Ok(position),
        Some(Err(_)) => Err(EngineError::Corruption(format!("{} in the tables is not a number", cell.escape_ascii()))),
        None => Ok(0),
    }
}
