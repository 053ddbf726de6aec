//! Readers: get a timestamp, then a view, then read row by row, and check the status at each lock.

use percolite::Timestamp;
use percolite::row::{Lock, LockType};

use super::resolvers::{ResolverResult, new_resolver};
use super::{Delivery, Reader, Shared, State};
use crate::rows::Rows;
use crate::spec::{End, Invariant, read};

impl Shared {
    pub(super) fn reader(&self, state: &mut State, r: usize) -> Result<(), Invariant> {
        let next = match state.readers[r].clone() {
            Reader::Begin => Reader::Stamped(state.next_ts()),
            Reader::Stamped(read_ts) => self.continue_read(state.rows.clone(), read_ts, Vec::new())?,
            Reader::Reading { read_ts, view, found, resolver } => {
                let result = self.resolver_step(state, resolver)?;
                self.reader_resolver_done(result, view, read_ts, found)?
            }
            done @ Reader::Done { .. } => done,
        };
        state.readers[r] = next;
        Ok(())
    }

    pub(super) fn reader_sends(&self, state: &mut State, r: usize, delivery: Delivery) -> Result<(), Invariant> {
        if let Reader::Reading { read_ts, view, found, resolver } = state.readers[r].clone() {
            let result = self.resolver_sends(state, resolver, delivery)?;
            state.readers[r] = self.reader_resolver_done(result, view, read_ts, found)?;
        }
        Ok(())
    }

    fn reader_resolver_done(
        &self,
        result: ResolverResult,
        view: Rows,
        read_ts: Timestamp,
        mut found: Vec<Option<Timestamp>>,
    ) -> Result<Reader, Invariant> {
        let decides = match result {
            ResolverResult::NotYet(resolver) => return Ok(Reader::Reading { read_ts, view, found, resolver }),
            // The reader gets the error that its snapshot is too old, so no row that it has read is
            // compared.
            ResolverResult::Failed => {
                self.coverage.hit("a reader needs a pruned record");
                return Ok(Reader::Done { read_ts, found: Vec::new() });
            }
            ResolverResult::Status(end) => matches!(end, Some(End::Committed(commit_ts)) if commit_ts <= read_ts),
        };
        if decides {
            self.coverage.hit("a reader returns the value of a lock");
        }
        found.push(read(&view, found.len(), read_ts, decides)?);
        self.continue_read(view, read_ts, found)
    }

    /// Reads up to the next lock that must be resolved.
    fn continue_read(
        &self,
        view: Rows,
        read_ts: Timestamp,
        mut found: Vec<Option<Timestamp>>,
    ) -> Result<Reader, Invariant> {
        while found.len() < self.rows {
            let row = found.len();
            match lock_to_resolve(&view, row, read_ts) {
                Some(lock) => {
                    let resolver = new_resolver(row, lock, Some(read_ts));
                    return Ok(Reader::Reading { read_ts, view, found, resolver });
                }
                None => {
                    if view.cells[row].write.as_ref().is_some_and(|newest| newest.commit_ts > read_ts) {
                        self.coverage.hit("a reader reads past a newer version");
                    }
                    found.push(read(&view, row, read_ts, false)?);
                }
            }
        }
        Ok(Reader::Done { read_ts, found })
    }
}

/// The row's lock, if the status of its transaction decides what a reader at `read_ts` sees.
pub(super) fn lock_to_resolve(view: &Rows, row: usize, read_ts: Timestamp) -> Option<&Lock> {
    view.cells[row].lock.as_ref().filter(|lock| lock.lock_type != LockType::LockOnly && lock.txn.start_ts <= read_ts)
}
