//! The words of nodes and versions.

use super::arena::AtomicWords;

/// The number that stands for no slot.
pub(super) const NIL: u32 = 0;
/// Number of the first node. The first nodes are the heads of the skip lists, one for each column.
pub(super) const FIRST_HEAD: u32 = 1;
/// The maximum number of levels of a skip list. A level has about a quarter of the nodes of the
/// level below.
pub(super) const MAX_HEIGHT: usize = 12;

// Indices of a node's words.
pub(super) const NODE_NEWEST: usize = 0;
pub(super) const NODE_NEXT: usize = 1;
pub(super) const NODE_PREVIOUS: usize = 2;
pub(super) const NODE_UPPER: usize = 3;
/// The first bytes of the key. Most comparisons in a search need no more, and the key itself is two
/// cache misses away.
pub(super) const NODE_PREFIX: usize = 4;
pub(super) const PREFIX_WORDS: usize = 5;
pub(super) type Node = AtomicWords<{ NODE_PREFIX + PREFIX_WORDS }>;

// Indices of a version's words.
/// Sequence of the version's batch, relative to the memtable's base; also the number of the batch's
/// payload.
pub(super) const VERSION_SEQUENCE: usize = 0;
pub(super) const VERSION_OFFSET: usize = 1;
pub(super) const VERSION_OLDER: usize = 2;
pub(super) type Version = AtomicWords<3>;
