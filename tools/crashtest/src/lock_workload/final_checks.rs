//! Checks of leases after an opening, and of what is left after the last use of locks.

use std::time::Duration;

use percolite::engine::storage::{CellReader, Column};
use percolite::engine::{Engine, EngineError, RowRange};
use percolite::internal::codec::Record as _;
use percolite::internal::keys::keyspace_range;
use percolite::row::{RowKey, WriteRecord};
use percolite::{Error, ErrorKind, Keyspace, KeyspaceId, LockOptions, LockWaitPolicy, Store, Timestamp};

use super::client::EventWriter;
use super::event::{LockCommit, LockEvent, LogicalTime, nanos};
use super::{Counts, LEASE_MAX_MS, LOCK_NAMES, SEMAPHORE};
use crate::client::committed_at;
use crate::key_encoding::encode_key;
use crate::lock_checker::{LeaseRecord, replay};
use crate::rng::SeededRng;
use crate::violation::Violation;

const CATALOG: KeyspaceId = KeyspaceId(0);
const LEASE_ROW_PREFIX: &[u8] = b"lock/";
const LEASE_SURVIVES: &str = "lock: leases survive the process";
const NOTHING_LEFT: &str = "lock: cleanup";
/// Much longer than any lease.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for a lease to expire.
const EXPIRY_WAIT_MAX: Duration = Duration::from_millis(1500);

/// Tries to attach the leases of earlier incarnations, except a random third of those that were not
/// released. This must succeed for a lease that is still held, and fail for one that was released
/// or has expired. `events` has everything up to this opening.
///
/// # Errors
/// Errors of the store.
pub fn check_leases(
    writer: &EventWriter<'_>,
    events: &[LockEvent],
    rng: &mut SeededRng,
) -> Result<Vec<Violation>, Error> {
    let mut violations = Vec::new();
    for lease in replay(events).leases {
        if !lease.ended && rng.one_in(3) {
            // This lease is left alone, so that other clients have to wait for it.
            continue;
        }
        let most = lease.at_most.map(|most| Duration::from_nanos(most.time.saturating_sub(writer.now().time)));
        if let Some(left) = most.filter(|left| !left.is_zero() && *left < EXPIRY_WAIT_MAX && rng.one_in(2)) {
            writer.env.runtime.sleep(left + Duration::from_millis(1));
        }
        violations.extend(check_lease(writer, &lease, rng)?);
    }
    Ok(violations)
}

fn check_lease(writer: &EventWriter<'_>, lease: &LeaseRecord, rng: &mut SeededRng) -> Result<Option<Violation>, Error> {
    let LeaseRecord { name, token, ended, at_least, at_most } = lease;
    let (store, at) = (writer.env.store, Timestamp::from_u64(*token));
    let before = writer.now();
    let violation =
        |details: String| Some(Violation::new(LEASE_SURVIVES, format!("lock {name:?} with token {at}: {details}")));
    match store.attach_lock(name, at) {
        Ok(guard) => {
            writer.record(LockEvent::Resumed { name: name.clone(), token: *token });
            let is_over = at_most.is_some_and(|most| most < before);
            let token_is = guard.token();
            if rng.one_in(2)
                && let Ok(kept) = guard.detach()
            {
                writer.env.shared.add_detached(name, kept);
            } else {
                writer.record_end_attempt(name, *token);
            }
            Ok(match (*ended, is_over) {
                _ if token_is != at => violation(format!("attached with the token {token_is}")),
                (true, _) => violation("it was released, and can be attached".into()),
                (_, true) => violation(format!("it expired at {at_most:?}, and can be attached at {before:?}")),
                _ => None,
            })
        }
        Err(error) if matches!(error.kind(), ErrorKind::LockLost(_)) => {
            let now = writer.now();
            let is_held = !ended && at_least.is_some_and(|least| least.incarnation == now.incarnation && now < least);
            Ok(if is_held {
                violation(format!("it must be held until {at_least:?}, and is lost at {now:?}: {error}"))
            } else {
                None
            })
        }
        Err(error) => Err(error),
    }
}

/// The event `StoreGone` of a killed process, which could not record it: at the time of its last
/// event.
pub fn store_gone(events: &[LockEvent]) -> Option<LockEvent> {
    let at = |event: &LockEvent| match event {
        LockEvent::StoreOpened(_, at, _)
        | LockEvent::Requested { at, .. }
        | LockEvent::Granted { at, .. }
        | LockEvent::EndAttempt { at, .. }
        | LockEvent::Released { at, .. }
        | LockEvent::NotHeld { at, .. } => Some(*at),
        _ => None,
    };
    events.iter().filter_map(at).max().map(LockEvent::StoreGone)
}

/// Looks up the commits whose outcome is unknown. The caller must have resolved all row locks.
pub fn resolve_unknown(open: &[LockCommit], engine: &dyn Engine, rows: &Keyspace) -> Vec<LockEvent> {
    let end = |commit: &LockCommit| {
        let (row, start_ts) = (rows.row_key(encode_key(&commit.marker)), Timestamp::from_u64(commit.start_ts));
        let number = commit.number;
        match committed_at(engine, &row, start_ts) {
            Some(ts) => LockEvent::Committed { number, ts: ts.to_u64() },
            None => LockEvent::NotCommitted { number },
        }
    };
    open.iter().map(end).collect()
}

/// Checks that there are at most as many wake-ups as waits that did not time out: a request is
/// woken only when its wait ends, and once. Must be called when no request is waiting. A missing
/// wake-up is not found here, but as a wait that never ends.
pub fn check_wakeups(store: &Store, counts: Counts) -> Option<Violation> {
    let stats = store.lock_stats();
    let waited = stats.exclusive.waits + stats.shared.waits + stats.semaphore.waits;
    let most = waited.saturating_sub(counts.timed_out);
    let details = format!("{} wake-ups, {waited} waits, {counts:?}", stats.wakeups);
    (stats.wakeups > most).then(|| Violation::new("lock: single wake-up", details))
}

/// Checks that the lock table has only leases. The caller must have dropped all guards, and no
/// request may be waiting.
pub fn check_only_leases(store: &Store) -> Option<Violation> {
    let table = store.lock_table().ok()?;
    let left = table.entries.into_iter().find(|entry| entry.lease_remaining.is_none());
    left.map(|entry| Violation::new(NOTHING_LEFT, format!("no lock is in use, and the lock table contains {entry:?}")))
}

/// Checks that every name can be locked when its lease has expired, and that no lock is left then.
/// Before the call only detached leases may exist.
///
/// # Errors
/// Errors of the store.
pub fn check_nothing_left(store: &Store) -> Result<Vec<Violation>, Error> {
    let mut violations = Vec::new();
    for name in LOCK_NAMES.iter().chain([&SEMAPHORE]) {
        let options = LockOptions::exclusive().wait(LockWaitPolicy::Timeout(ACQUIRE_TIMEOUT));
        match store.lock_with(*name, options) {
            Ok(guard) => guard.release()?,
            Err(error) if matches!(error.kind(), ErrorKind::LockNotAvailable(_)) => {
                let details = format!("no lease is longer than {LEASE_MAX_MS} ms, yet: {error}");
                violations.push(Violation::new("lock: waits end", details));
            }
            Err(error) => return Err(error),
        }
    }
    let table = store.lock_table()?;
    if !table.entries.is_empty() || table.held + table.waiting > 0 {
        violations.push(Violation::new(
            NOTHING_LEFT,
            format!("no lock is in use, and the lock table contains {:?}", table.entries),
        ));
    }
    Ok(violations)
}

/// The keys of all lease rows.
///
/// # Errors
/// Errors of the reads.
pub fn lease_rows(reader: &impl CellReader) -> Result<Vec<String>, EngineError> {
    let (start, end) = keyspace_range(CATALOG);
    let range = RowRange { start: std::ops::Bound::Included(start), end: std::ops::Bound::Excluded(end) };
    let mut found = Vec::new();
    reader.scan(Column::Write, &range, false, |key, bytes| {
        let there = WriteRecord::decode(bytes).is_ok_and(|version| version.value.is_some());
        let row = RowKey::from_bytes(key).filter(|row| there && row.user_key().starts_with(LEASE_ROW_PREFIX));
        found.extend(row.map(|row| String::from_utf8_lossy(row.user_key()).into_owned()));
        true
    })?;
    Ok(found)
}

/// Checks that no lease row is left. Before the call all leases must have ended.
///
/// # Errors
/// Errors of the reads.
pub fn check_no_lease_rows(reader: &impl CellReader) -> Result<Option<Violation>, EngineError> {
    let rows = lease_rows(reader)?;
    Ok((!rows.is_empty())
        .then(|| Violation::new(NOTHING_LEFT, format!("no lease is held, and lease rows are left: {rows:?}"))))
}

/// The time at which the monotonic clock of this incarnation shows `elapsed`.
pub fn logical_time(incarnation: u32, elapsed: Duration, tick: u64) -> LogicalTime {
    LogicalTime { incarnation, time: nanos(elapsed), tick }
}
