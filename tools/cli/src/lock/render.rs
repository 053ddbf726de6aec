//! How locks by name are shown: holders and waiters, as a table, as a tree, as lines and as JSON.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use indicatif::HumanCount;
use percolite::{LockEntry, LockModeStats, LockState, LockStats, LockTarget};
use serde_json::{Value, json};

use crate::duration::human_duration;
use crate::encoding::Encoding;
use crate::table;

const WIDTH: usize = 40;

/// Its holders, in a line.
pub fn holders(entries: &[LockEntry]) -> String {
    let message: Vec<String> = entries.iter().map(holder).collect();
    format!("held by {}", message.join("; by "))
}

/// The holder, what the lock is for, and how long it lasts, in a line.
pub fn holder(entry: &LockEntry) -> String {
    let mut message = entry.holder.to_string();
    message.extend(entry.reason.iter().map(|err| format!(" ({err:?})")));
    message.extend(entry.token.iter().map(|token| format!(", token {token}")));
    message.extend(entry.lease_remaining.iter().map(|left| format!(", {} left", human_duration(*left))));
    message
}

fn lock_name(entry: &LockEntry) -> String {
    match &entry.target {
        LockTarget::Name(name) => name.to_string(),
        other => other.to_string(),
    }
}

/// How long it has waited at this moment.
fn waited(entry: &LockEntry, at: SystemTime) -> Duration {
    at.duration_since(entry.since).unwrap_or_default()
}

fn is_waiting(entry: &LockEntry) -> bool {
    entry.state != LockState::Held
}

/// A table of locks that are held, if there are any; `more` are not listed.
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
    (!rows.is_empty()).then(|| table::text_table(["lock", "held", "by", "for what", "token", "lease left"], rows))
}

/// A table of requests for locks that wait, longest first, if there are any; at most `shown` of them and `more` that are not listed.
pub fn waiters_table(entries: &[LockEntry], at: SystemTime, shown: usize, more: u64) -> Option<String> {
    let waiting = by_wait_time(entries);
    let row = |entry: &&LockEntry| {
        let message =
            if entry.state == LockState::Converting { "to convert it".into() } else { entry.mode.to_string() };
        [
            table::truncate(&lock_name(entry), WIDTH),
            message,
            entry.holder.to_string(),
            human_duration(waited(entry, at)),
            blocked_by(entry, entries),
        ]
    };
    let mut rows: Vec<_> = waiting.iter().take(shown).map(row).collect();
    if let more @ 1.. = more + waiting.len().saturating_sub(shown) as u64 {
        rows.push([
            format!("and {} more", HumanCount(more)),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
        ]);
    }
    (!rows.is_empty()).then(|| table::text_table(["lock waited for", "asked", "by", "since", "behind"], rows))
}

/// Those that wait, longest first.
pub fn by_wait_time(entries: &[LockEntry]) -> Vec<&LockEntry> {
    let mut waiting: Vec<_> = entries.iter().filter(|entry| is_waiting(entry)).collect();
    waiting.sort_by_key(|entry| entry.since);
    waiting
}

/// What a request waits for first.
fn blocked_by(entry: &LockEntry, entries: &[LockEntry]) -> String {
    let first = entry.blocked_by.first().and_then(|id| entries.iter().find(|other| other.id == *id));
    let first = first.map_or_else(|| "one that is not listed".into(), |other| other.holder.to_string());
    match entry.blocked_by.len() {
        0 => "-".into(),
        1 => first,
        some => format!("{first}, and {} more", some - 1),
    }
}

/// Which request waits for which. Each stands once, below the first that it waits for.
struct Tree<'a> {
    roots: Vec<&'a LockEntry>,
    waiters: HashMap<u64, Vec<&'a LockEntry>>,
}

impl<'a> Tree<'a> {
    fn of(entries: &'a [LockEntry]) -> Self {
        let listed: HashSet<u64> = entries.iter().map(|entry| entry.id).collect();
        let (mut roots, mut behind): (Vec<&LockEntry>, HashMap<u64, Vec<&LockEntry>>) = Default::default();
        for entry in entries {
            match entry.blocked_by.iter().find(|id| listed.contains(*id)) {
                Some(first) => behind.entry(*first).or_default().push(entry),
                None => roots.push(entry),
            }
        }
        roots.sort_by_key(|entry| (lock_name(entry), entry.id));
        behind.values_mut().for_each(|some| some.sort_by_key(|entry| entry.id));
        Self { roots, waiters: behind }
    }

    fn waiters_of(&self, entry: &LockEntry) -> &[&'a LockEntry] {
        self.waiters.get(&entry.id).map(Vec::as_slice).unwrap_or_default()
    }

    fn lines(&self, entry: &LockEntry, depth: usize, at: SystemTime, lines: &mut Vec<String>) {
        let (mode, indent) = (entry.mode, "  ".repeat(depth));
        let more = match entry.blocked_by.len() {
            0 | 1 => String::new(),
            some => format!(", behind {} more", some - 1),
        };
        let message = match entry.state {
            LockState::Held => format!("{mode}, held by {}", holder(entry)),
            LockState::Converting => format!("{mode}, held by {}, which waits to convert it{more}", holder(entry)),
            _ => format!("{mode}, waited for by {}, for {}{more}", holder(entry), human_duration(waited(entry, at))),
        };
        lines.push(format!("{indent}{message}"));
        self.waiters_of(entry).iter().for_each(|next| self.lines(next, depth + 1, at, lines));
    }

    fn json(&self, entry: &LockEntry) -> Value {
        let mut shown = to_json(entry);
        if let Some(fields) = shown.as_object_mut() {
            fields.insert("behind".into(), self.waiters_of(entry).iter().map(|next| self.json(next)).collect());
        }
        shown
    }
}

/// Each lock, its holders, and below each the requests that wait for it; `None` when there is none.
pub fn tree(entries: &[LockEntry], at: SystemTime) -> Option<String> {
    let tree = Tree::of(entries);
    let (mut lines, mut last) = (Vec::new(), None);
    for root in &tree.roots {
        let of = lock_name(root);
        if last.as_ref() != Some(&of) {
            lines.push(format!("{of:?}"));
            last = Some(of);
        }
        tree.lines(root, 1, at, &mut lines);
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The same: a document for each that holds or waits for nothing that is listed, with those behind it.
pub fn tree_json(entries: &[LockEntry]) -> Vec<Value> {
    let tree = Tree::of(entries);
    tree.roots.iter().map(|root| tree.json(root)).collect()
}

/// As `locks --json` shows one.
pub fn to_json(entry: &LockEntry) -> Value {
    let mut shown = json!(entry);
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("kind".into(), "name".into());
        fields.insert("target".into(), lock_name(entry).into());
    }
    shown
}

/// A plain line, with as many columns as that of a row lock, of which the first is empty.
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

/// How often locks were taken and waited for, in words.
pub fn format_lock_stats(stats: &LockStats) -> String {
    let LockStats {
        exclusive,
        shared,
        semaphore,
        deadlocks,
        leases_expired: expired,
        force_unlocked: forced,
        lost,
        ..
    } = stats;
    let modes = [exclusive, shared, semaphore];
    let sum = |count: fn(&LockModeStats) -> u64| HumanCount(modes.iter().map(|mode| count(mode)).sum());
    let longest = modes.iter().map(|mode| mode.wait_time.percentile(100.0)).max().unwrap_or_default();
    let message = format!(
        "{} taken, {} waited for, at most {}; {} timed out, {} cancelled",
        sum(|mode| mode.acquired),
        sum(|mode| mode.waits),
        human_duration(longest),
        sum(|mode| mode.timeouts),
        sum(|mode| mode.cancelled)
    );
    let rare = [(lost, "lost"), (expired, "leases over"), (forced, "taken away"), (deadlocks, "deadlocks")];
    let rare = rare.into_iter().filter(|(count, _)| **count > 0);
    std::iter::once(message)
        .chain(rare.map(|(count, what)| format!("{} {what}", HumanCount(*count))))
        .collect::<Vec<_>>()
        .join(", ")
}
