//! The checker of lock histories: which grants were held when, and what was committed and read
//! under them.
//!
//! Mutual exclusion is checked by intervals in which a grant was certainly held. Everything else is
//! checked by timestamps, sorted once:
//!
//! - token order: of two conflicting grants the later has the greater token;
//! - fencing: a fenced commit lies between its token and the next conflicting token;
//! - visibility: a fenced transaction sees every commit fenced by earlier conflicting tokens;
//! - queue order: a grant whose request must not wait has a greater token than every conflicting
//!   grant that was requested before it, in the order of the ids of the requests.

mod replay;

use std::collections::{BTreeMap, BTreeSet};

use percolite::LockMode;

use crate::lock_workload::event::LogicalTime;
use crate::violation::Violation;

pub use replay::{LeaseRecord, LockHistory, replay};

/// An interval in which a grant was certainly held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantInterval {
    /// The name of the lock.
    pub name: String,
    /// The mode of the grant.
    pub mode: LockMode,
    /// The token of the grant.
    pub token: u64,
    /// A time before the request; `None` in all intervals of a grant but the first.
    pub requested_at: Option<LogicalTime>,
    /// A time after the grant was returned.
    pub from: LogicalTime,
    /// The first of these: the next attempt to end the grant, the earliest end of its lease, and
    /// the end of its incarnation.
    pub until: LogicalTime,
    /// The number of the request in its incarnation; `None` if it was not recorded, and in all
    /// intervals of a grant but the first.
    pub id: Option<u64>,
    /// Whether the request was one that must not wait.
    pub no_wait: bool,
}

/// A commit or a read under a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FencedOp {
    /// The number of the commit; 0 for a read.
    pub number: u64,
    /// The name of the lock.
    pub name: String,
    /// The token of the grant.
    pub token: u64,
    /// The read timestamp.
    pub read_ts: u64,
    /// The commit timestamp of a commit.
    pub commit_ts: Option<u64>,
}

/// Whether two grants exclude each other.
pub fn conflict(one: LockMode, other: LockMode) -> bool {
    mode_class(one) != mode_class(other) || one == LockMode::Exclusive
}

const CLASSES: usize = 3;

fn mode_class(mode: LockMode) -> usize {
    match mode {
        LockMode::Exclusive => 0,
        LockMode::Shared => 1,
        _ => 2,
    }
}

/// `by_class` has a value for each class of modes. Returns the greatest value of the classes that
/// conflict with `mode`.
fn greatest<T: Copy + Ord + Default>(by_class: &[T; CLASSES], mode: LockMode) -> T {
    let excludes = |at: &usize| *at != mode_class(mode) || mode == LockMode::Exclusive;
    (0..CLASSES).filter(excludes).map(|at| by_class[at]).max().unwrap_or_default()
}

/// All violations in a lock history.
pub fn check(records: &LockHistory) -> Vec<Violation> {
    let mut violations = Vec::new();
    for grants in by_name(&records.grants, |grant| &grant.name).values() {
        check_exclusion(grants, &mut violations);
        check_tokens(grants, &mut violations);
        check_fifo(grants, &mut violations);
    }
    let fenced = fencing_violations(&records.grants, &records.fenced, &records.reads);
    violations.extend(fenced.into_iter().map(|(_, violations)| violations));
    violations.extend(records.violations.iter().cloned());
    violations
}

fn by_name<T>(all: &[T], name: impl Fn(&T) -> &String) -> BTreeMap<String, Vec<&T>> {
    let mut found: BTreeMap<String, Vec<&T>> = BTreeMap::new();
    for one in all {
        found.entry(name(one).clone()).or_default().push(one);
    }
    found
}

/// Mutual exclusion. The intervals are checked in the order of their starts: each is compared with
/// the conflicting earlier ones that end last, and the held permits are counted.
fn check_exclusion(grants: &[&GrantInterval], violations: &mut Vec<Violation>) {
    let mut grants: Vec<&GrantInterval> = grants.iter().copied().filter(|grant| grant.from < grant.until).collect();
    grants.sort_by_key(|grant| grant.from);
    // For each class of modes, the interval that ends last, and the one that ends last among those
    // with another token. The second is needed if the first is an interval of the same grant as the
    // one being checked: these two do not conflict.
    let mut longest: [[Option<&GrantInterval>; 2]; CLASSES] = Default::default();
    let mut permits: BTreeSet<(LogicalTime, u64)> = BTreeSet::new();
    for grant in grants {
        let before = (0..CLASSES).filter(|at| *at != mode_class(grant.mode) || grant.mode == LockMode::Exclusive);
        let before = before.flat_map(|at| longest[at]).flatten();
        if let Some(other) = before.filter(|other| other.token != grant.token).max_by_key(|other| other.until)
            && other.until > grant.from
        {
            let details = format!("lock {:?} was held by {other:?} and by {grant:?}", grant.name);
            violations.push(Violation::new("lock: mutual exclusion", details));
        }
        if let LockMode::Semaphore(most) = grant.mode {
            permits.retain(|(until, token)| *until > grant.from && *token != grant.token);
            permits.insert((grant.until, grant.token));
            if permits.len() > most as usize {
                let details = format!("lock {:?} was held {} times: {grant:?}", grant.name, permits.len());
                violations.push(Violation::new("lock: mutual exclusion", details));
            }
        }
        let [first, second] = &mut longest[mode_class(grant.mode)];
        if first.is_none_or(|first| first.token == grant.token) {
            *first = Some(first.map_or(grant, |first| if first.until > grant.until { first } else { grant }));
        } else if first.is_some_and(|first| first.until < grant.until) {
            (*first, *second) = (Some(grant), *first);
        } else if second.is_none_or(|second| second.until < grant.until) {
            *second = Some(grant);
        }
    }
}

/// Token order: a grant that was requested after a conflicting grant had been returned has the
/// greater token, and no two conflicting grants have the same token.
fn check_tokens(grants: &[&GrantInterval], violations: &mut Vec<Violation>) {
    let mut by_return: Vec<&GrantInterval> = grants.to_vec();
    by_return.sort_by_key(|grant| grant.from);
    let mut by_request: Vec<&GrantInterval> =
        grants.iter().copied().filter(|grant| grant.requested_at.is_some()).collect();
    by_request.sort_by_key(|grant| grant.requested_at);
    let (mut before, mut newest) = (by_return.iter().peekable(), [0; CLASSES]);
    for grant in &by_request {
        while let Some(earlier) = before.next_if(|earlier| Some(earlier.from) < grant.requested_at) {
            let newest = &mut newest[mode_class(earlier.mode)];
            *newest = earlier.token.max(*newest);
        }
        let newest = greatest(&newest, grant.mode);
        if newest >= grant.token {
            let details = format!("the token of a later grant is not greater than {newest}: {grant:?}");
            violations.push(Violation::new("lock: token order", details));
        }
    }
    let mut seen: BTreeMap<u64, &GrantInterval> = BTreeMap::new();
    for grant in by_request {
        if let Some(other) = seen.insert(grant.token, grant).filter(|other| conflict(other.mode, grant.mode)) {
            // Two entries with the same request are one grant.
            if (other.id, other.requested_at) != (grant.id, grant.requested_at) {
                violations.push(Violation::new(
                    "lock: token order",
                    format!("two grants with one token: {other:?} and {grant:?}"),
                ));
            }
        }
    }
}

/// Queue order: a grant whose request must not wait has a greater token than all conflicting grants
/// that were requested before it.
fn check_fifo(grants: &[&GrantInterval], violations: &mut Vec<Violation>) {
    let mut by_id: Vec<(u32, u64, &GrantInterval)> =
        grants.iter().filter_map(|grant| Some((grant.from.incarnation, grant.id?, *grant))).collect();
    by_id.sort_by_key(|(incarnation, id, _)| (*incarnation, *id));
    let (mut current, mut newest) = (0, [0; CLASSES]);
    for (incarnation, _, grant) in by_id {
        if incarnation != current {
            (current, newest) = (incarnation, [0; CLASSES]);
        }
        let passed = greatest(&newest, grant.mode);
        if grant.no_wait && passed > grant.token {
            let details = format!("it passed the earlier request with the token {passed}: {grant:?}");
            violations.push(Violation::new("lock: queue order", details));
        }
        let newest = &mut newest[mode_class(grant.mode)];
        *newest = grant.token.max(*newest);
    }
}

/// Fencing and visibility: the violating commits and reads, with their numbers.
pub fn fencing_violations(grants: &[GrantInterval], commits: &[FencedOp], reads: &[FencedOp]) -> Vec<(u64, Violation)> {
    let mut found = Vec::new();
    let mut commits_of_name = by_name(commits, |op| &op.name);
    let mut reads_of_name = by_name(reads, |op| &op.name);
    for (name, grants) in by_name(grants, |grant| &grant.name) {
        let mut grants: Vec<(u64, LockMode)> = grants.iter().map(|grant| (grant.token, grant.mode)).collect();
        grants.sort_by_key(|(token, mode)| (*token, mode_class(*mode)));
        grants.dedup();
        let mut commits = commits_of_name.remove(&name).unwrap_or_default();
        let mut reads = reads_of_name.remove(&name).unwrap_or_default();
        commits.sort_by_key(|op| op.token);
        reads.sort_by_key(|op| op.token);
        check_fencing(&grants, &commits, &mut found);
        check_visibility(&grants, &commits, &reads, &mut found);
    }
    found
}

/// Checks fencing, from the last token to the first.
fn check_fencing(grants: &[(u64, LockMode)], commits: &[&FencedOp], found: &mut Vec<(u64, Violation)>) {
    let mut commits = commits.iter().rev().peekable();
    let mut next = [std::cmp::Reverse(u64::MAX); CLASSES];
    for group in grants.chunk_by(|one, other| one.0 == other.0).rev() {
        for (token, mode) in group {
            let excludes = |at: &usize| *at != mode_class(*mode) || *mode == LockMode::Exclusive;
            // `limit` is the smallest conflicting token above this one.
            let limit = (0..CLASSES).filter(excludes).map(|at| next[at].0).min().unwrap_or(u64::MAX);
            while commits.next_if(|op| op.token > *token).is_some() {}
            while let Some(op) = commits.next_if(|op| op.token == *token) {
                let Some(ts) = op.commit_ts else { continue };
                if ts <= *token || ts >= limit {
                    let details = format!("fenced by {token}, and the next conflicting token is {limit}: {op:?}");
                    found.push((op.number, Violation::new("lock: fencing", details)));
                }
            }
        }
        for (token, mode) in group {
            next[mode_class(*mode)] = std::cmp::Reverse(*token);
        }
    }
}

/// Checks visibility, from the first token to the last. A snapshot of durable data shows buffered
/// commits, too: what was fenced under an earlier grant counts as acknowledged.
fn check_visibility(
    grants: &[(u64, LockMode)],
    commits: &[&FencedOp],
    reads: &[&FencedOp],
    found: &mut Vec<(u64, Violation)>,
) {
    let (mut commits, mut reads) = (commits.iter().peekable(), reads.iter().peekable());
    let mut newest = [0; CLASSES];
    for group in grants.chunk_by(|one, other| one.0 == other.0) {
        let mut visible = newest;
        for (token, mode) in group {
            let mut sees = |op: &FencedOp, what: &str| {
                let needed = greatest(&newest, *mode);
                if op.read_ts < needed {
                    let details = format!("{what} does not see {needed}, fenced by an earlier token: {op:?}");
                    found.push((op.number, Violation::new("lock: visibility", details)));
                }
            };
            while commits.next_if(|op| op.token < *token).is_some() {}
            while let Some(op) = commits.next_if(|op| op.token == *token) {
                sees(op, "a transaction");
                let at = mode_class(*mode);
                visible[at] = op.commit_ts.unwrap_or_default().max(visible[at]);
            }
            while reads.next_if(|op| op.token < *token).is_some() {}
            while let Some(op) = reads.next_if(|op| op.token == *token) {
                sees(op, "a read");
            }
        }
        newest = visible;
    }
}
