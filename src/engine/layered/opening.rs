//! Opening: the log is read from the position of the tables on, and its frames become a frozen generation.

use std::collections::BTreeMap;
#[cfg(feature = "rocks")]
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use rapidhash::v3::RapidSecrets;

use super::worker::Worker;
use super::{Current, Frozen, Layered, Layers, Leader, POSITION, Shared, failed};
use crate::disk::Disk;
#[cfg(feature = "rocks")]
use crate::disk::FolderDisk;
use crate::engine::EngineError;
use crate::engine::storage::{Column, Storage};
use crate::log;
use crate::sync::Mutex;
use crate::window::{Malformed, Writer};

/// How a storage in layers is to be opened.
pub struct Setup {
    /// Of the store: a log of another one is refused.
    pub identity: u64,
    /// A generation of the window is full when it takes this in memory,
    pub memory_bytes: usize,
    /// or this in the log.
    pub log_bytes: u64,
    /// Random numbers: salts of segments, and the seed of the window's hash.
    pub random: Box<dyn FnMut() -> u64 + Send>,
    /// The fingerprint of a loss of acknowledged batches with which to open all the same.
    pub accepted_loss: Option<u64>,
    /// Whether a thread hands down; else the writer does.
    pub has_worker: bool,
}

/// Opens what lies in the folder of a log, which is made if it is not there, and in the tables.
#[cfg(feature = "rocks")]
pub fn open_in<T: Storage>(folder: &Path, tables: T, setup: Setup) -> Result<Layered<FolderDisk, T>, EngineError> {
    let made = std::fs::create_dir_all(folder);
    made.map_err(|why| EngineError::Open(format!("cannot create {}: {why}", folder.display())))?;
    Layered::open(FolderDisk::new(folder), tables, setup)
}

/// Why reading the log ended.
enum Unreadable {
    Log(log::Error),
    Malformed(u64),
}

impl From<log::Error> for Unreadable {
    fn from(why: log::Error) -> Self {
        Self::Log(why)
    }
}

impl<D: Disk, T: Storage> Layered<D, T> {
    /// Opens what lies on the disk and in the tables, or begins there if both are empty.
    pub fn open(disk: D, tables: T, setup: Setup) -> Result<Self, EngineError> {
        let Setup { identity, memory_bytes, log_bytes, random: mut salts, accepted_loss, has_worker } = setup;
        let secrets = RapidSecrets::seed(salts());
        let position = read_position(&tables)?;
        let mut replayed = Writer::new(position, secrets);
        let recovered = log::read(&disk, identity, position, |sequence, payload| {
            let added = replayed.add(payload.into(), 0..payload.len(), sequence, &[]);
            added.map_err(|Malformed| Unreadable::Malformed(sequence))
        });
        let recovered = recovered.map_err(|why| match why {
            Unreadable::Log(why) => failed(why),
            Unreadable::Malformed(sequence) => {
                EngineError::Corruption(format!("frame {sequence} of the log is whole and not made of records"))
            }
        })?;
        let log = log::begin(disk, &recovered, salts(), accepted_loss).map_err(failed)?;
        let end = log.last();
        let window = Writer::new(end, secrets);
        let generation = Arc::clone(replayed.generation());
        let frozen = (!generation.is_empty()).then_some(Frozen { generation, end });
        let layers =
            Layers { active: Arc::clone(window.generation()), frozen, tables: Arc::new(tables.view()?), position };
        let current = Current { visible: end, layers: Arc::new(layers), views: BTreeMap::new() };
        let shared = Arc::new(Shared {
            tables,
            syncer: log.syncer(),
            leader: Mutex::new(Leader { log, window, salts }),
            current: Mutex::new(current),
            handing_down: Mutex::default(),
            writing: parking_lot::Mutex::default(),
            failure: OnceLock::new(),
            hand_downs: AtomicU64::new(0),
            secrets,
            memory_bytes,
            log_bytes,
        });
        let worker = has_worker.then(|| Worker::start(&shared)).transpose()?;
        Ok(Self { shared, worker })
    }
}

fn read_position<T: Storage>(tables: &T) -> Result<u64, EngineError> {
    let read = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).map(u64::from_be_bytes);
    match tables.get(Column::Meta, POSITION, read)? {
        Some(Ok(position)) => Ok(position),
        Some(Err(_)) => Err(EngineError::Corruption("the position of the tables is not a number".into())),
        None => Ok(0),
    }
}
