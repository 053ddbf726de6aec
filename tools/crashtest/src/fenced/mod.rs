//! Whether locks by name kept their promises: which grants were held when, and what was committed and seen under them.
//!
//! That two hold what excludes each other is judged by intervals in which a grant is sure to have been held (I1). Everything else is
//! judged by timestamps alone, sorted and passed over once: tokens grow (I2); what is fenced by a token is committed between it and
//! the next one that excludes it (I3), and sees everything that was fenced by those before (I4). That no request
//! passes one that waits is judged by the numbers of requests and by tokens.

mod records;

use std::collections::{BTreeMap, BTreeSet};

use percolite::LockMode;

use crate::mutex::note::Moment;
use crate::violation::Broken;

pub use records::{Lease, Records, fold};

/// A time in which a grant is sure to have been held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The lock.
    pub name: String,
    /// How.
    pub mode: LockMode,
    /// The grant's number.
    pub token: u64,
    /// Before it was asked for; nothing where it was held in an earlier life.
    pub asked: Option<Moment>,
    /// In hand.
    pub from: Moment,
    /// When it ends, or is about to be ended.
    pub until: Moment,
    /// The request's number in its life, unless the grant took another's place.
    pub id: Option<u64>,
    /// Whether it was not waited for.
    pub at_once: bool,
}

/// What was committed or seen under a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Under {
    /// Its number, for the message.
    pub number: u64,
    /// The lock.
    pub name: String,
    /// The grant.
    pub token: u64,
    /// What it sees.
    pub read_ts: u64,
    /// Its commit, if it is one.
    pub commit_ts: Option<u64>,
    /// A commit: whether it was to be durable. A look: whether it was only of what is durable.
    pub durable: bool,
}

/// Of two of these grants each excludes the other.
pub fn conflict(one: LockMode, other: LockMode) -> bool {
    class(one) != class(other) || one == LockMode::Exclusive
}

const CLASSES: usize = 3;

fn class(mode: LockMode) -> usize {
    match mode {
        LockMode::Exclusive => 0,
        LockMode::Shared => 1,
        _ => 2,
    }
}

/// Of each class the greatest so far; the answer is the greatest of those that exclude a mode.
fn greatest<T: Copy + Ord + Default>(by_class: &[T; CLASSES], mode: LockMode) -> T {
    let excludes = |at: &usize| *at != class(mode) || mode == LockMode::Exclusive;
    (0..CLASSES).filter(excludes).map(|at| by_class[at]).max().unwrap_or_default()
}

/// What is wrong with these.
pub fn check(records: &Records) -> Vec<Broken> {
    let mut broken = Vec::new();
    for held in by_name(&records.held, |held| &held.name).values() {
        overlaps(held, &mut broken);
        tokens_grow(held, &mut broken);
        nobody_passes(held, &mut broken);
    }
    let fenced = out_of_turn(&records.held, &records.fenced, &records.looks);
    broken.extend(fenced.into_iter().map(|(_, broken)| broken));
    broken.extend(records.broken.iter().cloned());
    broken
}

fn by_name<T>(all: &[T], name: impl Fn(&T) -> &String) -> BTreeMap<String, Vec<&T>> {
    let mut found: BTreeMap<String, Vec<&T>> = BTreeMap::new();
    for one in all {
        found.entry(name(one).clone()).or_default().push(one);
    }
    found
}

/// I1: in the order in which they begin, each is held against those that last longest, and semaphores are counted.
fn overlaps(held: &[&Held], broken: &mut Vec<Broken>) {
    let mut held: Vec<&Held> = held.iter().copied().filter(|held| held.from < held.until).collect();
    held.sort_by_key(|held| held.from);
    // The one that lasts longest, and one of another grant, because a grant may be held twice.
    let mut longest: [[Option<&Held>; 2]; CLASSES] = Default::default();
    let mut permits: BTreeSet<(Moment, u64)> = BTreeSet::new();
    for this in held {
        let before = (0..CLASSES).filter(|at| *at != class(this.mode) || this.mode == LockMode::Exclusive);
        let before = before.flat_map(|at| longest[at]).flatten();
        if let Some(other) = before.filter(|other| other.token != this.token).max_by_key(|other| other.until)
            && other.until > this.from
        {
            let how = format!("lock {:?} was held by {other:?} and by {this:?}", this.name);
            broken.push(Broken::new("I1 one holder", how));
        }
        if let LockMode::Semaphore(most) = this.mode {
            permits.retain(|(until, token)| *until > this.from && *token != this.token);
            permits.insert((this.until, this.token));
            if permits.len() > most as usize {
                let how = format!("lock {:?} was held {} times: {this:?}", this.name, permits.len());
                broken.push(Broken::new("I1 one holder", how));
            }
        }
        let [first, second] = &mut longest[class(this.mode)];
        if first.is_none_or(|first| first.token == this.token) {
            *first = Some(first.map_or(this, |first| if first.until > this.until { first } else { this }));
        } else if first.is_some_and(|first| first.until < this.until) {
            (*first, *second) = (Some(this), *first);
        } else if second.is_none_or(|second| second.until < this.until) {
            *second = Some(this);
        }
    }
}

/// I2: none is asked for when another is in hand already and gets a smaller token; none has another's.
fn tokens_grow(held: &[&Held], broken: &mut Vec<Broken>) {
    let mut by_return: Vec<&Held> = held.to_vec();
    by_return.sort_by_key(|held| held.from);
    let mut by_asking: Vec<&Held> = held.iter().copied().filter(|held| held.asked.is_some()).collect();
    by_asking.sort_by_key(|held| held.asked);
    let (mut before, mut newest) = (by_return.iter().peekable(), [0; CLASSES]);
    for this in &by_asking {
        while let Some(earlier) = before.next_if(|earlier| Some(earlier.from) < this.asked) {
            let newest = &mut newest[class(earlier.mode)];
            *newest = earlier.token.max(*newest);
        }
        let newest = greatest(&newest, this.mode);
        if newest >= this.token {
            let how = format!("a later grant has a token that is not greater than {newest}: {this:?}");
            broken.push(Broken::new("I2 tokens grow", how));
        }
    }
    let mut seen: BTreeMap<u64, &Held> = BTreeMap::new();
    for this in by_asking {
        if let Some(other) = seen.insert(this.token, this).filter(|other| conflict(other.mode, this.mode)) {
            // What a failed conversion has left is the same grant, noted twice.
            if (other.id, other.asked) != (this.id, this.asked) {
                broken.push(Broken::new("I2 tokens grow", format!("one token twice: {other:?} and {this:?}")));
            }
        }
    }
}

/// A request that does not wait passes none: each that was made before it, and excludes it, has a smaller token.
fn nobody_passes(held: &[&Held], broken: &mut Vec<Broken>) {
    let mut by_id: Vec<(u32, u64, &Held)> =
        held.iter().filter_map(|held| Some((held.from.life, held.id?, *held))).collect();
    by_id.sort_by_key(|(life, id, _)| (*life, *id));
    let (mut of_life, mut newest) = (0, [0; CLASSES]);
    for (life, _, this) in by_id {
        if life != of_life {
            (of_life, newest) = (life, [0; CLASSES]);
        }
        let passed = greatest(&newest, this.mode);
        if this.at_once && passed > this.token {
            let how = format!("it passed the one with token {passed}, which had waited for longer: {this:?}");
            broken.push(Broken::new("first come first served", how));
        }
        let newest = &mut newest[class(this.mode)];
        *newest = this.token.max(*newest);
    }
}

/// I3 and I4: what is not committed between its token and the next one that excludes it, and what does not see everything that was
/// fenced by those before; with its number.
pub fn out_of_turn(held: &[Held], commits: &[Under], looks: &[Under]) -> Vec<(u64, Broken)> {
    let mut found = Vec::new();
    let mut of_name = by_name(commits, |under| &under.name);
    let mut looks_of = by_name(looks, |under| &under.name);
    for (name, held) in by_name(held, |held| &held.name) {
        let mut grants: Vec<(u64, LockMode)> = held.iter().map(|held| (held.token, held.mode)).collect();
        grants.sort_by_key(|(token, mode)| (*token, class(*mode)));
        grants.dedup();
        let mut commits = of_name.remove(&name).unwrap_or_default();
        let mut looks = looks_of.remove(&name).unwrap_or_default();
        commits.sort_by_key(|under| under.token);
        looks.sort_by_key(|under| under.token);
        between_tokens(&grants, &commits, &mut found);
        sees_earlier(&grants, &commits, &looks, &mut found);
    }
    found
}

/// I3, from the last token to the first.
fn between_tokens(grants: &[(u64, LockMode)], commits: &[&Under], found: &mut Vec<(u64, Broken)>) {
    let mut commits = commits.iter().rev().peekable();
    let mut next = [std::cmp::Reverse(u64::MAX); CLASSES];
    for same in grants.chunk_by(|one, other| one.0 == other.0).rev() {
        for (token, mode) in same {
            // The smallest of those that follow is the greatest in reverse.
            let excludes = |at: &usize| *at != class(*mode) || *mode == LockMode::Exclusive;
            let limit = (0..CLASSES).filter(excludes).map(|at| next[at].0).min().unwrap_or(u64::MAX);
            while commits.next_if(|under| under.token > *token).is_some() {}
            while let Some(under) = commits.next_if(|under| under.token == *token) {
                let Some(ts) = under.commit_ts else { continue };
                if ts <= *token || ts >= limit {
                    let how = format!("fenced by {token}, and the next is {limit}: {under:?}");
                    found.push((under.number, Broken::new("I3 fenced", how)));
                }
            }
        }
        for (token, mode) in same {
            next[class(*mode)] = std::cmp::Reverse(*token);
        }
    }
}

/// I4, from the first token to the last. What only shows what is durable need not show what was not to be.
fn sees_earlier(grants: &[(u64, LockMode)], commits: &[&Under], looks: &[&Under], found: &mut Vec<(u64, Broken)>) {
    let (mut commits, mut looks) = (commits.iter().peekable(), looks.iter().peekable());
    let (mut newest, mut newest_durable) = ([0; CLASSES], [0; CLASSES]);
    for same in grants.chunk_by(|one, other| one.0 == other.0) {
        let (mut visible, mut durable) = (newest, newest_durable);
        for (token, mode) in same {
            let mut sees = |under: &Under, is_durable: bool, what: &str| {
                let needed = greatest(if is_durable { &newest_durable } else { &newest }, *mode);
                if under.read_ts < needed {
                    let how = format!("{what} does not see {needed}, fenced by an earlier token: {under:?}");
                    found.push((under.number, Broken::new("I4 sees earlier holders", how)));
                }
            };
            while commits.next_if(|under| under.token < *token).is_some() {}
            while let Some(under) = commits.next_if(|under| under.token == *token) {
                sees(under, false, "a transaction");
                let at = class(*mode);
                visible[at] = under.commit_ts.unwrap_or_default().max(visible[at]);
                if under.durable {
                    durable[at] = under.commit_ts.unwrap_or_default().max(durable[at]);
                }
            }
            while looks.next_if(|under| under.token < *token).is_some() {}
            while let Some(under) = looks.next_if(|under| under.token == *token) {
                sees(under, under.durable, "a look");
            }
        }
        (newest, newest_durable) = (visible, durable);
    }
}
