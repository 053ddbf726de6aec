//! The visibility of keyspaces in a view. It is read from the catalog in the same view, so that
//! what a view shows never changes.
//!
//! ```text
//!   catalog in the view          reads              writes
//!   id not allocated yet         no rows            allowed
//!   without a name (a restore)   no rows            conflict
//!   named                        the rows           allowed
//!   dropped                      KeyspaceNotFound   KeyspaceNotFound
//! ```
//!
//! A [cache](super::visibility_cache) answers most reads.

use std::ops::Bound;
use std::sync::Arc;

use crate::engine::RowRange;
use crate::error::{Conflict, ConflictReason, ErrorKind, Result};
use crate::read_view::ReadView;
use crate::row::RowKey;
use crate::store::catalog::entries::{NAME_PREFIX, NEXT_ID_KEY, STAGED_MARK, decode_id, dropped_key, name_key};
use crate::store::catalog::reader::CatalogReader;
use crate::store::catalog::visibility_cache::Visibility;
use crate::store::keyspace::Keyspace;

impl CatalogReader<'_> {
    /// Whether the rows that the view has of the keyspace may be read. `false` if the keyspace was
    /// being restored in the view, and must appear empty. Fails if the keyspace was dropped at or
    /// below the view's timestamp.
    pub fn check_visible(self, view: &Arc<ReadView>, keyspace: &Keyspace) -> Result<bool> {
        self.store.inner.rows.check_usable(view)?;
        keyspace.check_belongs_to(self.store.instance_id())?;
        Ok(self.visibility(view, keyspace)? != Visibility::Staging)
    }

    /// The range, or an empty one if the keyspace was being restored in the view.
    pub fn visible_range(
        self,
        view: &Arc<ReadView>,
        keyspace: &Keyspace,
        range: impl FnOnce() -> RowRange,
    ) -> Result<RowRange> {
        if self.check_visible(view, keyspace)? {
            return Ok(range());
        }
        let bound = || Bound::Excluded(RowKey::new(keyspace.id(), b"").as_bytes().to_vec());
        Ok(RowRange { start: bound(), end: bound() })
    }

    /// Returns a conflict for a write to a keyspace that was being restored in the view. All
    /// restored rows count as written when the keyspace got its name, which was after the view.
    pub fn check_not_staging(self, view: &Arc<ReadView>, keyspace: &Keyspace, row: &RowKey) -> Result<()> {
        if self.visibility(view, keyspace)? != Visibility::Staging {
            return Ok(());
        }
        let name = keyspace.inner.descriptor.name();
        let entry = self
            .store
            .inner
            .engine
            .snapshot()?
            .write(&self.store.inner.catalog.keyspace().row(name_key(&name).as_bytes()))?;
        let named_at = entry.map_or(view.read_ts, |version| version.commit_ts).max(view.read_ts.next());
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
    fn visibility(self, view: &Arc<ReadView>, keyspace: &Keyspace) -> Result<Visibility> {
        let inner = &keyspace.inner;
        match inner.visibility.get(view.read_ts, inner.descriptor.is_dropped()) {
            Some(visibility) => Ok(visibility),
            None if inner.visibility.is_staging() => Ok(Visibility::Visible),
            None => {
                let visibility = self.look_up(view, keyspace)?;
                inner.visibility.record(view.read_ts, visibility);
                Ok(visibility)
            }
        }
    }

    fn look_up(self, view: &Arc<ReadView>, keyspace: &Keyspace) -> Result<Visibility> {
        let id = keyspace.id();
        let entry = |key: &[u8]| self.store.inner.rows.read(view, &self.store.inner.catalog.keyspace().row(key));
        let entry_id = |key: &[u8]| entry(key)?.map(|value| decode_id(&value)).transpose();
        if entry_id(name_key(keyspace.name()).as_bytes())? == Some(id) {
            return Ok(Visibility::Visible);
        }
        if entry_id(NEXT_ID_KEY)?.is_none_or(|next| id.0 >= next.0) {
            return Ok(Visibility::NotCreated);
        }
        if let Some(dropped) = entry(dropped_key(id).as_bytes())? {
            return if dropped == STAGED_MARK { Ok(Visibility::Staging) } else { Err(keyspace.not_found_error()) };
        }
        // In the view's catalog the keyspace neither has the handle's name nor is listed as
        // dropped. So it has another name there, or it was dropped and purged before the view.
        for row in self.entries(view, NAME_PREFIX) {
            if decode_id(row?.value())? == id {
                return Ok(Visibility::Visible);
            }
        }
        Err(keyspace.not_found_error())
    }
}
