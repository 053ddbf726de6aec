//! What the lock manager shows: holders, waiting requests, and totals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::grant::Grant;
use super::info::{LockEntry, LockState, LockTable};
use super::manager::LockManager;
use super::request_error::RequestError;
use super::table::{self, EntryWithWaiter, LockTableContext, LockTotals};

impl LockManager {
    /// The entries of the name's first `most` unexpired grants for which `wanted` returns `true`;
    /// and the number of requests that wait for the name, without conversions.
    pub fn holders(
        &self,
        name: &str,
        clock: &table::LockTableContext<'_>,
        most: usize,
        wanted: impl Fn(&Grant) -> bool,
    ) -> (Vec<LockEntry>, usize) {
        let shard = self.shard(name);
        let queue = shard.get(name).map(|entry| &entry.queue);
        queue.map_or_else(Default::default, |queue| (table::holders(queue, clock, most, wanted), queue.waiting().len()))
    }

    /// Whether an exclusive request would be granted immediately. An expired lease does not prevent
    /// it.
    pub fn is_free(&self, name: &str, now: Duration) -> Result<bool, RequestError> {
        let shard = self.shard(name);
        self.check_open()?;
        self.check_not_corrupt()?;
        let Some(entry) = shard.get(name) else { return Ok(true) };
        entry.check_not_corrupt()?;
        Ok(!entry.queue.has_waiting()
            && entry.queue.granted().iter().all(|request| request.value.is_lease_expired(now)))
    }

    /// All grants and waiting requests.
    pub fn table(&self, clock: &LockTableContext<'_>) -> LockTable {
        let seen = self.snapshot(clock);
        let cycles = table::confirmed_cycles(&seen, || self.snapshot(clock));
        let entries = seen.into_iter().map(|seen| seen.entry).collect();
        LockTable { entries, wait_cycles: cycles, ..self.summary(clock, 0) }
    }

    /// The totals of all queues.
    #[cfg(feature = "metrics")]
    pub fn totals(&self, now: Duration) -> LockTotals {
        let mut totals = LockTotals::default();
        for shard in self.shards() {
            for entry in shard.values() {
                totals.add(&entry.queue, now);
            }
        }
        totals
    }

    /// A table with the totals, without cycles, and with entries for at most `listed` grants and
    /// `listed` waiting requests.
    pub fn summary(&self, clock: &LockTableContext<'_>, listed: usize) -> LockTable {
        let mut table = LockTable::default();
        let mut totals = LockTotals::default();
        let mut left = (listed, listed);
        for shard in self.shards() {
            for entry in shard.values() {
                totals.add(&entry.queue, clock.now);
                if left.0 > 0 || left.1 > 0 && entry.queue.has_waiting() {
                    for shown in table::entries(&entry.queue, clock) {
                        let left = if shown.state == LockState::Held { &mut left.0 } else { &mut left.1 };
                        if *left > 0 {
                            *left -= 1;
                            table.entries.push(shown);
                        }
                    }
                }
            }
        }
        (table.held, table.waiting) = (totals.held, totals.waiting);
        table.longest_wait =
            totals.oldest_request_at.map_or(Duration::ZERO, |requested_at| clock.now.saturating_sub(requested_at));
        table
    }

    pub(super) fn snapshot(&self, clock: &LockTableContext<'_>) -> Vec<EntryWithWaiter> {
        let mut by_name = BTreeMap::new();
        for shard in self.shards() {
            by_name.extend(shard.iter().map(|(name, entry)| (Arc::clone(name), table::seen(&entry.queue, clock))));
        }
        by_name.into_values().flatten().collect()
    }
}
