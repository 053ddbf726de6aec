//! Readers: a timestamp, then a view, then row by row, asking about locks on the way.

use percolite::row::{Lock, LockType};
use percolite::timestamp::Timestamp;

use super::errands::{Settled, errand};
use super::{Reader, Shared, State, Travel};
use crate::judge::{End, Rule, read};
use crate::rows::Rows;

impl Shared {
    pub(super) fn reader(&self, state: &mut State, r: usize) -> Result<(), Rule> {
        let next = match state.readers[r].clone() {
            Reader::Begin => Reader::Stamped(state.draw()),
            Reader::Stamped(read_ts) => self.read_on(state.rows.clone(), read_ts, Vec::new())?,
            Reader::Reading { read_ts, view, found, errand } => {
                let settled = self.errand(state, errand)?;
                self.has_settled(settled, view, read_ts, found)?
            }
            done @ Reader::Done { .. } => done,
        };
        state.readers[r] = next;
        Ok(())
    }

    pub(super) fn reader_sends(&self, state: &mut State, r: usize, travel: Travel) -> Result<(), Rule> {
        if let Reader::Reading { read_ts, view, found, errand } = state.readers[r].clone() {
            let settled = self.errand_sends(state, errand, travel)?;
            state.readers[r] = self.has_settled(settled, view, read_ts, found)?;
        }
        Ok(())
    }

    fn has_settled(
        &self,
        settled: Settled,
        view: Rows,
        read_ts: Timestamp,
        mut found: Vec<Option<Timestamp>>,
    ) -> Result<Reader, Rule> {
        let decides = match settled {
            Settled::NotYet(errand) => return Ok(Reader::Reading { read_ts, view, found, errand }),
            // It is told that its snapshot is too old, and has read nothing.
            Settled::Failed => {
                self.sights.met("a reader comes after its answer is forgotten");
                return Ok(Reader::Done { read_ts, found: Vec::new() });
            }
            Settled::Verdict(end) => matches!(end, Some(End::Committed(commit_ts)) if commit_ts <= read_ts),
        };
        if decides {
            self.sights.met("a reader reads what a lock intends");
        }
        found.push(read(&view, found.len(), read_ts, decides)?);
        self.read_on(view, read_ts, found)
    }

    /// Reads up to the next lock that has a say.
    fn read_on(&self, view: Rows, read_ts: Timestamp, mut found: Vec<Option<Timestamp>>) -> Result<Reader, Rule> {
        while found.len() < self.rows {
            let row = found.len();
            match asks_about(&view, row, read_ts) {
                Some(lock) => {
                    let errand = errand(row, lock, Some(read_ts));
                    return Ok(Reader::Reading { read_ts, view, found, errand });
                }
                None => {
                    if view.cells[row].write.as_ref().is_some_and(|newest| newest.commit_ts > read_ts) {
                        self.sights.met("a reader reads past a newer version");
                    }
                    found.push(read(&view, row, read_ts, false)?);
                }
            }
        }
        Ok(Reader::Done { read_ts, found })
    }
}

/// The lock in the row that a reader has to ask about.
pub(super) fn asks_about(view: &Rows, row: usize, read_ts: Timestamp) -> Option<&Lock> {
    view.cells[row].lock.as_ref().filter(|lock| lock.lock_type != LockType::LockOnly && lock.txn.start_ts <= read_ts)
}
