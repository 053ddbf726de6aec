//! Judges a store that was killed, in a bounded time: one that hangs is a broken one.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use percolite::Timestamp;

use super::case::Case;
use crate::client::Habits;
use crate::copies::{Copy, copy_of, is_store, last_timestamp};
use crate::examine::{Examined, Subject, examine};
use crate::ledger::Ledger;
use crate::mutex::note::Note;
use crate::violation::Broken;
use crate::workload::Workload;

/// Judging takes well under a second.
const JUDGE_MAX: Duration = Duration::from_secs(120);
/// Of how many copies a store is judged.
const COPIES_MAX: usize = 3;
/// One value in so many that the judge writes is long.
const LONG_VALUES: usize = 8;

/// Judges the newest copies of the store in `folder`; each comes with the life in which it was begun.
pub fn judge_kept(
    case: Case,
    workload: &'static dyn Workload,
    folder: &Path,
    mut copies: Vec<(u32, Copy)>,
    lives: u32,
) -> Vec<Broken> {
    let mut broken = Vec::new();
    for (life, copy) in copies.split_off(copies.len().saturating_sub(COPIES_MAX)) {
        let place = copy_of(folder, copy.number);
        match is_store(&place, &copy) {
            Err(why) => broken.push(why),
            Ok(false) => {}
            Ok(true) => {
                let mut ledger = copy.ledger;
                // The copy may end anywhere behind what had been told.
                let newest = ledger.told().into_values().max().unwrap_or_default();
                ledger.lose(life, Timestamp::from_u64(newest));
                // What the store has handed out since, the copy hands out once more.
                match last_timestamp(&place) {
                    Ok(last) => ledger.forget_above(last),
                    Err(why) => broken.push(Broken::new("opens again", format!("copy {}: {why}", copy.number))),
                }
                let found = judge(place, case, workload, (ledger, Vec::new()), lives).broken;
                let of_copy = |one: Broken| Broken { how: format!("copy {}: {}", copy.number, one.how), ..one };
                broken.extend(found.into_iter().map(of_copy));
            }
        }
    }
    broken
}

/// Judges the store in `folder`, which has had so many lives.
pub fn judge(
    folder: PathBuf,
    case: Case,
    workload: &'static dyn Workload,
    (ledger, notes): (Ledger, Vec<Note>),
    lives: u32,
) -> Examined {
    let (tell, told) = channel();
    let as_it_was = ledger.clone();
    std::thread::spawn(move || {
        let habits =
            Habits { protocol: case.protocol.into(), durability: case.durability.into(), long_values: LONG_VALUES };
        // A kill takes nothing back.
        let told = ledger.told();
        let subject = Subject {
            folder: &folder,
            workload,
            habits,
            life: lives,
            told: &told,
            notes: &notes,
            again: true,
            accepts: None,
        };
        let mut examined = examine(&subject, ledger);
        if let Some(why) = &examined.refused {
            examined.broken.push(Broken::new("opens again", why.to_string()));
        }
        let _ = tell.send(examined);
    });
    told.recv_timeout(JUDGE_MAX).unwrap_or_else(|why| {
        let broken = vec![Broken::new("I12 progress", format!("judging came to no end within {JUDGE_MAX:?}: {why}"))];
        Examined { broken, ledger: as_it_was, ..Examined::default() }
    })
}
