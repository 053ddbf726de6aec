//! The lock table: a snapshot of all named locks, with the wait-for graph. Row locks are not in the
//! table. PostgreSQL's `pg_locks` is alike.
//!
//! Each queue is read under its shard's mutex, so its entries are consistent. Different queues may
//! be read at different times. Therefore a cycle through several queues is reported only if a
//! second snapshot has all of its requests with the same waits.
//!
//! The search for cycles is one depth-first walk that follows each wait once. Of cycles that share
//! waits it may report only some.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, UNIX_EPOCH};

use super::grant::{Grant, RequestOrigin};
use super::info::{LockEntry, LockHolder, LockState};
use super::mode::LockMode;
use super::queue::LockQueue;

/// The context in which entries are rendered: the present, the clocks, and this process.
pub struct LockTableContext<'a> {
    pub now: Duration,
    /// The monotonic clock and the wall clock (ms since 1970), read together when the store was
    /// opened. The wall times of requests are computed from this pair, so that a request has the
    /// same time in every snapshot.
    pub opened_at: (Duration, u64),
    pub pid: u32,
    pub application_name: Option<&'a str>,
}

impl LockTableContext<'_> {
    fn wall_time(&self, at: Duration) -> std::time::SystemTime {
        let (moment, unix_millis) = self.opened_at;
        let since_1970 = Duration::from_millis(unix_millis).saturating_add(at.saturating_sub(moment));
        UNIX_EPOCH.checked_add(since_1970).unwrap_or(UNIX_EPOCH)
    }

    /// The process and thread that made the request.
    pub fn holder(&self, grant: &Grant) -> LockHolder {
        match &grant.requester.origin {
            RequestOrigin::Recovered(holder) => (**holder).clone(),
            RequestOrigin::Here { thread, task } => LockHolder {
                pid: self.pid,
                application_name: self.application_name.map(Into::into),
                thread: match (task, thread.name()) {
                    (Some(task), _) => format!("task {task}"),
                    (None, Some(name)) => name.to_owned(),
                    (None, None) => format!("{:?}", thread.id()),
                },
            },
        }
    }

    /// The entry of a request, without what it waits for.
    pub fn entry(&self, grant: &Grant, state: LockState) -> LockEntry {
        let lease = grant.lease();
        let token = Some(grant.token()).filter(|token| *token > crate::timestamp::Timestamp::ZERO);
        let since = match &lease {
            Some(lease) if lease.renewed_at_ms > 0 => UNIX_EPOCH + Duration::from_millis(lease.renewed_at_ms),
            _ => self.wall_time(grant.requester.requested_at),
        };
        LockEntry {
            id: grant.id,
            target: grant.target(),
            mode: grant.mode,
            state,
            token: token.filter(|_| state == LockState::Held),
            holder: self.holder(grant),
            reason: grant.requester.reason.as_deref().map(Into::into),
            since,
            lease_remaining: lease.map(|lease| lease.expires_at.saturating_sub(self.now).min(lease.duration)),
            waiter_count: 0,
            took_over: grant.expired_lease(),
            blocked_by: Vec::new(),
        }
    }
}

/// The entries of a queue, grants first, consistent with each other.
pub(super) fn entries(head: &LockQueue<Arc<Grant>>, clock: &LockTableContext<'_>) -> Vec<LockEntry> {
    let mut entries: Vec<LockEntry> = unexpired(head, clock.now).map(|grant| grant_entry(head, grant, clock)).collect();
    entries.extend(head.waiting().map(|request| clock.entry(&request.value, LockState::Waiting)));
    fill_blockers(&mut entries, head, clock);
    entries
}

/// The entries of the first `most` unexpired grants for which `wanted` returns `true`, as
/// [`entries`] has them. The number of waiting requests does not add to the cost: refusals call
/// this under the shard's mutex.
pub(super) fn holders(
    head: &LockQueue<Arc<Grant>>,
    clock: &LockTableContext<'_>,
    most: usize,
    wanted: impl Fn(&Grant) -> bool,
) -> Vec<LockEntry> {
    let converting = head.converting().map(|(id, _)| *id);
    let front_mode = head.waiting().next().map(|request| request.mode);
    let wanted = unexpired(head, clock.now).filter(|grant| wanted(grant)).take(most);
    wanted
        .map(|grant| {
            let mut entry = grant_entry(head, grant, clock);
            entry.waiter_count = match converting {
                Some(id) if id == grant.id => {
                    let others = unexpired(head, clock.now).map(|other| other.id).filter(|other| *other != id);
                    entry.blocked_by = others.collect();
                    head.front_count()
                }
                // The conversion waits for this grant, and all waiting requests for the conversion.
                Some(_) => 1,
                None if front_mode.is_some_and(|front| waits_for(front, grant)) => head.front_count(),
                None => 0,
            };
            entry
        })
        .collect()
}

/// Whether a request of this mode, with nothing to wait for ahead of it in the queue, waits for
/// the grant.
fn waits_for(mode: LockMode, grant: &Grant) -> bool {
    mode != LockMode::Shared || mode.excludes(grant.mode)
}

/// Fills in what each entry waits for directly, and the number of its direct waiters.
fn fill_blockers(entries: &mut [LockEntry], head: &LockQueue<Arc<Grant>>, clock: &LockTableContext<'_>) {
    let places: HashMap<u64, usize> = entries.iter().enumerate().map(|(place, entry)| (entry.id, place)).collect();
    wait_edges(head, clock, |waiter, blocker| {
        if let Some(waits) = places.get(&waiter).and_then(|place| entries.get_mut(*place)) {
            waits.blocked_by.push(blocker);
        }
        if let Some(blocks) = places.get(&blocker).and_then(|place| entries.get_mut(*place)) {
            blocks.waiter_count += 1;
        }
    });
}

fn unexpired(head: &LockQueue<Arc<Grant>>, now: Duration) -> impl Iterator<Item = &Arc<Grant>> {
    head.granted().iter().map(|request| &request.value).filter(move |grant| !grant.is_lease_expired(now))
}

fn grant_entry(head: &LockQueue<Arc<Grant>>, grant: &Grant, clock: &LockTableContext<'_>) -> LockEntry {
    let is_converting = head.converting().is_some_and(|(id, _)| *id == grant.id);
    let mut entry = clock.entry(grant, if is_converting { LockState::Converting } else { LockState::Held });
    if is_converting {
        // The token is that of the shared grant, which is valid until the conversion is granted.
        entry.token = Some(grant.token());
    }
    entry
}

/// Calls `on_edge` for each edge of the wait-for graph: a waiting request and one that it waits for
/// directly.
fn wait_edges(head: &LockQueue<Arc<Grant>>, clock: &LockTableContext<'_>, mut on_edge: impl FnMut(u64, u64)) {
    let converting = head.converting().map(|(id, _)| *id);
    if let Some(id) = converting {
        unexpired(head, clock.now).filter(|other| other.id != id).for_each(|other| on_edge(id, other.id));
    }
    let (mut last, mut last_unshared) = (None, None);
    for request in head.waiting() {
        // A shared request waits for the last request before it that is not shared. Any other
        // request waits for the one directly before it, even if both are semaphore requests.
        let is_shared = request.mode == LockMode::Shared;
        if let Some(before) = if is_shared { last_unshared } else { last } {
            on_edge(request.id, before);
        } else if let Some(converting) = converting {
            on_edge(request.id, converting);
        } else {
            let blockers = unexpired(head, clock.now).filter(|other| waits_for(request.mode, other));
            blockers.for_each(|other| on_edge(request.id, other.id));
        }
        last = Some(request.id);
        if !is_shared {
            last_unshared = last;
        }
    }
}

/// Numbers of grants and of waiting requests. A grant that waits for its conversion counts as
/// waiting only, and one whose lease has expired does not count as held.
#[derive(Default)]
pub struct LockTotals {
    pub held: usize,
    pub waiting: usize,
    /// When the oldest waiting request was made, by the monotonic clock.
    pub oldest_request_at: Option<Duration>,
}

impl LockTotals {
    pub fn add(&mut self, head: &LockQueue<Arc<Grant>>, now: Duration) {
        let converting = head.converting().map(|(id, _)| *id);
        self.held += unexpired(head, now).filter(|grant| Some(grant.id) != converting).count();
        let converting = head.converting().map(|(_, grant)| grant);
        for grant in head.waiting().map(|request| &request.value).chain(converting) {
            self.waiting += 1;
            self.oldest_request_at = self.oldest_request_at.into_iter().chain([grant.requester.requested_at]).min();
        }
    }
}

/// An entry and its thread or task. The name in the entry does not identify the thread, since
/// several threads may have the same name.
pub struct EntryWithWaiter {
    pub entry: LockEntry,
    waiter: Option<WaiterId>,
}

/// The thread or task of a request. A restored lease has none: its process has ended and waits for
/// nothing.
#[derive(PartialEq, Eq, Hash)]
enum WaiterId {
    Thread(ThreadId),
    Task(Box<str>),
}

pub fn seen(head: &LockQueue<Arc<Grant>>, clock: &LockTableContext<'_>) -> Vec<EntryWithWaiter> {
    let waiter = |id| match &head.find(id)?.value.requester.origin {
        RequestOrigin::Recovered(_) => None,
        RequestOrigin::Here { task: Some(task), .. } => Some(WaiterId::Task(task.clone())),
        RequestOrigin::Here { thread, .. } => Some(WaiterId::Thread(thread.id())),
    };
    entries(head, clock).into_iter().map(|entry| EntryWithWaiter { waiter: waiter(entry.id), entry }).collect()
}

/// The cycles in `seen` that a second snapshot confirms. The queues are read at different times, so
/// the other cycles may never have existed.
pub fn confirmed_cycles(seen: &[EntryWithWaiter], again: impl FnOnce() -> Vec<EntryWithWaiter>) -> Vec<Vec<u64>> {
    let mut cycles = find_cycles(seen);
    if !cycles.is_empty() {
        let again = again();
        let again: HashMap<u64, &LockEntry> = again.iter().map(|seen| (seen.entry.id, &seen.entry)).collect();
        let first: HashMap<u64, &LockEntry> = seen.iter().map(|seen| (seen.entry.id, &seen.entry)).collect();
        cycles.retain(|cycle| {
            cycle.iter().all(|id| match (first.get(id), again.get(id)) {
                (Some(before), Some(now)) => (before.state, &before.blocked_by) == (now.state, &now.blocked_by),
                _ => false,
            })
        });
    }
    cycles
}

/// Cycles in the wait-for graph. The holder of a blocking grant is a thread or task, and waits for
/// whatever its own requests wait for.
fn find_cycles(seen: &[EntryWithWaiter]) -> Vec<Vec<u64>> {
    let by_id: HashMap<u64, &EntryWithWaiter> = seen.iter().map(|seen| (seen.entry.id, seen)).collect();
    let waiting = || seen.iter().filter(|seen| seen.entry.state != LockState::Held);
    let mut waits: HashMap<&WaiterId, Vec<u64>> = HashMap::new();
    for seen in waiting() {
        if let Some(waiter) = &seen.waiter {
            waits.entry(waiter).or_default().push(seen.entry.id);
        }
    }
    let next = |seen: &EntryWithWaiter| -> Vec<u64> {
        let blockers = seen.entry.blocked_by.iter().filter_map(|id| by_id.get(id));
        // A waiting blocker waits in this queue. A granted blocker waits wherever its thread or
        // task waits.
        let held = blockers.clone().filter(|blocker| blocker.entry.state == LockState::Held);
        let of_holders = held.filter_map(|blocker| waits.get(blocker.waiter.as_ref()?)).flatten().copied();
        let in_queue =
            blockers.filter(|blocker| blocker.entry.state != LockState::Held).map(|blocker| blocker.entry.id);
        in_queue.chain(of_holders).collect()
    };
    let mut found: Vec<Vec<u64>> = Vec::new();
    let mut done: HashSet<u64> = HashSet::new();
    for start in waiting() {
        // The walk is depth first, and keeps its path. A request is visited once, so of cycles that
        // share requests only some may be found.
        let mut path: Vec<(u64, Vec<u64>)> = Vec::new();
        if done.insert(start.entry.id) {
            path.push((start.entry.id, next(start)));
        }
        while let Some((_, left)) = path.last_mut() {
            let Some(step) = left.pop() else {
                path.pop();
                continue;
            };
            if let Some(at) = path.iter().position(|(on_path, _)| *on_path == step) {
                found.push(path.get(at..).unwrap_or_default().iter().map(|(id, _)| *id).collect());
            } else if done.insert(step)
                && let Some(entry) = by_id.get(&step)
            {
                path.push((step, next(entry)));
            }
        }
    }
    found
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
