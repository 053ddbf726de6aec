//! The lock table: what is shown of all heads.
//!
//! Each head is read under its shard's mutex, so its entries belong to one moment; different heads may be of different moments. A
//! cycle among entries of different heads is therefore shown only if a second look finds all of its requests with the same waits.
//!
//! The search is one depth-first walk that follows each wait once, so of cycles that share waits it may report only some.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, UNIX_EPOCH};

use super::entry::{LockEntry, LockHolder, LockState, LockTable};
use super::grant::{Grant, RequestOrigin};
use super::head::LockQueue;
use super::heads::LockManager;
use super::mode::LockMode;

/// The moment of a look, and what this process is called.
pub struct LockTableContext<'a> {
    pub now: Duration,
    /// What the wall clock said at a moment of the runtime's. Other moments are computed from these, so each is shown alike at every look.
    pub set: (Duration, u64),
    pub pid: u32,
    pub label: Option<&'a str>,
}

impl LockTableContext<'_> {
    fn wall_time(&self, at: Duration) -> std::time::SystemTime {
        let (moment, unix_millis) = self.set;
        let since_1970 = Duration::from_millis(unix_millis).saturating_add(at.saturating_sub(moment));
        UNIX_EPOCH.checked_add(since_1970).unwrap_or(UNIX_EPOCH)
    }

    /// The process and thread that asked.
    pub fn holder(&self, grant: &Grant) -> LockHolder {
        match &grant.requester.origin {
            RequestOrigin::Recovered(holder) => (**holder).clone(),
            RequestOrigin::Here { thread, task } => LockHolder {
                pid: self.pid,
                application_name: self.label.map(Into::into),
                thread: match (task, thread.name()) {
                    (Some(task), _) => format!("task {task}"),
                    (None, Some(name)) => name.to_owned(),
                    (None, None) => format!("{:?}", thread.id()),
                },
            },
        }
    }

    /// What is shown of a request.
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

/// The entries of a head, those that are granted first, at one moment.
pub(super) fn entries(head: &LockQueue<Arc<Grant>>, clock: &LockTableContext<'_>) -> Vec<LockEntry> {
    let mut entries: Vec<LockEntry> = unexpired(head, clock.now).map(|grant| grant_entry(head, grant, clock)).collect();
    entries.extend(head.waiting().map(|asked| clock.entry(&asked.value, LockState::Waiting)));
    fill_blockers(&mut entries, head, clock);
    entries
}

/// The first `most` of those that hold the lock and are `wanted`.
pub(super) fn holders(
    head: &LockQueue<Arc<Grant>>,
    clock: &LockTableContext<'_>,
    most: usize,
    wanted: impl Fn(&Grant) -> bool,
) -> Vec<LockEntry> {
    let wanted = unexpired(head, clock.now).filter(|grant| wanted(grant)).take(most);
    let mut entries: Vec<LockEntry> = wanted.map(|grant| grant_entry(head, grant, clock)).collect();
    fill_blockers(&mut entries, head, clock);
    entries
}

/// Notes what each entry waits for first, and how many requests wait for it.
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
    head.granted().iter().map(|asked| &asked.value).filter(move |grant| !grant.is_lease_expired(now))
}

fn grant_entry(head: &LockQueue<Arc<Grant>>, grant: &Grant, clock: &LockTableContext<'_>) -> LockEntry {
    let is_converting = head.converting().is_some_and(|(id, _)| *id == grant.id);
    let mut entry = clock.entry(grant, if is_converting { LockState::Converting } else { LockState::Held });
    if is_converting {
        // What it still has is the shared grant.
        entry.token = Some(grant.token());
    }
    entry
}

/// Shows `see` each request that waits, with each that it waits for first.
fn wait_edges(head: &LockQueue<Arc<Grant>>, clock: &LockTableContext<'_>, mut see: impl FnMut(u64, u64)) {
    let converting = head.converting().map(|(id, _)| *id);
    if let Some(id) = converting {
        unexpired(head, clock.now).filter(|other| other.id != id).for_each(|other| see(id, other.id));
    }
    let (mut last, mut last_unshared) = (None, None);
    for asked in head.waiting() {
        // Requests of a semaphore are not passed, though they would not exclude each other.
        let is_shared = asked.mode == LockMode::Shared;
        if let Some(before) = if is_shared { last_unshared } else { last } {
            see(asked.id, before);
        } else if let Some(converting) = converting {
            see(asked.id, converting);
        } else {
            let stops = |other: &&Arc<Grant>| asked.mode.excludes(other.mode) || !is_shared;
            unexpired(head, clock.now).filter(stops).for_each(|other| see(asked.id, other.id));
        }
        last = Some(asked.id);
        if !is_shared {
            last_unshared = last;
        }
    }
}

/// How much is held, and how much waits, conversions included.
#[derive(Default)]
pub struct Totals {
    pub held: usize,
    pub waiting: usize,
    /// When the first of those that wait asked.
    pub oldest_request_at: Option<Duration>,
}

impl Totals {
    fn add(&mut self, head: &LockQueue<Arc<Grant>>, now: Duration) {
        let converting = head.converting().map(|(id, _)| *id);
        self.held += unexpired(head, now).filter(|grant| Some(grant.id) != converting).count();
        let converting = head.converting().map(|(_, grant)| grant);
        for grant in head.waiting().map(|asked| &asked.value).chain(converting) {
            self.waiting += 1;
            self.oldest_request_at = self.oldest_request_at.into_iter().chain([grant.requester.requested_at]).min();
        }
    }
}

impl LockManager {
    /// Everything that is held and waited for.
    pub fn table(&self, clock: &LockTableContext<'_>) -> LockTable {
        let seen = self.snapshot(clock);
        let cycles = confirmed_cycles(&seen, || self.snapshot(clock));
        let entries = seen.into_iter().map(|seen| seen.entry).collect();
        LockTable { entries, wait_cycles: cycles, ..self.summary(clock, 0) }
    }

    /// How much is held and waited for.
    #[cfg(feature = "metrics")]
    pub fn totals(&self, now: Duration) -> Totals {
        let mut totals = Totals::default();
        for shard in self.shards() {
            for entry in shard.values() {
                totals.add(&entry.head, now);
            }
        }
        totals
    }

    /// The first `listed` of what is held and as many of what waits, and how much there is of each.
    pub fn summary(&self, clock: &LockTableContext<'_>, listed: usize) -> LockTable {
        let mut table = LockTable::default();
        let mut totals = Totals::default();
        let mut left = (listed, listed);
        for shard in self.shards() {
            for entry in shard.values() {
                totals.add(&entry.head, clock.now);
                if left.0 > 0 || left.1 > 0 && entry.head.has_waiting() {
                    for shown in entries(&entry.head, clock) {
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
        table.longest_wait = totals.oldest_request_at.map_or(Duration::ZERO, |asked| clock.now.saturating_sub(asked));
        table
    }

    fn snapshot(&self, clock: &LockTableContext<'_>) -> Vec<EntryWithWaiter> {
        let mut by_name = BTreeMap::new();
        for shard in self.shards() {
            by_name.extend(shard.iter().map(|(name, entry)| (Arc::clone(name), seen(&entry.head, clock))));
        }
        by_name.into_values().flatten().collect()
    }
}

/// An entry, and the thread or task that made it: names do not tell threads apart, since several may have one.
struct EntryWithWaiter {
    entry: LockEntry,
    who: Option<WaiterId>,
}

/// `None` is an earlier life of the store, which waits for nothing.
#[derive(PartialEq, Eq, Hash)]
enum WaiterId {
    Thread(ThreadId),
    Task(Box<str>),
}

fn seen(head: &LockQueue<Arc<Grant>>, clock: &LockTableContext<'_>) -> Vec<EntryWithWaiter> {
    let who = |id| match &head.find(id)?.value.requester.origin {
        RequestOrigin::Recovered(_) => None,
        RequestOrigin::Here { task: Some(task), .. } => Some(WaiterId::Task(task.clone())),
        RequestOrigin::Here { thread, .. } => Some(WaiterId::Thread(thread.id())),
    };
    entries(head, clock).into_iter().map(|entry| EntryWithWaiter { who: who(entry.id), entry }).collect()
}

/// The cycles in what was seen that are there at a second look, too. One that is not was of different moments.
fn confirmed_cycles(seen: &[EntryWithWaiter], again: impl FnOnce() -> Vec<EntryWithWaiter>) -> Vec<Vec<u64>> {
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

/// Cycles of requests that wait for each other, where a thread or task waits for whatever the requests wait for that it has
/// made.
fn find_cycles(seen: &[EntryWithWaiter]) -> Vec<Vec<u64>> {
    let by_id: HashMap<u64, &EntryWithWaiter> = seen.iter().map(|seen| (seen.entry.id, seen)).collect();
    let waiting = || seen.iter().filter(|seen| seen.entry.state != LockState::Held);
    let mut waits: HashMap<&WaiterId, Vec<u64>> = HashMap::new();
    for seen in waiting() {
        if let Some(who) = &seen.who {
            waits.entry(who).or_default().push(seen.entry.id);
        }
    }
    let next = |seen: &EntryWithWaiter| -> Vec<u64> {
        let blockers = seen.entry.blocked_by.iter().filter_map(|id| by_id.get(id));
        // A blocker that waits itself is in a queue; one that is held waits where its holder waits.
        let held = blockers.clone().filter(|blocker| blocker.entry.state == LockState::Held);
        let of_holders = held.filter_map(|blocker| waits.get(blocker.who.as_ref()?)).flatten().copied();
        let in_queue =
            blockers.filter(|blocker| blocker.entry.state != LockState::Held).map(|blocker| blocker.entry.id);
        in_queue.chain(of_holders).collect()
    };
    let mut found: Vec<Vec<u64>> = Vec::new();
    let mut done: HashSet<u64> = HashSet::new();
    for start in waiting() {
        // Depth first, with the path walked so far. A request is entered once, so of cycles that share requests some may be missed.
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
