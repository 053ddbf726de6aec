//! Replays lock events into grant intervals, commits and reads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percolite::LockMode;

use super::{FencedOp, GrantInterval, conflict};
use crate::lock_workload::event::{LeaseTerm, LockCommit, LockEvent, LockRead, LogicalTime};
use crate::violation::Violation;

/// The grants, commits and reads of all incarnations, reconstructed by [`replay`] from their
/// events.
#[derive(Clone, Debug, Default)]
pub struct LockHistory {
    /// The intervals in which grants were held.
    pub grants: Vec<GrantInterval>,
    /// Fenced commits.
    pub fenced: Vec<FencedOp>,
    /// Unfenced commits.
    pub unfenced: Vec<FencedOp>,
    /// Reads of holders.
    pub reads: Vec<FencedOp>,
    /// All leases.
    pub leases: Vec<LeaseRecord>,
    /// Commits of unknown outcome.
    pub undecided: Vec<LockCommit>,
    /// The number of requests.
    pub requests: u64,
    /// Violations found during the replay.
    pub violations: Vec<Violation>,
}

/// A lease, as of the last opening.
#[derive(Clone, Debug)]
pub struct LeaseRecord {
    /// The name of the lock.
    pub name: String,
    /// The token of the grant.
    pub token: u64,
    /// Whether the lease has ended durably.
    pub ended: bool,
    /// The lease is held at least until this time.
    pub at_least: Option<LogicalTime>,
    /// The lease is held at most until this time, if that is known.
    pub at_most: Option<LogicalTime>,
}

/// A grant during the replay.
#[derive(Debug)]
struct Grant {
    mode: LockMode,
    requested_at: Option<LogicalTime>,
    id: Option<u64>,
    no_wait: bool,
    /// The start of each interval of the grant: the grant itself, each failed conversion, each
    /// renewal, and each later opening at which its lease continues. Beside each start are the
    /// numbers of the end attempts that had failed by then and so do not end the interval.
    start_times: Vec<(LogicalTime, Vec<u64>)>,
    end_attempts: Vec<(u64, LogicalTime)>,
    is_over: bool,
    resumed: bool,
    /// The last acknowledged term of the lease.
    term: Option<LeaseTerm>,
    /// By incarnation, the time until which the lease is held at least.
    lease_ends: BTreeMap<u32, LogicalTime>,
    at_most: Option<LogicalTime>,
}

impl Grant {
    fn until(&self, from: LogicalTime, cancelled: &[u64]) -> LogicalTime {
        let ends = self.end_attempts.iter().filter(|(by, _)| !cancelled.contains(by)).map(|(_, at)| *at);
        // Without a lease the grant ends with its incarnation.
        let end_of_life = LogicalTime { incarnation: from.incarnation, time: u64::MAX, tick: u64::MAX };
        let last = if self.term.is_some() { self.lease_ends.get(&from.incarnation).copied() } else { None };
        ends.chain(last).min().unwrap_or(end_of_life).min(end_of_life)
    }

    fn is_held_at(&self, at: LogicalTime, by: u64) -> bool {
        self.start_times.iter().any(|(from, cancelled)| {
            let cancelled: Vec<u64> = cancelled.iter().copied().chain([by]).collect();
            *from <= at && at < self.until(*from, &cancelled)
        })
    }

    fn extend(&mut self, term: LeaseTerm) {
        let lasts = self.lease_ends.entry(term.from.incarnation).or_default();
        *lasts = term.ends().max(*lasts);
        self.term = Some(term);
    }

    /// A renewal proves that the lease is held, also if it was attached in a later incarnation than
    /// that of its grant, and nothing was known of it.
    fn renewed(&mut self, term: LeaseTerm, at: LogicalTime) {
        self.extend(term);
        let cancelled = self.start_times.last().map_or_else(Vec::new, |(_, cancelled)| cancelled.clone());
        self.start_times.push((at, cancelled));
    }
}

type Grants = BTreeMap<(String, u64), Grant>;

/// The outcome of a commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitEnd {
    Undecided,
    NotCommitted,
    At(u64),
}

#[derive(Default)]
struct Replay {
    requests: BTreeMap<u64, (String, LockMode, bool, LogicalTime)>,
    grants: Grants,
    commits: BTreeMap<u64, (LockCommit, CommitEnd)>,
    reads: Vec<LockRead>,
    not_held: Vec<(String, u64, u64, LogicalTime)>,
    store_gone: Option<LogicalTime>,
    violations: Vec<Violation>,
}

/// The lock history of these events.
pub fn replay<'a>(events: impl IntoIterator<Item = &'a LockEvent>) -> LockHistory {
    let mut replay = Replay::default();
    for event in events {
        replay.add(event);
    }
    replay.history()
}

impl Replay {
    fn add(&mut self, event: &LockEvent) {
        match event {
            LockEvent::StoreOpened(before, after, wall) => self.opened(*before, *after, *wall),
            LockEvent::StoreGone(at) => self.store_gone = Some(*at),
            LockEvent::Requested { request, name, mode, no_wait, at } => {
                self.requests.insert(*request, (name.clone(), *mode, *no_wait, *at));
            }
            LockEvent::Granted { request, token, id, at, term } => self.granted(*request, *token, (*id, *at, *term)),
            LockEvent::Renewed { name, token, term, at } => self.with(name, *token, |grant| grant.renewed(*term, *at)),
            LockEvent::EndAttempt { name, token, by, at } => {
                self.with(name, *token, |grant| grant.end_attempts.push((*by, *at)));
            }
            LockEvent::EndFailed { name, token, by, at } => self.with(name, *token, |grant| {
                let mut cancelled = grant.start_times.last().map_or_else(Vec::new, |(_, cancelled)| cancelled.clone());
                cancelled.push(*by);
                grant.start_times.push((*at, cancelled));
            }),
            LockEvent::Resumed { name, token } => self.with(name, *token, |grant| grant.resumed = true),
            LockEvent::Released { name, token, by, at } => self.with(name, *token, |grant| {
                // The release proves a durable end only if the grant was still held. If another
                // client had ended it before, the lease row may still exist.
                grant.is_over |= grant.is_held_at(*at, *by);
            }),
            LockEvent::EndedDurably { name, token } => self.with(name, *token, |grant| grant.is_over = true),
            LockEvent::NotHeld { name, token, by, at } => self.not_held.push((name.clone(), *token, *by, *at)),
            LockEvent::Commit(commit) => {
                _ = self.commits.insert(commit.number, ((**commit).clone(), CommitEnd::Undecided));
            }
            LockEvent::Committed { number, ts } => self.ended(*number, Some(*ts)),
            LockEvent::NotCommitted { number } => self.ended(*number, None),
            LockEvent::Read(read) => self.reads.push(read.clone()),
        }
    }

    fn with(&mut self, name: &str, token: u64, change: impl FnOnce(&mut Grant)) {
        if let Some(grant) = self.grants.get_mut(&(name.to_owned(), token)) {
            change(grant);
        }
    }

    fn ended(&mut self, number: u64, ts: Option<u64>) {
        if let Some((_, end)) = self.commits.get_mut(&number) {
            *end = ts.map_or(CommitEnd::NotCommitted, CommitEnd::At);
        }
    }

    fn granted(&mut self, request: u64, token: u64, (id, at, term): (Option<u64>, LogicalTime, Option<LeaseTerm>)) {
        let Some((name, mode, no_wait, requested_at)) = self.requests.get(&request).cloned() else { return };
        let mut grant = Grant {
            mode,
            requested_at: Some(requested_at),
            id,
            no_wait,
            start_times: vec![(at, Vec::new())],
            end_attempts: Vec::new(),
            is_over: false,
            resumed: false,
            term: None,
            lease_ends: BTreeMap::new(),
            at_most: None,
        };
        if let Some(term) = term {
            grant.extend(term);
        }
        // The history has one grant for each token, so a second one must be found here.
        if let Some(other) = self.grants.get(&(name.clone(), token)).filter(|other| conflict(other.mode, mode)) {
            let details = format!("two grants with one token: {other:?} and {grant:?}");
            self.violations.push(Violation::new("lock: token order", details));
        }
        self.grants.insert((name, token), grant);
    }

    /// Continues the leases that were held when the last incarnation ended. Each is held for the
    /// rest of its time to live, which is computed from the wall clock.
    fn opened(&mut self, before: LogicalTime, after: LogicalTime, wall: (u64, u64)) {
        let store_gone = self.store_gone.take();
        for grant in self.grants.values_mut() {
            grant.at_most = None;
            let (Some(term), Some(store_gone)) = (grant.term, store_gone) else { continue };
            let left = |since: u64, now: u64| {
                let left = (since + term.time_ms).saturating_sub(now).min(term.time_ms);
                Duration::from_millis(left)
            };
            if !term.renews && !grant.resumed {
                // Clocks are read in whole milliseconds, so the upper bound is rounded up.
                let most = left(term.wall.1 + 1, wall.0) + Duration::from_millis(1);
                grant.at_most = Some(after.after(most));
            }
            let cancelled = grant.start_times.last().map_or(&[][..], |(_, cancelled)| cancelled);
            let ended = grant.end_attempts.iter().any(|(by, _)| !cancelled.contains(by));
            let lasted = grant.lease_ends.get(&store_gone.incarnation).is_some_and(|until| *until > store_gone);
            if !ended && !grant.is_over && lasted {
                let until = before.after(left(term.wall.0, wall.1));
                grant.lease_ends.insert(after.incarnation, until);
                let cancelled = cancelled.to_vec();
                grant.start_times.push((after, cancelled));
            }
        }
    }

    fn history(mut self) -> LockHistory {
        let violations = std::mem::take(&mut self.violations);
        let mut history = LockHistory { requests: self.requests.len() as u64, violations, ..LockHistory::default() };
        for (name, token, by, at) in &self.not_held {
            let grant = self.grants.get(&(name.clone(), *token));
            if let Some(grant) = grant.filter(|grant| grant.is_held_at(*at, *by)) {
                let details = format!("lock {name:?} was lost at {at:?}, and no client had ended the grant: {grant:?}");
                history.violations.push(Violation::new("lock: ownership", details));
            }
        }
        for ((name, token), grant) in &self.grants {
            history.grants.extend(intervals(name, *token, grant));
            if grant.term.is_some() {
                let held = grant.start_times.iter().map(|(from, cancelled)| grant.until(*from, cancelled));
                history.leases.push(LeaseRecord {
                    name: name.clone(),
                    token: *token,
                    ended: grant.is_over,
                    at_least: held.max(),
                    at_most: grant.at_most,
                });
            }
        }
        self.commits_of(&mut history);
        history
    }

    fn commits_of(self, history: &mut LockHistory) {
        let lost: BTreeSet<u64> = self
            .commits
            .iter()
            .filter(|(_, (_, end))| *end == CommitEnd::NotCommitted)
            .map(|(number, _)| *number)
            .collect();
        for read in &self.reads {
            let mode = |token| Some(self.grants.get(&(read.name.clone(), token))?.mode);
            let excludes = |commit: &LockCommit| {
                let modes = mode(commit.token).zip(mode(read.token));
                commit.token < read.token && modes.is_none_or(|(earlier, later)| conflict(earlier, later))
            };
            let seen = self.commits.get(&read.seen).filter(|(commit, _)| commit.durable && excludes(commit));
            if seen.is_some() && lost.contains(&read.seen) {
                let details = format!("a power cut has taken back a commit that a holder has read: {read:?}");
                history.violations.push(Violation::new("lock: visibility", details));
            }
            history.reads.push(FencedOp {
                number: 0,
                name: read.name.clone(),
                token: read.token,
                read_ts: read.read_ts,
                commit_ts: None,
            });
        }
        for (commit, end) in self.commits.into_values() {
            let ts = match end {
                CommitEnd::Undecided => {
                    history.undecided.push(commit);
                    continue;
                }
                CommitEnd::NotCommitted => continue,
                CommitEnd::At(ts) => ts,
            };
            let LockCommit { number, name, token, fenced, read_ts, .. } = commit;
            let op = FencedOp { number, name, token, read_ts, commit_ts: Some(ts) };
            if fenced { &mut history.fenced } else { &mut history.unfenced }.push(op);
        }
    }
}

fn intervals<'a>(name: &'a str, token: u64, grant: &'a Grant) -> impl Iterator<Item = GrantInterval> + 'a {
    grant.start_times.iter().enumerate().map(move |(nth, (from, cancelled))| GrantInterval {
        name: name.into(),
        mode: grant.mode,
        token,
        requested_at: grant.requested_at.filter(|_| nth == 0),
        from: *from,
        until: grant.until(*from, cancelled),
        id: grant.id.filter(|_| nth == 0),
        no_wait: grant.no_wait,
    })
}
