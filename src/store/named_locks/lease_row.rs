//! The row of a named lock's leases, and its encoding.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::codec;
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
        Self {
            shared: grant.mode == LockMode::Shared,
            token: grant.token(),
            since_ms: locks.env.unix_millis(),
            ttl_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
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

    /// How much of the time to live is left when the wall clock shows `unix_millis`: never more
    /// than the whole, even if the clock was set back.
    pub(in crate::store) fn remaining(&self, unix_millis: u64) -> Duration {
        let ends = self.since_ms.saturating_add(self.ttl_ms);
        Duration::from_millis(ends.saturating_sub(unix_millis).min(self.ttl_ms))
    }
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
        assert_eq!(hex, "010101fd0100000000006506fd7b1a49a69a010000fb60eafb92100106776f726b6572046d61696e00");
        assert_eq!(decode_leases(b"lock/nightly", &bytes).unwrap(), ("nightly".into(), vec![row()]));
    }

    #[test]
    fn the_time_left_is_clamped_to_the_duration() {
        let row = row();
        for (now, left) in [
            (row.since_ms, 60_000),
            (row.since_ms + 15_000, 45_000),
            (row.since_ms + 60_000, 0),
            (row.since_ms - 86_400_000, 60_000),
            (row.since_ms + 86_400_000, 0),
            (0, 60_000),
            (u64::MAX, 0),
        ] {
            assert_eq!(row.remaining(now), Duration::from_millis(left), "{now}");
        }
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
