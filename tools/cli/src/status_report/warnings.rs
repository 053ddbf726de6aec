//! What is wrong with a store now, by its published status.

use std::time::{Duration, UNIX_EPOCH};

use indicatif::{HumanBytes, HumanCount};
use percolite::{SpaceLeft, Stats, StoreStatus};

use crate::duration::human_duration;

/// Timestamps lead the clock by this much after a process was killed, without a trouble.
const USUAL_LEAD: Duration = Duration::from_secs(3);
/// The disk is nearly full if less than this part of it is free, and less than [`LOW_DISK_BYTES`].
const LOW_DISK_PART: u64 = 10;
const LOW_DISK_BYTES: u64 = 4 << 30;

/// One line for each trouble; `None` without one. `orphans_per_second` is how fast orphan locks are
/// resolved, if that is known.
pub fn of(status: &StoreStatus, orphans_per_second: Option<f64>) -> Option<String> {
    let lines = [orphans(&status.stats, orphans_per_second), clock(status), disk(status)];
    let lines: Vec<String> = lines.into_iter().flatten().collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// How far the clock is behind the store's timestamps.
pub fn clock_behind(status: &StoreStatus) -> Duration {
    let clock = status.taken_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(status.stats.visible_ts.millis()).saturating_sub(clock)
}

/// How long the orphan locks that are left will take; `None` if none is resolved.
pub fn time_left(stats: &Stats, per_second: f64) -> Option<Duration> {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let left = stats.orphan_locks_left() as f64;
    (left > 0.0 && per_second > 0.0).then(|| Duration::try_from_secs_f64(left / per_second).ok()).flatten()
}

fn orphans(stats: &Stats, per_second: Option<f64>) -> Option<String> {
    if !stats.may_have_orphan_locks {
        return None;
    }
    if stats.orphan_locks_found == 0 {
        return Some("orphan locks: not counted yet".into());
    }
    let (left, found) = (HumanCount(stats.orphan_locks_left()), HumanCount(stats.orphan_locks_found));
    let to_go = per_second.and_then(|per_second| time_left(stats, per_second));
    let to_go = to_go.map(|left| format!(", {} to go", human_duration(left))).unwrap_or_default();
    Some(format!("orphan locks: {left} of {found} left{to_go}"))
}

fn clock(status: &StoreStatus) -> Option<String> {
    let behind = clock_behind(status);
    (behind > USUAL_LEAD)
        .then(|| format!("the clock is {} behind the store's timestamps: was it set back?", human_duration(behind)))
}

fn disk(status: &StoreStatus) -> Option<String> {
    let engine = status.engine.as_ref()?;
    if engine.space_left != SpaceLeft::Enough {
        return Some("the disk is full: only deletions are possible until 3 MiB are free".into());
    }
    let (free, total) = engine.disk_free_bytes.zip(engine.disk_total_bytes)?;
    (free < total / LOW_DISK_PART && free < LOW_DISK_BYTES)
        .then(|| format!("the disk is nearly full: {} of {} free", HumanBytes(free), HumanBytes(total)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use percolite::Timestamp;

    use super::*;

    fn status() -> StoreStatus {
        let mut status: StoreStatus =
            serde_json::from_str(include_str!("../../../../src/store/introspect/status_1.json")).unwrap();
        status.stats.may_have_orphan_locks = false;
        status.stats.visible_ts = Timestamp::from(status.taken_at);
        status
    }

    #[test]
    fn a_quiet_store_has_no_warning() {
        assert_eq!(of(&status(), Some(0.0)), None);
        let mut after_a_kill = status();
        after_a_kill.stats.visible_ts = Timestamp::from(after_a_kill.taken_at + Duration::from_secs(3));
        assert_eq!(of(&after_a_kill, None), None);
    }

    #[test]
    fn orphan_locks_have_a_number_and_a_time_to_go() {
        let mut status = status();
        status.stats.may_have_orphan_locks = true;
        (status.stats.orphan_locks_found, status.stats.orphan_locks_resolved) = (9000, 3000);
        assert_eq!(of(&status, Some(100.0)).unwrap(), "orphan locks: 6,000 of 9,000 left, 1m to go");
        assert_eq!(of(&status, Some(0.0)).unwrap(), "orphan locks: 6,000 of 9,000 left");
        assert_eq!(of(&status, None).unwrap(), "orphan locks: 6,000 of 9,000 left");
        (status.stats.orphan_locks_found, status.stats.orphan_locks_resolved) = (0, 0);
        assert_eq!(of(&status, Some(0.0)).unwrap(), "orphan locks: not counted yet");
    }

    #[test]
    fn a_clock_that_is_behind_and_a_full_disk_are_said() {
        let mut status = status();
        status.taken_at -= Duration::from_secs(7200);
        assert_eq!(of(&status, None).unwrap(), "the clock is 2h behind the store's timestamps: was it set back?");
        status.taken_at += Duration::from_secs(7200);
        let engine = status.engine.as_mut().unwrap();
        (engine.disk_free_bytes, engine.disk_total_bytes) = (Some(50 << 20), Some(1 << 30));
        assert_eq!(of(&status, None).unwrap(), "the disk is nearly full: 50.00 MiB of 1.00 GiB free");
        let engine = status.engine.as_mut().unwrap();
        engine.disk_free_bytes = Some(500 << 20);
        assert_eq!(of(&status, None), None);
        status.engine.as_mut().unwrap().space_left = SpaceLeft::ForDeletions;
        let full = "the disk is full: only deletions are possible until 3 MiB are free";
        assert_eq!(of(&status, None).unwrap(), full);
    }
}
