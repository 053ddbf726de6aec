//! What the catalog has in memory.

use std::collections::HashMap;
use std::sync::Arc;

use crate::store::keyspace::KeyspaceInner;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// The open handles, and the drops of this incarnation.
#[derive(Default)]
pub(in crate::store) struct Catalog {
    pub open: Mutex<HashMap<u32, Arc<KeyspaceInner>>>,
    /// The keyspaces dropped in this incarnation, with a timestamp at or above the drop's commit;
    /// MAX until the drop is committed.
    pub dropped: Mutex<HashMap<u32, Timestamp>>,
}
