//! What readers see: the memtables and tables, and the open snapshots that keep them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::memtable::Memtable;

/// The state from which a new snapshot is opened.
pub struct CurrentState<V> {
    pub visible_sequence: u64,
    pub read_state: Arc<ReadState<V>>,
    /// Open snapshots, by sequence.
    pub snapshots: BTreeMap<u64, OpenSnapshots<V>>,
}

/// The open snapshots of one sequence.
pub struct OpenSnapshots<V> {
    pub count: usize,
    pub read_state: Arc<SharedReadState<V>>,
}

/// The read state of the snapshots of one sequence. A flush replaces it.
pub type SharedReadState<V> = RwLock<Arc<ReadState<V>>>;

/// The memtables and tables that a reader sees (RocksDB's `SuperVersion`, pebble's `readState`).
pub struct ReadState<V> {
    pub active: Arc<Memtable>,
    pub immutable: Option<ImmutableMemtable>,
    pub tables: Arc<V>,
    /// The tables have everything up to this sequence.
    pub flushed_sequence: u64,
}

/// A memtable that is not written to any more, and waits for its flush.
#[derive(Clone)]
pub struct ImmutableMemtable {
    pub memtable: Arc<Memtable>,
    /// The last sequence of the memtable's segment.
    pub last_sequence: u64,
}

impl<V> ReadState<V> {
    /// The memtables, newest first.
    pub fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        std::iter::once(&*self.active).chain(self.immutable.as_ref().map(|immutable| &*immutable.memtable))
    }
}
