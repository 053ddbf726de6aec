//! A minimal store with snapshot isolation, whose clients take turns at random and record what they
//! read and how their transactions end.
//!
//! One bug can be switched on. The store shares only the types of the history with the checker.

use std::collections::BTreeMap;

use percolite_crashtest::history::{Line, Op, Outcome, Transaction};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// The load and the properties of the store.
#[derive(Clone, Debug)]
pub struct Shape {
    pub transactions: usize,
    pub sessions: usize,
    pub keys: usize,
    pub ops: usize,
    /// Whether every transaction has exactly `ops` operations; otherwise it has at most `ops`.
    pub fixed: bool,
    /// Whether rows may exist at the start.
    pub initial: bool,
    /// Whether values are lists that only grow, so that each value contains the ones before it.
    pub lists: bool,
    /// Probabilities.
    pub scans: f64,
    pub reads_for_update: f64,
    pub deletions: f64,
    pub writes: f64,
    pub roll_backs: f64,
    pub unknown: f64,
    pub crashes: f64,
    /// Whether the store issues consecutive timestamps, or leaves gaps between them.
    pub dense: bool,
    /// Whether transactions have a `start_ts`.
    pub start_timestamps: bool,
    /// Whether a snapshot gets a timestamp of its own instead of the newest commit's.
    pub fresh: bool,
    /// Whether values repeat.
    pub repeats: bool,
    pub bug: Option<Bug>,
}

impl Shape {
    /// A few contended rows, every kind of operation, and every way in which a transaction ends.
    pub fn busy() -> Self {
        Self {
            transactions: 60,
            sessions: 5,
            keys: 6,
            ops: 5,
            fixed: false,
            initial: true,
            lists: false,
            scans: 0.1,
            reads_for_update: 0.1,
            deletions: 0.2,
            writes: 0.4,
            roll_backs: 0.1,
            unknown: 0.1,
            crashes: 0.02,
            dense: true,
            start_timestamps: true,
            fresh: false,
            repeats: false,
            bug: None,
        }
    }

    /// A random shape.
    pub fn random(rng: &mut StdRng) -> Self {
        let often = |rng: &mut StdRng| if rng.random() { rng.random_range(0.0..0.3) } else { 0.0 };
        Self {
            transactions: rng.random_range(2..80),
            sessions: rng.random_range(1..8),
            keys: rng.random_range(1..10),
            ops: rng.random_range(1..8),
            fixed: false,
            initial: true,
            lists: false,
            scans: often(rng),
            reads_for_update: often(rng),
            deletions: often(rng),
            writes: rng.random_range(0.1..0.9),
            roll_backs: often(rng),
            unknown: often(rng),
            crashes: often(rng) / 10.0,
            dense: rng.random(),
            start_timestamps: rng.random(),
            fresh: rng.random(),
            repeats: false,
            bug: None,
        }
    }
}

/// A bug of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Conflicts are not checked.
    NoConflictCheck,
    /// A read for update conflicts with no commit.
    IgnoresReadForUpdate,
    /// Reads return the newest value.
    ReadsLatest,
    /// Reads return uncommitted writes of other transactions.
    ReadsUncommitted,
    /// Some reads return the version before the right one.
    ReadsStale,
    /// Reads do not return the transaction's own writes.
    OwnWritesHidden,
    /// Some commits omit a write.
    LosesWrites,
    /// Some commits are acknowledged and dropped.
    LosesCommits,
    /// Some snapshots are too old.
    OldSnapshots,
    /// Scans omit some rows.
    ScansMiss,
    /// Scans return deleted rows.
    ScansShowDeleted,
    /// Some rollbacks commit.
    RollBackCommits,
    /// Some timestamps are issued twice.
    ReusesTimestamps,
}

impl Bug {
    pub const ALL: [Self; 13] = [
        Self::NoConflictCheck,
        Self::IgnoresReadForUpdate,
        Self::ReadsLatest,
        Self::ReadsUncommitted,
        Self::ReadsStale,
        Self::OwnWritesHidden,
        Self::LosesWrites,
        Self::LosesCommits,
        Self::OldSnapshots,
        Self::ScansMiss,
        Self::ScansShowDeleted,
        Self::RollBackCommits,
        Self::ReusesTimestamps,
    ];
}

#[derive(Clone, Default)]
struct Row {
    versions: Vec<(u64, Option<String>)>,
    last_commit: u64,
    uncommitted: Option<Option<String>>,
}

struct Running {
    txn: Transaction,
    planned: usize,
    own: BTreeMap<usize, Option<String>>,
    locked: Vec<usize>,
}

/// A commit in progress whose client has disconnected.
struct AbandonedCommit {
    read_ts: u64,
    own: BTreeMap<usize, Option<String>>,
    locked: Vec<usize>,
}

struct ReferenceStore {
    shape: Shape,
    rng: StdRng,
    rows: Vec<Row>,
    clock: u64,
    newest: u64,
    instant: u64,
    values: u64,
    abandoned: Vec<AbandonedCommit>,
    lines: Vec<Line>,
}

/// The history of a store of this shape. The same seed and shape give the same history.
pub fn history(seed: u64, shape: &Shape) -> Vec<Line> {
    let mut store = ReferenceStore {
        rng: StdRng::seed_from_u64(seed),
        rows: vec![Row::default(); shape.keys],
        clock: 0,
        newest: 0,
        instant: 0,
        values: 0,
        abandoned: Vec::new(),
        lines: Vec::new(),
        shape: shape.clone(),
    };
    store.run();
    store.lines
}

pub fn key(number: usize) -> String {
    format!("k{number:06}")
}

impl ReferenceStore {
    fn run(&mut self) {
        if self.shape.initial && self.rng.random() {
            let present: Vec<usize> = (0..self.shape.keys).filter(|_| self.rng.random()).collect();
            let mut rows = Vec::new();
            for number in present {
                let value = self.value();
                self.rows[number].versions.push((0, Some(value.clone())));
                rows.push((key(number), value));
            }
            self.lines.push(Line::Initial(rows));
        }
        let mut running: Vec<Option<Running>> = (0..self.shape.sessions).map(|_| None).collect();
        let mut started = 0;
        while started < self.shape.transactions || running.iter().any(Option::is_some) {
            self.instant += 1;
            self.finish_abandoned();
            if self.roll(self.shape.crashes) {
                for session in &mut running {
                    if let Some(running) = session.take() {
                        self.lose_client(running);
                    }
                }
                self.abandoned.clear();
                self.lines.push(Line::Crash);
            }
            let session = self.rng.random_range(0..self.shape.sessions);
            match running[session].take() {
                None if started < self.shape.transactions => {
                    started += 1;
                    running[session] = Some(self.begin(session));
                }
                None => {}
                Some(mut txn) if txn.txn.ops.len() < txn.planned => {
                    self.step(&mut txn);
                    running[session] = Some(txn);
                }
                Some(txn) => self.end(txn),
            }
        }
    }

    fn roll(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    fn has_bug(&mut self, bug: Bug, probability: f64) -> bool {
        self.shape.bug == Some(bug) && self.roll(probability)
    }

    fn value(&mut self) -> String {
        self.values += 1;
        if self.shape.repeats { (self.values % 3).to_string() } else { self.values.to_string() }
    }

    fn tick(&mut self) -> u64 {
        self.clock += if self.shape.dense { 1 } else { self.rng.random_range(1..5) };
        self.clock
    }

    fn begin(&mut self, session: usize) -> Running {
        let mut read_ts = if self.shape.fresh { self.tick() } else { self.newest };
        if self.has_bug(Bug::OldSnapshots, 0.1) {
            read_ts = read_ts.saturating_sub(self.rng.random_range(1..10));
        }
        let start_ts = self.shape.start_timestamps.then(|| self.tick());
        let txn = Transaction {
            id: None,
            session: session as u64,
            start_ts,
            read_ts,
            commit_ts: None,
            outcome: Outcome::Aborted,
            began: Some(self.instant),
            ended: None,
            ops: Vec::new(),
        };
        let ops_min = if self.shape.fixed { self.shape.ops } else { 1 };
        let planned = self.rng.random_range(ops_min..=self.shape.ops);
        Running { txn, planned, own: BTreeMap::new(), locked: Vec::new() }
    }

    fn read(&mut self, running: &Running, number: usize) -> Option<String> {
        if let Some(own) = running.own.get(&number)
            && self.shape.bug != Some(Bug::OwnWritesHidden)
        {
            return own.clone();
        }
        if self.shape.bug == Some(Bug::ReadsUncommitted)
            && let Some(value) = &self.rows[number].uncommitted
        {
            return value.clone();
        }
        let latest = self.shape.bug == Some(Bug::ReadsLatest);
        let stale = self.has_bug(Bug::ReadsStale, 0.1);
        let read_ts = if latest { u64::MAX } else { running.txn.read_ts };
        let mut versions = self.rows[number].versions.iter().rev().skip_while(|(ts, _)| *ts > read_ts);
        if stale {
            versions.next();
        }
        versions.next().and_then(|(_, value)| value.clone())
    }

    fn step(&mut self, running: &mut Running) {
        let number = self.rng.random_range(0..self.shape.keys);
        if self.roll(self.shape.scans) {
            let other = self.rng.random_range(0..=self.shape.keys);
            let (from, end) = (number.min(other), if other == number { self.shape.keys } else { number.max(other) });
            let mut rows = Vec::new();
            for number in from..end {
                let shown = self.read(running, number);
                let missed = self.has_bug(Bug::ScansMiss, 0.1);
                if let Some(value) = shown {
                    if !missed {
                        rows.push((key(number), value));
                    }
                } else if self.shape.bug == Some(Bug::ScansShowDeleted)
                    && let Some((_, Some(value))) = self.rows[number].versions.iter().rev().nth(1)
                {
                    rows.push((key(number), value.clone()));
                }
            }
            let to = (end < self.shape.keys || self.rng.random()).then(|| key(end));
            running.txn.ops.push(Op::Scan { from: key(from), to, rows });
            return;
        }
        if self.roll(self.shape.writes) {
            let mut value = (!self.roll(self.shape.deletions)).then(|| self.value());
            if self.shape.lists {
                // An append reads the list first.
                let old = self.read(running, number);
                running.txn.ops.push(Op::Read(key(number), old.clone()));
                value = value.map(|value| old.map_or(value.clone(), |old| format!("{old},{value}")));
            }
            running.txn.ops.push(Op::Write(key(number), value.clone()));
            self.rows[number].uncommitted = Some(value.clone());
            running.own.insert(number, value);
            running.locked.push(number);
            return;
        }
        let value = self.read(running, number);
        let op = if self.roll(self.shape.reads_for_update) {
            running.locked.push(number);
            Op::ReadForUpdate(key(number), value)
        } else {
            Op::Read(key(number), value)
        };
        running.txn.ops.push(op);
    }

    fn conflicts(&self, read_ts: u64, locked: &[usize]) -> bool {
        self.shape.bug != Some(Bug::NoConflictCheck)
            && locked.iter().any(|number| self.rows[*number].last_commit > read_ts)
    }

    fn apply(&mut self, own: &BTreeMap<usize, Option<String>>, locked: &[usize]) -> u64 {
        let commit_ts = if self.has_bug(Bug::ReusesTimestamps, 0.05) { self.clock.max(1) } else { self.tick() };
        for number in locked {
            if self.shape.bug != Some(Bug::IgnoresReadForUpdate) || own.contains_key(number) {
                self.rows[*number].last_commit = commit_ts;
            }
        }
        if !self.has_bug(Bug::LosesCommits, 0.1) {
            for (number, value) in own {
                if !self.has_bug(Bug::LosesWrites, 0.1) {
                    self.rows[*number].versions.push((commit_ts, value.clone()));
                }
            }
        }
        self.newest = commit_ts;
        commit_ts
    }

    fn end(&mut self, mut running: Running) {
        if self.roll(self.shape.unknown) {
            self.lose_client(running);
            return;
        }
        for number in &running.locked {
            self.rows[*number].uncommitted = None;
        }
        running.txn.ended = Some(self.instant);
        let rolled_back = self.roll(self.shape.roll_backs);
        if rolled_back && self.has_bug(Bug::RollBackCommits, 0.5) {
            self.apply(&running.own, &running.locked);
        }
        if !rolled_back && !self.conflicts(running.txn.read_ts, &running.locked) {
            running.txn.outcome = Outcome::Committed;
            running.txn.commit_ts = match running.locked[..] {
                [] => self.rng.random::<bool>().then_some(running.txn.read_ts),
                _ => Some(self.apply(&running.own, &running.locked)),
            };
        }
        self.lines.push(Line::Transaction(running.txn));
    }

    /// The client disconnects before it gets an answer. Its commit takes effect now, later or
    /// never, or was not requested yet.
    fn lose_client(&mut self, mut running: Running) {
        for number in &running.locked {
            self.rows[*number].uncommitted = None;
        }
        if running.txn.ops.len() < running.planned {
            self.lines.push(Line::Transaction(running.txn));
            return;
        }
        running.txn.outcome = Outcome::Unknown;
        running.txn.ended = self.rng.random::<bool>().then_some(self.instant);
        let commits = !self.conflicts(running.txn.read_ts, &running.locked) && !running.locked.is_empty();
        match self.rng.random_range(0..4) {
            0 if commits => {
                let commit_ts = self.apply(&running.own, &running.locked);
                running.txn.commit_ts = self.rng.random::<bool>().then_some(commit_ts);
            }
            1 | 2 if commits => {
                let Running { txn: Transaction { read_ts, .. }, own, locked, .. } = &running;
                self.abandoned.push(AbandonedCommit { read_ts: *read_ts, own: own.clone(), locked: locked.clone() });
            }
            _ => {}
        }
        self.lines.push(Line::Transaction(running.txn));
    }

    fn finish_abandoned(&mut self) {
        if self.abandoned.is_empty() || !self.roll(0.1) {
            return;
        }
        let at = self.rng.random_range(0..self.abandoned.len());
        let AbandonedCommit { read_ts, own, locked } = self.abandoned.swap_remove(at);
        if !self.conflicts(read_ts, &locked) {
            self.apply(&own, &locked);
        }
    }
}
