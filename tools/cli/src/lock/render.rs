//! Renders named locks, their holders and waiters: as tables, as a tree, as plain lines and as
//! JSON.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use indicatif::HumanCount;
use percolite::{LockEntry, LockModeStats, LockState, LockStats, LockTarget};
use serde_json::{Value, json};

use crate::duration::human_duration;
use crate::encoding::Encoding;
use crate::table;

const WIDTH: usize = 40;

/// The holders of a lock, in a line.
pub fn holders(entries: &[LockEntry]) -> String {
    let holders: Vec<String> = entries.iter().map(holder).collect();
    format!("held by {}", holders.join("; by "))
}

/// The holder, the reason, the token and the rest of the lease, in a line.
pub fn holder(entry: &LockEntry) -> String {
    let mut line = entry.holder.to_string();
    line.extend(entry.reason.iter().map(|reason| format!(" ({reason:?})")));
    line.extend(entry.token.iter().map(|token| format!(", token {token}")));
    line.extend(entry.lease_remaining.iter().map(|left| format!(", {} left", human_duration(*left))));
    line
}

fn lock_name(entry: &LockEntry) -> String {
    match &entry.target {
        LockTarget::Name(name) => name.to_string(),
        other => other.to_string(),
    }
}

/// How long the request has waited at the time `at`.
fn waited(entry: &LockEntry, at: SystemTime) -> Duration {
    at.duration_since(entry.since).unwrap_or_default()
}

fn is_waiting(entry: &LockEntry) -> bool {
    entry.state != LockState::Held
}

/// A table of the held locks, if there are any; `more` is the number of held locks that are not in
/// `entries`.
pub fn held_table(entries: &[LockEntry], more: u64) -> Option<String> {
    let row = |entry: &LockEntry| {
        [
            table::truncate(&lock_name(entry), WIDTH),
            entry.mode.to_string(),
            entry.holder.to_string(),
            entry.reason.clone().unwrap_or_else(|| "-".into()),
            entry.token.map_or_else(|| "-".into(), |token| token.to_string()),
            entry.lease_remaining.map_or_else(|| "-".into(), human_duration),
        ]
    };
    let mut rows: Vec<_> = entries.iter().filter(|entry| !is_waiting(entry)).map(row).collect();
    if more > 0 {
        rows.push([
            format!("and {} more", HumanCount(more)),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
        ]);
    }
    (!rows.is_empty())
        .then(|| table::text_table(["held lock", "mode", "holder", "reason", "token", "lease left"], rows))
}

/// A table of the waiting requests, longest wait first, if there are any. It has at most `limit`
/// rows; `more` is the number of requests that are not in `entries`.
pub fn waiters_table(entries: &[LockEntry], at: SystemTime, limit: usize, more: u64) -> Option<String> {
    let waiting = by_wait_time(entries);
    let row = |entry: &&LockEntry| {
        let mode = if entry.state == LockState::Converting { "conversion".into() } else { entry.mode.to_string() };
        [
            table::truncate(&lock_name(entry), WIDTH),
            mode,
            entry.holder.to_string(),
            human_duration(waited(entry, at)),
            blocked_by(entry, entries),
        ]
    };
    let mut rows: Vec<_> = waiting.iter().take(limit).map(row).collect();
    if let more @ 1.. = more + waiting.len().saturating_sub(limit) as u64 {
        rows.push([
            format!("and {} more", HumanCount(more)),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
        ]);
    }
    (!rows.is_empty())
        .then(|| table::text_table(["requested lock", "mode", "waiter", "waiting for", "blocked by"], rows))
}

/// The waiting requests, longest wait first.
pub fn by_wait_time(entries: &[LockEntry]) -> Vec<&LockEntry> {
    let mut waiting: Vec<_> = entries.iter().filter(|entry| is_waiting(entry)).collect();
    waiting.sort_by_key(|entry| entry.since);
    waiting
}

/// The holder of the first request or grant that blocks this request, and the number of other
/// blockers.
fn blocked_by(entry: &LockEntry, entries: &[LockEntry]) -> String {
    let first = entry.blocked_by.first().and_then(|id| entries.iter().find(|other| other.id == *id));
    let first = first.map_or_else(|| "one that is not listed".into(), |other| other.holder.to_string());
    match entry.blocked_by.len() {
        0 => "-".into(),
        1 => first,
        count => format!("{first}, and {} more", count - 1),
    }
}

/// A forest of holders and waiters. Each waiter appears once, below the first listed request or
/// grant that blocks it. A waiter that no listed one blocks is a root.
struct Tree<'a> {
    roots: Vec<&'a LockEntry>,
    waiters: HashMap<u64, Vec<&'a LockEntry>>,
}

impl<'a> Tree<'a> {
    fn of(entries: &'a [LockEntry]) -> Self {
        let listed: HashSet<u64> = entries.iter().map(|entry| entry.id).collect();
        let (mut roots, mut waiters): (Vec<&LockEntry>, HashMap<u64, Vec<&LockEntry>>) = Default::default();
        for entry in entries {
            match entry.blocked_by.iter().find(|id| listed.contains(*id)) {
                Some(first) => waiters.entry(*first).or_default().push(entry),
                None => roots.push(entry),
            }
        }
        roots.sort_by_key(|entry| (lock_name(entry), entry.id));
        waiters.values_mut().for_each(|waiters| waiters.sort_by_key(|entry| entry.id));
        Self { roots, waiters }
    }

    fn waiters_of(&self, entry: &LockEntry) -> &[&'a LockEntry] {
        self.waiters.get(&entry.id).map(Vec::as_slice).unwrap_or_default()
    }

    fn lines(&self, entry: &LockEntry, depth: usize, at: SystemTime, lines: &mut Vec<String>) {
        let (mode, indent) = (entry.mode, "  ".repeat(depth));
        let more = match entry.blocked_by.len() {
            0 | 1 => String::new(),
            count => format!(", blocked by {} more", count - 1),
        };
        let line = match entry.state {
            LockState::Held => format!("{mode}, held by {}", holder(entry)),
            LockState::Converting => format!("{mode}, held by {}, waiting to convert it{more}", holder(entry)),
            _ => format!("{mode}, requested by {}, {} ago{more}", holder(entry), human_duration(waited(entry, at))),
        };
        lines.push(format!("{indent}{line}"));
        self.waiters_of(entry).iter().for_each(|waiter| self.lines(waiter, depth + 1, at, lines));
    }

    fn json(&self, entry: &LockEntry) -> Value {
        let mut document = to_json(entry);
        if let Some(fields) = document.as_object_mut() {
            fields.insert("waiters".into(), self.waiters_of(entry).iter().map(|waiter| self.json(waiter)).collect());
        }
        document
    }
}

/// A text that has the name of each lock, below it the holders, and below each holder its waiters.
/// `None` if there are no locks.
pub fn tree(entries: &[LockEntry], at: SystemTime) -> Option<String> {
    let tree = Tree::of(entries);
    let (mut lines, mut last) = (Vec::new(), None);
    for root in &tree.roots {
        let name = lock_name(root);
        if last.as_ref() != Some(&name) {
            lines.push(format!("{name:?}"));
            last = Some(name);
        }
        tree.lines(root, 1, at, &mut lines);
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The tree of [`tree`] in JSON: a document per root, with its `waiters`.
pub fn tree_json(entries: &[LockEntry]) -> Vec<Value> {
    let tree = Tree::of(entries);
    tree.roots.iter().map(|root| tree.json(root)).collect()
}

/// The JSON document that `locks --json` prints for a named lock.
pub fn to_json(entry: &LockEntry) -> Value {
    let mut document = json!(entry);
    if let Some(fields) = document.as_object_mut() {
        fields.insert("kind".into(), "named".into());
        fields.insert("target".into(), lock_name(entry).into());
    }
    document
}

/// A plain line with as many columns as the line of a row lock. The first column, the keyspace of a
/// row lock, is empty.
pub fn plain_line(entry: &LockEntry) -> Vec<u8> {
    let mut line = Vec::new();
    let token = entry.token.map(|token| token.to_string()).unwrap_or_default();
    let left = entry.lease_remaining.map(|left| format!("{:.3}", left.as_secs_f64())).unwrap_or_default();
    let columns = [
        lock_name(entry),
        token,
        entry.holder.to_string(),
        entry.mode.to_string(),
        entry.state.to_string(),
        left,
        entry.reason.clone().unwrap_or_default(),
    ];
    for column in &columns {
        line.push(b'\t');
        Encoding::Text.write_column(column.as_bytes(), &mut line);
    }
    line.push(b'\n');
    line
}

/// The statistics of named locks in a line; rare events only if there were any.
pub fn format_lock_stats(stats: &LockStats) -> String {
    let LockStats { exclusive, shared, semaphore, deadlocks, leases_expired, force_unlocked, lost, .. } = stats;
    let modes = [exclusive, shared, semaphore];
    let sum = |count: fn(&LockModeStats) -> u64| HumanCount(modes.iter().map(|mode| count(mode)).sum());
    let longest = modes.iter().map(|mode| mode.wait_time.percentile(100.0)).max().unwrap_or_default();
    let common = format!(
        "{} acquired, {} waits (max {}), {} timeouts, {} cancelled",
        sum(|mode| mode.acquired),
        sum(|mode| mode.waits),
        human_duration(longest),
        sum(|mode| mode.timeouts),
        sum(|mode| mode.cancelled)
    );
    let rare = [
        (lost, "lost"),
        (leases_expired, "leases expired"),
        (force_unlocked, "unlocked by force"),
        (deadlocks, "deadlocks"),
    ];
    let rare = rare.into_iter().filter(|(count, _)| **count > 0);
    std::iter::once(common)
        .chain(rare.map(|(count, event)| format!("{} {event}", HumanCount(*count))))
        .collect::<Vec<_>>()
        .join(", ")
}
