//! Several runs put together: counts add up, failures pile up.
//!
//! Nothing that one run found is forgotten because another did not find it: failures and gaps are kept, and a mutant is
//! found if any run found it. Only "skipped" gives way, to a run that did what the other could not.

use crate::evidence::{Evidence, MutantResult};
use crate::outcome::Outcome;

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
        for outcome in part.layers {
            match whole.layers.iter_mut().find(|known| known.layer == outcome.layer) {
                Some(known) => add_outcome(known, outcome),
                None => whole.layers.push(outcome),
            }
        }
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

fn add_outcome(known: &mut Outcome, other: Outcome) {
    if other.skipped.is_none() {
        known.skipped = None;
    }
    known.add(other);
}

/// The first one that found it is the one that is shown; while none has, the time in vain adds up.
fn add_mutant(known: &mut MutantResult, other: MutantResult) {
    for (layer, found, of) in other.found {
        match known.found.iter_mut().find(|(name, ..)| *name == layer) {
            Some((_, all_found, all_of)) => {
                *all_found += found;
                *all_of += of;
            }
            None => known.found.push((layer, found, of)),
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
