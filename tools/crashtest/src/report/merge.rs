//! Several runs put together: counts add up, failures pile up.
//!
//! Nothing that one run found is forgotten because another did not find it: failures and gaps are kept, and a mutant is
//! found if any run found it. Only "skipped" gives way, to a run that did what the other could not.

use indexmap::IndexMap;

use crate::evidence::{Evidence, MutantResult, Tried};

/// Each run once, however often and under whatever name it is given, and how many are thus left out.
pub fn once(parts: Vec<Evidence>) -> anyhow::Result<(Vec<Evidence>, usize)> {
    let all = parts.len();
    let mut known = IndexMap::new();
    for part in parts {
        known.entry(serde_json::to_string(&part)?).or_insert(part);
    }
    let once: Vec<Evidence> = known.into_values().collect();
    let again = all - once.len();
    Ok((once, again))
}

/// The sum of several runs, in the order in which they are given.
pub fn merge(parts: Vec<Evidence>) -> Evidence {
    let mut whole = Evidence::default();
    for part in parts {
        join(&mut whole.version, &part.version, ", ");
        join(&mut whole.command, &part.command, "; ");
        if whole.began.is_empty() || part.began < whole.began {
            whole.began = part.began;
        }
        whole.seconds += part.seconds;
        whole.interrupted |= part.interrupted;
        part.layers.into_iter().for_each(|outcome| whole.add(outcome));
        for mutant in part.mutants {
            match whole.mutants.iter_mut().find(|known| known.mutant == mutant.mutant) {
                Some(known) => add_mutant(known, mutant),
                None => whole.mutants.push(mutant),
            }
        }
        for gap in part.gaps {
            if !whole.gaps.contains(&gap) {
                whole.gaps.push(gap);
            }
        }
    }
    whole
}

fn join(all: &mut String, one: &str, between: &str) {
    if all.is_empty() {
        one.clone_into(all);
    } else if all.split(between).all(|known| known != one) {
        *all = format!("{all}{between}{one}");
    }
}

fn add_tried(known: &mut Tried, other: Tried) {
    known.found += other.found;
    known.cases += other.cases;
    if known.replay.is_none() {
        known.seconds += other.seconds;
        known.replay = other.replay;
    }
}

/// The first one that found it is the one that is shown; while none has, the time in vain adds up.
fn add_mutant(known: &mut MutantResult, other: MutantResult) {
    for tried in other.tried {
        match known.tried.iter_mut().find(|one| one.layer == tried.layer) {
            Some(one) => add_tried(one, tried),
            None => known.tried.push(tried),
        }
    }
    if known.layer.is_some() {
        return;
    }
    known.seconds += other.seconds;
    known.layer = other.layer;
    known.promise = other.promise;
    known.replay = other.replay;
}
