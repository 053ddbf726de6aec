//! The row of a named lock's leases, and its encoding.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::env::{BootClock, Env};
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{Grant, LockHolder, LockMode};
use crate::store::catalog::entries::LOCK_PREFIX;
use crate::store::named_locks::state::NamedLocks;
use crate::timestamp::Timestamp;

/// One lease: an entry in the row of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct LeaseRow {
    pub shared: bool,
    pub token: Timestamp,
    /// The wall clock at the grant or the last renewal, in milliseconds since 1970.
    pub since_ms: u64,
    /// The clock of `since_boot_ms` ([`BootClock::boot`]); 0 without one.
    pub boot: u64,
    /// The same moment by the machine's monotonic clock, in milliseconds. Negative if the lease was
    /// granted before this clock began.
    pub since_boot_ms: i64,
    pub ttl_ms: u64,
    pub pid: u32,
    pub label: Option<String>,
    pub thread: String,
    pub reason: Option<String>,
}

impl LeaseRow {
    pub(in crate::store) fn new(locks: &NamedLocks, grant: &Grant, time: Duration) -> Self {
        let clock = locks.clock();
        let holder = clock.holder(grant);
        let (boot, since_boot_ms) = locks.env.boot_clock().map_or((0, 0), |clock| {
            // Rounded up, so that the row does not end before the lease does in memory.
            (clock.boot, i64::try_from(millis_rounded_up(clock.elapsed)).unwrap_or(i64::MAX))
        });
        Self {
            shared: grant.mode == LockMode::Shared,
            token: grant.token(),
            since_ms: locks.env.unix_millis(),
            boot,
            since_boot_ms,
            ttl_ms: millis_rounded_up(time),
            pid: holder.pid,
            label: holder.application_name,
            thread: holder.thread,
            reason: grant.requester.reason.as_deref().map(Into::into),
        }
    }

    pub(in crate::store) fn mode(&self) -> LockMode {
        if self.shared { LockMode::Shared } else { LockMode::Exclusive }
    }

    pub(in crate::store) fn holder(&self) -> LockHolder {
        LockHolder { pid: self.pid, application_name: self.label.clone(), thread: self.thread.clone() }
    }

    /// How much of the time to live is left: never more than the whole, whatever the clocks show.
    /// The machine's monotonic clock decides. The wall clock decides only if the machine has been
    /// restarted since the lease was written, or has no such clock.
    pub(in crate::store) fn remaining(&self, now: &Clocks) -> Duration {
        let passed = match now.boot {
            Some(clock) if clock.boot == self.boot => {
                let now_ms = i64::try_from(clock.elapsed.as_millis()).unwrap_or(i64::MAX);
                u64::try_from(now_ms.saturating_sub(self.since_boot_ms)).unwrap_or_default()
            }
            _ => now.unix_millis.saturating_sub(self.since_ms),
        };
        Duration::from_millis(self.ttl_ms.saturating_sub(passed))
    }

    /// The same lease with the time left that it has now, in terms of the machine's clock since its
    /// last start. `None` if the lease is in these terms already, or there is no such clock.
    ///
    /// Without this, a lease that was granted while the wall clock was ahead would have its whole
    /// time left at each opening. `since_ms` stays: the present wall clock may be the wrong one.
    pub(in crate::store) fn in_terms_of_this_boot(&self, now: &Clocks) -> Option<Self> {
        let clock = now.boot.filter(|clock| clock.boot != self.boot)?;
        let passed = self.ttl_ms.saturating_sub(millis_rounded_up(self.remaining(now)));
        let now_ms = i64::try_from(millis_rounded_up(clock.elapsed)).unwrap_or(i64::MAX);
        let since_boot_ms = now_ms.saturating_sub_unsigned(passed);
        Some(Self { boot: clock.boot, since_boot_ms, ..self.clone() })
    }
}

/// The clocks that tell how much of a lease is left.
pub(in crate::store) struct Clocks {
    unix_millis: u64,
    boot: Option<BootClock>,
}

impl Clocks {
    pub fn read(env: &dyn Env) -> Self {
        Self { unix_millis: env.unix_millis(), boot: env.boot_clock() }
    }
}

fn millis_rounded_up(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The name and the holders of a row.
pub(in crate::store) fn decode_leases(key: &[u8], value: &[u8]) -> Result<(String, Vec<LeaseRow>)> {
    let name = key.strip_prefix(LOCK_PREFIX.as_bytes()).unwrap_or(key);
    let read = codec::decode_value(value).map_err(|error| {
        Error::from(ErrorKind::Corruption(format!("lease row of lock \"{}\": {error}", name.escape_ascii())))
    });
    let name = str::from_utf8(name).map_err(|_| {
        Error::from(ErrorKind::Corruption(format!("lease row with an invalid lock name: {}", name.escape_ascii())))
    });
    read.and_then(|leases| Ok((name?.to_owned(), leases)))
}

pub(in crate::store) fn encode_leases(leases: &[LeaseRow]) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode_value(&leases, &mut bytes);
    bytes
}

pub(in crate::store) fn lock_key(name: &str) -> String {
    format!("{LOCK_PREFIX}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> LeaseRow {
        LeaseRow {
            shared: true,
            token: Timestamp::from_u64(0x0665_0000_0000_0001),
            since_ms: 1_763_726_400_123,
            boot: 0x0102_0304_0506_0708,
            since_boot_ms: -5,
            ttl_ms: 60_000,
            pid: 4242,
            label: Some("worker".into()),
            thread: "main".into(),
            reason: None,
        }
    }

    /// Never edit the expected bytes: a new format gets lines of its own.
    #[test]
    fn golden_bytes_of_leases() {
        let bytes = encode_leases(&[row()]);
        let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        let wanted =
            "010101fd0100000000006506fd7b1a49a69a010000fd080706050403020109fb60eafb92100106776f726b6572046d61696e00";
        assert_eq!(hex, wanted);
        assert_eq!(decode_leases(b"lock/nightly", &bytes).unwrap(), ("nightly".into(), vec![row()]));
    }

    fn left(row: &LeaseRow, unix_millis: u64, boot: u64, boot_millis: u64) -> u64 {
        let boot = Some(BootClock { boot, elapsed: Duration::from_millis(boot_millis) });
        u64::try_from(row.remaining(&Clocks { unix_millis, boot }).as_millis()).unwrap()
    }

    #[test]
    fn after_a_restart_the_wall_clock_decides_and_never_gives_more_than_the_whole() {
        let row = row();
        for (now, wanted) in [
            (row.since_ms, 60_000),
            (row.since_ms + 15_000, 45_000),
            (row.since_ms + 60_000, 0),
            (row.since_ms - 86_400_000, 60_000),
            (row.since_ms + 86_400_000, 0),
            (0, 60_000),
            (u64::MAX, 0),
        ] {
            assert_eq!(left(&row, now, row.boot + 1, 30_000), wanted, "{now}");
            let no_clock = Clocks { unix_millis: now, boot: None };
            assert_eq!(row.remaining(&no_clock), Duration::from_millis(wanted), "{now}");
        }
    }

    #[test]
    fn on_the_same_boot_the_wall_clock_does_not_matter() {
        let row = LeaseRow { since_boot_ms: 1_000_000, ..row() };
        for wall in [0, row.since_ms - 7_200_000, row.since_ms, row.since_ms + 7_200_000, u64::MAX] {
            for (boot_millis, wanted) in
                [(1_000_000, 60_000), (1_015_000, 45_000), (1_060_000, 0), (9_000_000, 0), (0, 60_000)]
            {
                assert_eq!(left(&row, wall, row.boot, boot_millis), wanted, "{wall} {boot_millis}");
            }
        }
    }

    #[test]
    fn a_lease_of_another_boot_keeps_the_time_that_it_has_left_and_no_wall_clock_changes_it() {
        let hours = 3_600_000;
        // The wall clock at the first opening after the restart, and the time left by it.
        for (wall_passed, wanted) in [(-2 * hours, 60_000), (0, 60_000), (20_000, 40_000), (2 * hours, 0)] {
            let row = row();
            let unix_millis = row.since_ms.saturating_add_signed(wall_passed);
            let boot = Some(BootClock { boot: row.boot + 1, elapsed: Duration::from_secs(30) });
            let now = Clocks { unix_millis, boot };
            let next = row.in_terms_of_this_boot(&now).unwrap();
            assert!(next.in_terms_of_this_boot(&now).is_none());
            assert_eq!((next.since_ms, next.ttl_ms, next.token), (row.since_ms, row.ttl_ms, row.token));
            for wall in [0, row.since_ms, u64::MAX] {
                assert_eq!(left(&next, wall, row.boot + 1, 30_000), wanted);
                assert_eq!(left(&next, wall, row.boot + 1, 40_000), wanted.saturating_sub(10_000));
                assert_eq!(left(&next, wall, row.boot + 1, 90_000), 0);
            }
        }
    }

    /// `since_boot_ms` is rounded up and a later reading down, so no rounding ends a lease early.
    #[test]
    fn a_lease_does_not_end_a_fraction_of_a_millisecond_early() {
        let micros = Duration::from_micros;
        assert_eq!([micros(1_000), micros(1_001), micros(1_999)].map(millis_rounded_up), [1, 2, 2]);
        let row = LeaseRow { since_boot_ms: 11, ttl_ms: 100, ..row() };
        let at = |elapsed| Clocks { unix_millis: 0, boot: Some(BootClock { boot: row.boot, elapsed }) };
        // Granted at 10.1 ms for 100 ms.
        assert!(row.remaining(&at(micros(110_099))) > Duration::ZERO);
    }

    #[test]
    fn malformed_lease_rows_are_errors() {
        let whole = encode_leases(&[row(), row()]);
        for cut in 0..whole.len() {
            assert!(decode_leases(b"lock/nightly", &whole[..cut]).is_err(), "{cut}");
        }
        assert!(decode_leases(b"lock/\xff", &whole).is_err());
    }
}
