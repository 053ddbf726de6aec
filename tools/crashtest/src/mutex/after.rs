//! What a store that is opened again says of the leases of earlier lives, and what is left when no lock is used any more.

use std::time::Duration;

use percolite::codec::Record as _;
use percolite::engine::storage::{CellReader, Column};
use percolite::engine::{Engine, EngineError, RowRange};
use percolite::keys::keyspace_range;
use percolite::row::{RowKey, WriteRecord};
use percolite::{Error, ErrorKind, Keyspace, KeyspaceId, LockOptions, LockWaitPolicy, Store, Timestamp};

use super::locker::Pen;
use super::note::{Commit, Moment, Note, nanos};
use super::{Counts, LEASE_MAX_MS, NAMES, PERMITS};
use crate::client::committed_at;
use crate::dice::Dice;
use crate::fenced::{Lease, fold};
use crate::keys::stored;
use crate::violation::Broken;

const CATALOG: KeyspaceId = KeyspaceId(0);
const ROWS: &[u8] = b"lock/";
const LEASES: &str = "a lease outlives its process";
const NOTHING: &str = "I8 nothing remains";
/// Longer than any lease, and than what an opening waits for.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is waited for until a lease is over.
const OVER_WITHIN: Duration = Duration::from_millis(1500);

/// Asks for every lease of earlier lives: those that are held must be there, those that were released or are over must not. `notes` is
/// what was noted until the store was opened, that included.
///
/// # Errors
/// Those of the store.
pub fn ask_for_leases(pen: &Pen<'_>, notes: &[Note], dice: &mut Dice) -> Result<Vec<Broken>, Error> {
    let mut broken = Vec::new();
    for lease in fold(notes).leases {
        if !lease.over && dice.one_in(3) {
            // Others have to wait for it.
            continue;
        }
        let most = lease.at_most.map(|most| Duration::from_nanos(most.time.saturating_sub(pen.now().time)));
        if let Some(left) = most.filter(|left| !left.is_zero() && *left < OVER_WITHIN && dice.one_in(2)) {
            pen.world.runtime.sleep(left + Duration::from_millis(1));
        }
        broken.extend(ask_for(pen, &lease, dice)?);
    }
    Ok(broken)
}

fn ask_for(pen: &Pen<'_>, lease: &Lease, dice: &mut Dice) -> Result<Option<Broken>, Error> {
    let Lease { name, token, over, at_least, at_most } = lease;
    let (store, at) = (pen.world.store, Timestamp::from_u64(*token));
    let before = pen.now();
    let told = |how: String| Some(Broken::new(LEASES, format!("lock {name:?} with token {at}: {how}")));
    match store.attach_lock(name, at) {
        Ok(guard) => {
            pen.note(Note::Resumed { name: name.clone(), token: *token });
            let is_over = at_most.is_some_and(|most| most < before);
            let token_is = guard.token();
            if dice.one_in(2)
                && let Ok(kept) = guard.detach()
            {
                pen.world.common.keep(name, kept);
            } else {
                pen.ending(name, *token);
            }
            Ok(match (*over, is_over) {
                _ if token_is != at => told(format!("it goes on as {token_is}")),
                (true, _) => told("it was released, and goes on".into()),
                (_, true) => told(format!("it was over at {at_most:?}, and goes on at {before:?}")),
                _ => None,
            })
        }
        Err(why) if matches!(why.kind(), ErrorKind::LockLost(_)) => {
            let now = pen.now();
            let is_held = !over && at_least.is_some_and(|least| least.life == now.life && now < least);
            Ok(if is_held { told(format!("held until {at_least:?}, and lost at {now:?}: {why}")) } else { None })
        }
        Err(why) => Err(why),
    }
}

/// That a process is gone, as of the last thing that it has noted.
pub fn gone(notes: &[Note]) -> Option<Note> {
    let at = |note: &Note| match note {
        Note::Opened(_, at, _)
        | Note::Asked { at, .. }
        | Note::Returned { at, .. }
        | Note::Ending { at, .. }
        | Note::Released { at, .. }
        | Note::NotThere { at, .. } => Some(*at),
        _ => None,
    };
    notes.iter().filter_map(at).max().map(Note::Gone)
}

/// Looks up commits whose end is open. All locks of rows must have been resolved.
pub fn settle(open: &[Commit], engine: &dyn Engine, rows: &Keyspace) -> Vec<Note> {
    let end = |commit: &Commit| {
        let (row, start_ts) = (rows.row_key(stored(&commit.marker)), Timestamp::from_u64(commit.start_ts));
        let number = commit.number;
        match committed_at(engine, &row, start_ts) {
            Some(ts) => Note::Committed { number, ts: ts.to_u64() },
            None => Note::NotCommitted { number },
        }
    };
    open.iter().map(end).collect()
}

/// When nothing waits any more: no request was woken that had not been granted the lock and had not come to an end (I7). That none was
/// forgotten shows in waits that never end.
pub fn wakes(store: &Store, counts: Counts) -> Option<Broken> {
    let stats = store.lock_stats();
    let waited = stats.exclusive.waits + stats.shared.waits + stats.semaphore.waits;
    let most = waited.saturating_sub(counts.timed_out);
    let how = format!("{} wakes, {waited} waits, {counts:?}", stats.wakeups);
    (stats.wakeups > most).then(|| Broken::new("I7 one wake each", how))
}

/// When no lock is held or waited for: leases without a guard are all that is left.
pub fn only_leases(store: &Store) -> Option<Broken> {
    let table = store.lock_table().ok()?;
    let left = table.entries.into_iter().find(|entry| entry.lease_remaining.is_none());
    left.map(|entry| Broken::new(NOTHING, format!("no lock is used any more, and the table has {entry:?}")))
}

/// When no lock is held or waited for, but for leases without a guard: every name can be taken within the time of the longest
/// lease, and then nothing is left of any.
///
/// # Errors
/// Those of the store.
pub fn nothing_left(store: &Store) -> Result<Vec<Broken>, Error> {
    let mut broken = Vec::new();
    for name in NAMES.iter().chain([&PERMITS]) {
        let options = LockOptions::exclusive().wait(LockWaitPolicy::Timeout(PATIENCE));
        match store.lock_with(*name, options) {
            Ok(guard) => guard.release()?,
            Err(why) if matches!(why.kind(), ErrorKind::LockNotAvailable(_)) => {
                let how = format!("no lease is longer than {LEASE_MAX_MS} ms, and {why}");
                broken.push(Broken::new("I6 each wait ends", how));
            }
            Err(why) => return Err(why),
        }
    }
    let table = store.lock_table()?;
    if !table.entries.is_empty() || table.held + table.waiting > 0 {
        broken.push(Broken::new(NOTHING, format!("no lock is used, and the table has {:?}", table.entries)));
    }
    Ok(broken)
}

/// The names whose leases have rows.
///
/// # Errors
/// Those of reading.
pub fn rows_of_leases(reader: &impl CellReader) -> Result<Vec<String>, EngineError> {
    let (start, end) = keyspace_range(CATALOG);
    let range = RowRange { start: std::ops::Bound::Included(start), end: std::ops::Bound::Excluded(end) };
    let mut found = Vec::new();
    reader.scan(Column::Write, &range, false, |key, bytes| {
        let there = WriteRecord::decode(bytes).is_ok_and(|version| version.value.is_some());
        let row = RowKey::from_bytes(key).filter(|row| there && row.user_key().starts_with(ROWS));
        found.extend(row.map(|row| String::from_utf8_lossy(row.user_key()).into_owned()));
        true
    })?;
    Ok(found)
}

/// The same as a broken promise, of a store in which no lease is held.
///
/// # Errors
/// Those of reading.
pub fn no_rows(reader: &impl CellReader) -> Result<Option<Broken>, EngineError> {
    let rows = rows_of_leases(reader)?;
    Ok((!rows.is_empty()).then(|| Broken::new(NOTHING, format!("no lease is held, and these have rows: {rows:?}"))))
}

/// A moment of a store's clock.
pub fn moment(life: u32, elapsed: Duration, tick: u64) -> Moment {
    Moment { life, time: nanos(elapsed), tick }
}
