//! What a transaction has written so far: in memory, or streamed out as locks once it is much.

use std::convert::Infallible;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Store;
use crate::coordinator::embedded::{Embedded, Stream, mutation_of, streamed_write};
use crate::engine::{EngineSnapshot, decode_lock};
use crate::error::{Conflict, Error, ErrorKind, Result};
use crate::locking::{Entered, FencedBy, Fences};
use crate::observe::Spent;
use crate::pipeline::{Conditions, Held, Life};
use crate::row::{KeyspaceId, Mutation, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::view::PinnedView;
use crate::writes::Writes;

/// What every row counts besides its key and value, in bytes, towards a transaction's size.
const ROW_OVERHEAD_BYTES: usize = 64;

/// See the [module](self).
pub(super) struct OwnWrites {
    id: TxnId,
    read_ts: Timestamp,
    /// What is in memory; it has precedence over what was streamed. A commit shares it with whoever leads.
    pub(super) buffer: Arc<Writes>,
    /// Of every keyspace that was written to, though some writes may have been taken back.
    pub(super) lives: SmallVec<[(KeyspaceId, Arc<Life>); 1]>,
    /// What each write since the first savepoint replaced.
    undo: Vec<(RowKey, Option<Mutation>)>,
    /// Those that are valid: a number and how much of `undo` came before.
    savepoints: Vec<(u64, usize)>,
    savepoints_made: u64,
    bytes: usize,
    /// What `undo` holds.
    undo_bytes: usize,
    pub(super) stream: Option<Stream>,
    /// Streaming met a conflict or failed: the transaction is over.
    over: Option<Over>,
    /// The grants by which it is fenced.
    fences: Fences,
}

enum Over {
    Conflict(Box<Conflict>),
    Other(String),
}

impl OwnWrites {
    pub(super) fn new(id: TxnId, read_ts: Timestamp) -> Self {
        Self {
            id,
            read_ts,
            buffer: Arc::default(),
            lives: SmallVec::new(),
            undo: Vec::new(),
            savepoints: Vec::new(),
            savepoints_made: 0,
            bytes: 0,
            undo_bytes: 0,
            stream: None,
            over: None,
            fences: Fences::default(),
        }
    }

    /// Adds to what must hold at the commit.
    pub(super) fn fence(&mut self, fence: FencedBy) {
        self.fences.add(fence);
    }

    /// Ends a transaction that has nothing to write: whether what it was fenced by stands, and releases what it was to release.
    pub(super) fn end_fences(&mut self) -> Result<()> {
        if self.fences.is_empty() {
            return Ok(());
        }
        let entered = Entered::new(&std::mem::take(&mut self.fences));
        if let Some(lost) = entered.lost().filter(|_| !mutated!(FenceAtBegin)) {
            return Err(ErrorKind::LockLost(Box::new(lost)).into());
        }
        entered.published(Timestamp::ZERO);
        Ok(())
    }

    /// What was committed is no conflict for anything written from here on.
    pub(super) fn write_blindly(&mut self) {
        self.read_ts = Timestamp::MAX;
        if let Some(stream) = &mut self.stream {
            stream.read_ts = Timestamp::MAX;
        }
    }

    pub(super) fn read_ts(&self) -> Timestamp {
        self.read_ts
    }

    /// Whether there is nothing to commit.
    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.stream.is_none()
    }

    /// What is in memory counts so much.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many writes were streamed; `None` if it does not stream.
    pub(super) fn streamed_rows(&self) -> Option<u64> {
        self.stream.as_ref().map(|stream| stream.rows)
    }

    /// Refuses a transaction that is over.
    pub(super) fn check(&self) -> Result<()> {
        match &self.over {
            None => Ok(()),
            Some(Over::Conflict(conflict)) => Err(ErrorKind::Conflict(conflict.clone()).into()),
            Some(Over::Other(why)) => Err(Error::invalid(format!("the transaction is over: {why}"))),
        }
    }

    /// What the transaction has made of the row.
    pub(super) fn get(&self, store: &Store, row: &RowKey) -> Result<Option<Mutation>> {
        match (self.buffer.get(row), &self.stream) {
            (Some(mutation), _) => Ok(Some(mutation.clone())),
            (None, Some(_)) => streamed_write(&*store.inner.engine.snapshot()?, self.id, row),
            (None, None) => Ok(None),
        }
    }

    /// What was streamed so far, for a scan.
    pub(super) fn streamed(&self, store: &Store) -> Result<Option<Streamed>> {
        let view = || Ok(Streamed { view: store.inner.engine.snapshot()?, txn: self.id });
        self.stream.as_ref().map(|_| view()).transpose()
    }

    pub(super) fn write(
        &mut self,
        store: &Store,
        (keyspace, life): (KeyspaceId, &Arc<Life>),
        row: RowKey,
        mutation: Mutation,
        spent: &Spent,
    ) -> Result<()> {
        self.check()?;
        let replaced = if self.savepoints.is_empty() { None } else { Some(self.get(store, &row)?) };
        let undo_bytes = replaced.as_ref().map_or(0, |replaced| size_of_undo(&row, replaced.as_ref()));
        let undo = replaced.map(|replaced| (row.clone(), replaced));
        let (bytes, all_undo_bytes) = (&mut self.bytes, self.undo_bytes + undo_bytes);
        Arc::make_mut(&mut self.buffer).insert(row, mutation, |row, before, after| {
            let replaced = before.map_or(0, |before| size_of_write(row, before));
            let sum = *bytes - replaced + size_of_write(row, after);
            let limit = store.inner.options.transaction_max_bytes;
            super::txn::check_size("a transaction", sum + all_undo_bytes, limit)?;
            *bytes = sum;
            Ok::<_, Error>(())
        })?;
        self.undo_bytes = all_undo_bytes;
        self.undo.extend(undo);
        if !self.lives.iter().any(|(id, _)| *id == keyspace) {
            self.lives.push((keyspace, Arc::clone(life)));
        }
        match &store.inner.embedded {
            Some(embedded) if self.bytes >= store.inner.options.stream_at_bytes => {
                self.stream_out(store, embedded, spent)
            }
            _ => Ok(()),
        }
    }

    /// Locks everything that is in memory, and forgets it.
    pub(super) fn stream_out(&mut self, store: &Store, embedded: &Embedded, spent: &Spent) -> Result<()> {
        // Whether the view has expired is asked when all rows are locked.
        let conditions = Arc::new(Conditions { lives: self.lives_written(), ..Conditions::default() });
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => match Stream::new(self.id, self.read_ts, &self.buffer) {
                Some(stream) => none.insert(stream),
                None => return Ok(()),
            },
        };
        if let Err(why) = embedded.stream(stream, &self.buffer, &conditions, spent) {
            // Every later call repeats it to the letter.
            let why = store.with_names(why);
            self.give_up(embedded, &why);
            return Err(why);
        }
        match Arc::get_mut(&mut self.buffer) {
            Some(buffer) => buffer.clear(),
            // A scan goes on reading it.
            None => self.buffer = Arc::default(),
        }
        self.bytes = 0;
        Ok(())
    }

    /// Commits what was streamed, and the rest with it.
    pub(super) fn commit_streamed(
        &mut self,
        store: &Store,
        embedded: &Embedded,
        view: &Arc<PinnedView>,
        durable: bool,
        held: Option<Held>,
        spent: &Spent,
    ) -> Result<Timestamp> {
        self.stream_out(store, embedded, spent)?;
        let conditions = self.conditions(view);
        let Some(stream) = &self.stream else { return Err(Error::invalid("nothing was streamed")) };
        match embedded.commit_stream(stream, &conditions, durable, held, spent) {
            Ok(commit_ts) => {
                self.stream = None;
                Ok(commit_ts)
            }
            Err(why) => {
                let why = store.with_names(why);
                if matches!(why.kind(), ErrorKind::Undetermined(_)) {
                    self.stream = None;
                }
                self.give_up(embedded, &why);
                Err(why)
            }
        }
    }

    /// Ends a transaction that cannot commit any more.
    pub(super) fn give_up(&mut self, embedded: &Embedded, why: &Error) {
        if let Some(stream) = self.stream.take() {
            embedded.abandon(&stream);
        }
        self.over = Some(match why.conflict() {
            Some(conflict) if why.is_retryable() => Over::Conflict(Box::new(conflict.clone())),
            _ => Over::Other(why.to_string()),
        });
    }

    pub(super) fn savepoint(&mut self) -> u64 {
        self.savepoints_made += 1;
        self.savepoints.push((self.savepoints_made, self.undo.len()));
        self.savepoints_made
    }

    pub(super) fn rollback_to(&mut self, store: &Store, number: u64) -> Result<()> {
        self.check()?;
        let position = self.savepoints.iter().position(|(valid, _)| *valid == number);
        let Some((position, undo)) = position.and_then(|at| Some((at, self.savepoints.get(at)?.1))) else {
            return Err(Error::invalid("the savepoint was taken back"));
        };
        // Read before anything is changed: an error leaves the transaction as it was.
        let streamed = self.streamed(store)?;
        let mut restored = Vec::with_capacity(self.undo.len() - undo);
        for (row, before) in self.undo.get(undo..).unwrap_or_default().iter().rev() {
            let before = match (before, &streamed) {
                // The row stays locked, which costs others a conflict that was there already.
                (None, Some(streamed)) if !mutated!(StreamUndoLost) && streamed.write(row)?.is_some() => {
                    Some(Mutation::Hold)
                }
                (before, _) => before.clone(),
            };
            restored.push((row.clone(), before));
        }
        self.savepoints.truncate(position + 1);
        if mutated!(SavepointLeaks) {
            return Ok(());
        }
        for (row, before) in self.undo.drain(undo..) {
            self.undo_bytes -= size_of_undo(&row, before.as_ref());
        }
        let (bytes, buffer) = (&mut self.bytes, Arc::make_mut(&mut self.buffer));
        for (row, before) in restored {
            match before {
                Some(before) => {
                    let Ok(()) = buffer.insert(row, before, |row, after, before| {
                        *bytes += size_of_write(row, before);
                        *bytes -= after.map_or(0, |after| size_of_write(row, after));
                        Ok::<_, Infallible>(())
                    });
                }
                None => *bytes -= buffer.remove(&row).map_or(0, |after| size_of_write(&row, &after)),
            }
        }
        Ok(())
    }

    /// What must hold at the commit.
    pub(super) fn conditions(&self, view: &Arc<PinnedView>) -> Arc<Conditions> {
        let (lives, view) = (self.lives_written(), Some(Arc::clone(view)));
        Arc::new(Conditions { lives, view, fences: self.fences.clone() })
    }

    /// Those of the keyspaces in which there is anything to commit.
    fn lives_written(&self) -> SmallVec<[Arc<Life>; 1]> {
        let is_written = |id: KeyspaceId| {
            let first = self.buffer.first_from(&RowKey::new(id, b""));
            self.stream.is_some() || first.is_some_and(|(row, _)| row.keyspace() == id)
        };
        self.lives.iter().filter(|(id, _)| is_written(*id)).map(|(_, life)| Arc::clone(life)).collect()
    }
}

/// What a transaction has streamed out, as of one moment.
pub(super) struct Streamed {
    pub view: Arc<dyn EngineSnapshot>,
    pub txn: TxnId,
}

impl Streamed {
    fn write(&self, row: &RowKey) -> Result<Option<Mutation>> {
        streamed_write(&*self.view, self.txn, row)
    }

    /// What was written to a row, given its cell in the lock column.
    pub(super) fn write_of(&self, row: &RowKey, lock: &[u8]) -> Result<Option<Mutation>> {
        let lock = decode_lock(row.as_bytes(), lock)?;
        if lock.txn == self.txn { mutation_of(&*self.view, row, lock).map(Some) } else { Ok(None) }
    }
}

fn size_of_write(row: &RowKey, mutation: &Mutation) -> usize {
    row.as_bytes().len() + mutation.value_bytes() + ROW_OVERHEAD_BYTES
}

fn size_of_undo(row: &RowKey, before: Option<&Mutation>) -> usize {
    before.map_or(ROW_OVERHEAD_BYTES, |before| size_of_write(row, before))
}
