//! How locks by name are shown: holders and waiters, as a table, as a tree, as lines and as JSON.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use indicatif::HumanCount;
use percolite::{LockEntry, LockModeStats, LockState, LockStats, LockTarget};
use serde_json::{Value, json};

use crate::bytes::Form;
use crate::history::readable;
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
    message.extend(entry.reason.iter().map(|why| format!(" ({why:?})")));
    message.extend(entry.token.iter().map(|token| format!(", token {token}")));
    message.extend(entry.lease_remaining.iter().map(|left| format!(", {} left", readable(*left))));
    message
}

fn name(entry: &LockEntry) -> String {
    match &entry.target {
        LockTarget::Name(name) => name.to_string(),
        other => other.to_string(),
    }
}

/// How long it has waited at this moment.
fn waited(entry: &LockEntry, at: SystemTime) -> Duration {
    at.duration_since(entry.since).unwrap_or_default()
}

fn waits(entry: &LockEntry) -> bool {
    entry.state != LockState::Held
}

/// A table of locks that are held, if there are any; `more` are not listed.
pub fn held(entries: &[LockEntry], more: u64) -> Option<String> {
    let row = |entry: &LockEntry| {
        [
            table::shorten(&name(entry), WIDTH),
            entry.mode.to_string(),
            entry.holder.to_string(),
            entry.reason.clone().unwrap_or_else(|| "-".into()),
            entry.token.map_or_else(|| "-".into(), |token| token.to_string()),
            entry.lease_remaining.map_or_else(|| "-".into(), readable),
        ]
    };
    let mut rows: Vec<_> = entries.iter().filter(|entry| !waits(entry)).map(row).collect();
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
    (!rows.is_empty()).then(|| table::texts(["lock", "held", "by", "for what", "token", "lease left"], rows))
}

/// A table of requests for locks that wait, longest first, if there are any; at most `shown` of them and `more` that are not listed.
pub fn waiting(entries: &[LockEntry], at: SystemTime, shown: usize, more: u64) -> Option<String> {
    let waiting = longest(entries);
    let row = |entry: &&LockEntry| {
        let message =
            if entry.state == LockState::Converting { "to convert it".into() } else { entry.mode.to_string() };
        [
            table::shorten(&name(entry), WIDTH),
            message,
            entry.holder.to_string(),
            readable(waited(entry, at)),
            behind(entry, entries),
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
    (!rows.is_empty()).then(|| table::texts(["lock waited for", "asked", "by", "since", "behind"], rows))
}

/// Those that wait, longest first.
pub fn longest(entries: &[LockEntry]) -> Vec<&LockEntry> {
    let mut waiting: Vec<_> = entries.iter().filter(|entry| waits(entry)).collect();
    waiting.sort_by_key(|entry| entry.since);
    waiting
}

/// What a request waits for first.
fn behind(entry: &LockEntry, entries: &[LockEntry]) -> String {
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
    behind: HashMap<u64, Vec<&'a LockEntry>>,
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
        roots.sort_by_key(|entry| (name(entry), entry.id));
        behind.values_mut().for_each(|some| some.sort_by_key(|entry| entry.id));
        Self { roots, behind }
    }

    fn behind(&self, entry: &LockEntry) -> &[&'a LockEntry] {
        self.behind.get(&entry.id).map(Vec::as_slice).unwrap_or_default()
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
            _ => format!("{mode}, waited for by {}, for {}{more}", holder(entry), readable(waited(entry, at))),
        };
        lines.push(format!("{indent}{message}"));
        self.behind(entry).iter().for_each(|next| self.lines(next, depth + 1, at, lines));
    }

    fn json(&self, entry: &LockEntry) -> Value {
        let mut shown = json(entry);
        if let Some(fields) = shown.as_object_mut() {
            fields.insert("behind".into(), self.behind(entry).iter().map(|next| self.json(next)).collect());
        }
        shown
    }
}

/// Each lock, its holders, and below each the requests that wait for it; `None` when there is none.
pub fn tree(entries: &[LockEntry], at: SystemTime) -> Option<String> {
    let tree = Tree::of(entries);
    let (mut lines, mut last) = (Vec::new(), None);
    for root in &tree.roots {
        let of = name(root);
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
pub fn json(entry: &LockEntry) -> Value {
    let mut shown = json!(entry);
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("kind".into(), "name".into());
        fields.insert("target".into(), name(entry).into());
    }
    shown
}

/// A plain line, with as many columns as that of a row lock, of which the first is empty.
pub fn plain_line(entry: &LockEntry) -> Vec<u8> {
    let mut line = Vec::new();
    let token = entry.token.map(|token| token.to_string()).unwrap_or_default();
    let left = entry.lease_remaining.map(|left| format!("{:.3}", left.as_secs_f64())).unwrap_or_default();
    let columns = [
        name(entry),
        token,
        entry.holder.to_string(),
        entry.mode.to_string(),
        entry.state.to_string(),
        left,
        entry.reason.clone().unwrap_or_default(),
    ];
    for column in &columns {
        line.push(b'\t');
        Form::Text.plain(column.as_bytes(), &mut line);
    }
    line.push(b'\n');
    line
}

/// How often locks were taken and waited for, in words.
pub fn counted(stats: &LockStats) -> String {
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
        readable(longest),
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
