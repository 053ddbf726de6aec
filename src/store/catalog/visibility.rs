//! Which keyspaces there are at a view, so that the answer of a view never changes.
//!
//! ```text
//!   the catalog at the view says           reads answer               writes
//!   the number is still to be taken        no rows: there are none    allowed
//!   taken and without a name (a restore)   no rows, though some are   a conflict
//!   named                                  the rows                   allowed
//!   neither: it was dropped before         no such keyspace           no such keyspace
//! ```
//!
//! What was found out about a keyspace holds for all views on the same side, so few reads ask the catalog.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::engine::RowRange;
use crate::error::{Conflict, ConflictReason, ErrorKind, Result};
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, RowKey};
use crate::store::catalog::{CATALOG_ID, NAME_PREFIX, NEXT_ID_KEY, STAGED_MARK, decode_id, dropped_key, name_key};
use crate::store::{Keyspace, Store};
use crate::timestamp::Timestamp;

/// At which views the catalog is known to list a keyspace, or not to have its number yet.
pub struct VisibilityCache {
    not_taken_upto: AtomicU64,
    listed_from: AtomicU64,
    listed_upto: AtomicU64,
    /// It has no name yet: only the restore that fills it has a handle.
    being_filled: AtomicBool,
}

/// What the catalog says of a keyspace that is not dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visibility {
    NotCreated,
    Staging,
    Visible,
}

impl VisibilityCache {
    pub fn new(id: KeyspaceId) -> Self {
        // The catalog does not list itself.
        let listed_from = if id == CATALOG_ID { Timestamp::ZERO } else { Timestamp::MAX };
        Self {
            not_taken_upto: AtomicU64::new(0),
            listed_from: AtomicU64::new(listed_from.to_u64()),
            listed_upto: AtomicU64::new(0),
            being_filled: AtomicBool::new(false),
        }
    }

    /// Who fills a keyspace is shown what is there, until it is about to be named.
    pub fn set_staging(&self, being_filled: bool) {
        self.being_filled.store(being_filled, Ordering::Release);
    }

    #[inline]
    fn get(&self, read_ts: Timestamp, is_dropped: bool) -> Option<Visibility> {
        let ts = read_ts.to_u64();
        let is_listed = ts >= self.listed_from.load(Ordering::Relaxed)
            && (!is_dropped || ts <= self.listed_upto.load(Ordering::Relaxed));
        if is_listed {
            Some(Visibility::Visible)
        } else if ts <= self.not_taken_upto.load(Ordering::Relaxed) {
            Some(Visibility::NotCreated)
        } else {
            None
        }
    }

    fn record(&self, read_ts: Timestamp, presence: Visibility) {
        let ts = read_ts.to_u64();
        match presence {
            Visibility::Visible => {
                self.listed_from.fetch_min(ts, Ordering::Relaxed);
                self.listed_upto.fetch_max(ts, Ordering::Relaxed);
            }
            Visibility::NotCreated => {
                self.not_taken_upto.fetch_max(ts, Ordering::Relaxed);
            }
            Visibility::Staging => {}
        }
    }
}

impl Store {
    /// Whether a reader at the view may see rows of the keyspace; refuses one that was dropped before.
    pub(in crate::store) fn check_visible(&self, view: &Arc<ReadView>, keyspace: &Keyspace) -> Result<bool> {
        self.check_usable(view)?;
        keyspace.check_belongs_to(self.load_store_id())?;
        Ok(self.visibility(view, keyspace)? != Visibility::Staging)
    }

    /// The part of a range that a reader at the view may see.
    pub(in crate::store) fn visible_range(
        &self,
        view: &Arc<ReadView>,
        keyspace: &Keyspace,
        range: impl FnOnce() -> RowRange,
    ) -> Result<RowRange> {
        if self.check_visible(view, keyspace)? {
            return Ok(range());
        }
        let nowhere = || Bound::Excluded(RowKey::new(keyspace.id(), b"").as_bytes().to_vec());
        Ok(RowRange { start: nowhere(), end: nowhere() })
    }

    /// Refuses a write at a view in which the keyspace was being restored: its rows were named later, and count as written then.
    pub(in crate::store) fn check_not_staging(
        &self,
        view: &Arc<ReadView>,
        keyspace: &Keyspace,
        row: &RowKey,
    ) -> Result<()> {
        if self.visibility(view, keyspace)? != Visibility::Staging {
            return Ok(());
        }
        let name = keyspace.inner.descriptor.name();
        let named = self.inner.engine.snapshot()?.write(&self.catalog().row(name_key(&name).as_bytes()))?;
        let named_at = named.map_or(view.read_ts, |named| named.commit_ts).max(view.read_ts.next());
        Err(ErrorKind::Conflict(Box::new(Conflict {
            row: row.clone(),
            keyspace: Some(name.to_string()),
            reason: ConflictReason::NewerVersion(named_at),
            conflicting_owner: None,
            conflicting_label: None,
            conflicting_start_ts: None,
            read_ts: view.read_ts,
        }))
        .into())
    }

    #[inline]
    fn visibility(&self, view: &Arc<ReadView>, keyspace: &Keyspace) -> Result<Visibility> {
        let state = &keyspace.inner;
        match state.visibility.get(view.read_ts, state.descriptor.is_dropped()) {
            Some(presence) => Ok(presence),
            None if state.visibility.being_filled.load(Ordering::Acquire) => Ok(Visibility::Visible),
            None => {
                let presence = self.look_up(view, keyspace)?;
                state.visibility.record(view.read_ts, presence);
                Ok(presence)
            }
        }
    }

    fn look_up(&self, view: &Arc<ReadView>, keyspace: &Keyspace) -> Result<Visibility> {
        let id = keyspace.id();
        let entry = |key: &[u8]| self.read(view, &self.catalog().row(key));
        let number = |key: &[u8]| entry(key)?.map(|number| decode_id(&number)).transpose();
        if number(name_key(keyspace.name()).as_bytes())? == Some(id) {
            return Ok(Visibility::Visible);
        }
        if number(NEXT_ID_KEY)?.is_none_or(|next| id.0 >= next.0) {
            return Ok(Visibility::NotCreated);
        }
        if let Some(dropped) = entry(dropped_key(id).as_bytes())? {
            return if dropped == STAGED_MARK { Ok(Visibility::Staging) } else { Err(keyspace.not_found_error()) };
        }
        // It may have another name there, or was erased.
        for row in self.scan_entries(view, NAME_PREFIX) {
            if decode_id(&row?.1)? == id {
                return Ok(Visibility::Visible);
            }
        }
        Err(keyspace.not_found_error())
    }
}
