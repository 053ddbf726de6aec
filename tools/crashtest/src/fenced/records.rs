//! From notes to what the checker judges.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percolite::LockMode;

use super::{Held, Under, conflict};
use crate::mutex::note::{Commit, Look, Moment, Note, Term};
use crate::violation::Broken;

/// See [`fold`].
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Times in which grants were held.
    pub held: Vec<Held>,
    /// Commits that were fenced.
    pub fenced: Vec<Under>,
    /// Those that were not, and should have been.
    pub unfenced: Vec<Under>,
    /// Looks of holders.
    pub looks: Vec<Under>,
    /// Leases of which something is known.
    pub leases: Vec<Lease>,
    /// Commits whose end is open.
    pub open: Vec<Commit>,
    /// How many requests there were.
    pub asked: u64,
    /// What is wrong already.
    pub broken: Vec<Broken>,
}

/// A lease, as of the last life that was opened.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The lock.
    pub name: String,
    /// The grant.
    pub token: u64,
    /// It was said to be over, durably.
    pub over: bool,
    /// It is held at least until then.
    pub at_least: Option<Moment>,
    /// And no longer than that, if that is sure.
    pub at_most: Option<Moment>,
}

/// A grant while notes are gone through.
#[derive(Debug)]
struct Grant {
    mode: LockMode,
    asked: Option<Moment>,
    id: Option<u64>,
    at_once: bool,
    /// Since when it is held, without those that end it: once, and again after each conversion that failed, and in each later life.
    begun: Vec<(Moment, Vec<u64>)>,
    endings: Vec<(u64, Moment)>,
    over: bool,
    resumed: bool,
    /// The last that was answered, and until when the lease lasts at least in each life.
    term: Option<Term>,
    lasts: BTreeMap<u32, Moment>,
    at_most: Option<Moment>,
}

impl Grant {
    fn until(&self, from: Moment, without: &[u64]) -> Moment {
        let ends = self.endings.iter().filter(|(by, _)| !without.contains(by)).map(|(_, at)| *at);
        // Without a lease it ends with its life.
        let end_of_life = Moment { life: from.life, time: u64::MAX, tick: u64::MAX };
        let last = if self.term.is_some() { self.lasts.get(&from.life).copied() } else { None };
        ends.chain(last).min().unwrap_or(end_of_life).min(end_of_life)
    }

    fn is_held_at(&self, at: Moment, by: u64) -> bool {
        self.begun.iter().any(|(from, without)| {
            let without: Vec<u64> = without.iter().copied().chain([by]).collect();
            *from <= at && at < self.until(*from, &without)
        })
    }

    fn extend(&mut self, term: Term) {
        let lasts = self.lasts.entry(term.from.life).or_default();
        *lasts = term.ends().max(*lasts);
        self.term = Some(term);
    }
}

type Grants = BTreeMap<(String, u64), Grant>;

/// What became of a commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Missing,
    At(u64),
}

#[derive(Default)]
struct Folding {
    requests: BTreeMap<u64, (String, LockMode, bool, Moment)>,
    grants: Grants,
    commits: BTreeMap<u64, (Commit, End)>,
    looks: Vec<Look>,
    missing: Vec<(String, u64, u64, Moment)>,
    gone: Option<Moment>,
}

/// What the notes of all lives say.
pub fn fold<'a>(notes: impl IntoIterator<Item = &'a Note>) -> Records {
    let mut folding = Folding::default();
    for note in notes {
        folding.add(note);
    }
    folding.records()
}

impl Folding {
    fn add(&mut self, note: &Note) {
        match note {
            Note::Opened(before, after, wall) => self.opened(*before, *after, *wall),
            Note::Gone(at) => self.gone = Some(*at),
            Note::Asked { request, name, mode, at_once, at } => {
                self.requests.insert(*request, (name.clone(), *mode, *at_once, *at));
            }
            Note::Returned { request, token, id, at, term } => self.returned(*request, *token, (*id, *at, *term)),
            Note::Renewed { name, token, term } => self.with(name, *token, |grant| grant.extend(*term)),
            Note::Ending { name, token, by, at } => self.with(name, *token, |grant| grant.endings.push((*by, *at))),
            Note::Kept { name, token, by, at } => self.with(name, *token, |grant| {
                let mut without = grant.begun.last().map_or_else(Vec::new, |(_, without)| without.clone());
                without.push(*by);
                grant.begun.push((*at, without));
            }),
            Note::Resumed { name, token } => self.with(name, *token, |grant| grant.resumed = true),
            Note::Released { name, token, by, at } => self.with(name, *token, |grant| {
                // Otherwise another locker has ended it, and may not have removed its row yet.
                grant.over |= grant.is_held_at(*at, *by);
            }),
            Note::Over { name, token } => self.with(name, *token, |grant| grant.over = true),
            Note::NotThere { name, token, by, at } => self.missing.push((name.clone(), *token, *by, *at)),
            Note::Commit(commit) => _ = self.commits.insert(commit.number, ((**commit).clone(), End::Open)),
            Note::Committed { number, ts } => self.ended(*number, Some(*ts)),
            Note::NotCommitted { number } => self.ended(*number, None),
            Note::Look(look) => self.looks.push(look.clone()),
        }
    }

    fn with(&mut self, name: &str, token: u64, change: impl FnOnce(&mut Grant)) {
        if let Some(grant) = self.grants.get_mut(&(name.to_owned(), token)) {
            change(grant);
        }
    }

    fn ended(&mut self, number: u64, ts: Option<u64>) {
        if let Some((_, end)) = self.commits.get_mut(&number) {
            *end = ts.map_or(End::Missing, End::At);
        }
    }

    fn returned(&mut self, request: u64, token: u64, (id, at, term): (Option<u64>, Moment, Option<Term>)) {
        let Some((name, mode, at_once, asked)) = self.requests.get(&request).cloned() else { return };
        let mut grant = Grant {
            mode,
            asked: Some(asked),
            id,
            at_once,
            begun: vec![(at, Vec::new())],
            endings: Vec::new(),
            over: false,
            resumed: false,
            term: None,
            lasts: BTreeMap::new(),
            at_most: None,
        };
        if let Some(term) = term {
            grant.extend(term);
        }
        self.grants.insert((name, token), grant);
    }

    /// Leases that were not over when the last life ended go on, for as long as the wall clock leaves them.
    fn opened(&mut self, before: Moment, after: Moment, wall: (u64, u64)) {
        let gone = self.gone.take();
        for grant in self.grants.values_mut() {
            grant.at_most = None;
            let (Some(term), Some(gone)) = (grant.term, gone) else { continue };
            let left = |since: u64, now: u64| {
                let left = (since + term.time_ms).saturating_sub(now).min(term.time_ms);
                Duration::from_millis(left)
            };
            if !term.renews && !grant.resumed {
                // Clocks of whole milliseconds.
                let most = left(term.wall.1 + 1, wall.0) + Duration::from_millis(1);
                grant.at_most = Some(after.after(most));
            }
            let cancelled = grant.begun.last().map_or(&[][..], |(_, without)| without);
            let ended = grant.endings.iter().any(|(by, _)| !cancelled.contains(by));
            let lasted = grant.lasts.get(&gone.life).is_some_and(|until| *until > gone);
            if !ended && !grant.over && lasted {
                let until = before.after(left(term.wall.0, wall.1));
                grant.lasts.insert(after.life, until);
                let cancelled = cancelled.to_vec();
                grant.begun.push((after, cancelled));
            }
        }
    }

    fn records(self) -> Records {
        let mut records = Records { asked: self.requests.len() as u64, ..Records::default() };
        for (name, token, by, at) in &self.missing {
            let grant = self.grants.get(&(name.clone(), *token));
            if let Some(grant) = grant.filter(|grant| grant.is_held_at(*at, *by)) {
                let how = format!("lock {name:?} was lost at {at:?}, and no locker had ended it: {grant:?}");
                records.broken.push(Broken::new("I5 none ends another's grant", how));
            }
        }
        for ((name, token), grant) in &self.grants {
            records.held.extend(held_of(name, *token, grant));
            if grant.term.is_some() {
                let held = grant.begun.iter().map(|(from, without)| grant.until(*from, without));
                records.leases.push(Lease {
                    name: name.clone(),
                    token: *token,
                    over: grant.over,
                    at_least: held.max(),
                    at_most: grant.at_most,
                });
            }
        }
        self.commits_of(&mut records);
        records
    }

    fn commits_of(self, records: &mut Records) {
        let lost: BTreeSet<u64> =
            self.commits.iter().filter(|(_, (_, end))| *end == End::Missing).map(|(number, _)| *number).collect();
        for look in &self.looks {
            let mode = |token| Some(self.grants.get(&(look.name.clone(), token))?.mode);
            let excludes = |commit: &Commit| {
                let modes = mode(commit.token).zip(mode(look.token));
                commit.token < look.token && modes.is_none_or(|(earlier, later)| conflict(earlier, later))
            };
            let seen = self.commits.get(&look.saw).filter(|(commit, _)| commit.durable && excludes(commit));
            if seen.is_some() && lost.contains(&look.saw) {
                let how = format!("a power cut has taken back what a holder has seen: {look:?}");
                records.broken.push(Broken::new("I4 sees earlier holders", how));
            }
            records.looks.push(Under {
                number: 0,
                name: look.name.clone(),
                token: look.token,
                read_ts: look.read_ts,
                commit_ts: None,
                durable: look.durable,
            });
        }
        for (commit, end) in self.commits.into_values() {
            let ts = match end {
                End::Open => {
                    records.open.push(commit);
                    continue;
                }
                End::Missing => continue,
                End::At(ts) => ts,
            };
            let Commit { number, name, token, fenced, read_ts, durable, .. } = commit;
            let under = Under { number, name, token, read_ts, commit_ts: Some(ts), durable };
            if fenced { &mut records.fenced } else { &mut records.unfenced }.push(under);
        }
    }
}

fn held_of<'a>(name: &'a str, token: u64, grant: &'a Grant) -> impl Iterator<Item = Held> + 'a {
    grant.begun.iter().enumerate().map(move |(nth, (from, without))| Held {
        name: name.into(),
        mode: grant.mode,
        token,
        asked: grant.asked.filter(|_| nth == 0),
        from: *from,
        until: grant.until(*from, without),
        id: grant.id.filter(|_| nth == 0),
        at_once: grant.at_once,
    })
}
