//! Reads of everything at one timestamp, current or in the history.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use parking_lot::Mutex;
use percolite::{Error, ErrorKind, KeyspaceId, Snapshot, Timestamp};

use super::{Client, tolerate};
use crate::client_log::Entry;
use crate::history::{Op, Outcome};
use crate::key_encoding::decode_key;
use crate::workload::{Workload, write_skews};

/// Each read of the history is recorded as a session of its own, numbered from here on. In its
/// client's session the checker would report that the snapshot goes back in time.
const HISTORY_SESSIONS: u64 = 1 << 40;

/// Digests and drops that the clients of a store share.
#[derive(Default)]
pub struct HistoryDigests {
    /// Digests of the whole store, each with its timestamp.
    pub digests: Mutex<Vec<(Timestamp, u64)>>,
    /// Keyspaces that were dropped in this incarnation, each with a timestamp after the drop, above
    /// which no write to the keyspace may commit.
    pub dropped: Mutex<BTreeMap<KeyspaceId, Timestamp>>,
}

/// See [`HistoryDigests`].
pub type SharedDigests = Arc<HistoryDigests>;

/// The result of reading everything.
struct ScanResult {
    number: u64,
    checked: Result<(), String>,
    keys: Vec<Vec<u8>>,
}

impl Client<'_> {
    /// Reads everything in a snapshot and checks it.
    ///
    /// # Errors
    /// Errors of the store; a violated invariant of the workload as corruption.
    pub fn check_snapshot(&mut self, workload: &dyn Workload) -> Result<(), Error> {
        let began = self.recorder.now();
        let snapshot = self.store.snapshot()?;
        if self.rng.one_in(3) {
            self.record_digest(&snapshot)?;
        }
        let scanned =
            self.scan_snapshot(&snapshot, Some(began), workload).and_then(|ScanResult { number, checked, keys }| {
                let key = keys.get(self.rng.below(keys.len().max(1)));
                let listed = key.map_or(Ok(Ok(())), |key| self.newest_is_listed(&snapshot, key))?;
                checked.and(listed).map_err(|problem| self.corruption(number, snapshot.read_ts(), &problem))
            });
        scanned.or_else(|error| tolerate(error).map(drop))
    }

    /// Records a digest of the snapshot.
    pub(super) fn record_digest(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        match digest_of(snapshot) {
            Ok(digest) => {
                let digest_at = (snapshot.read_ts(), digest);
                self.history_digests.digests.lock().push(digest_at);
                self.required_digests.iter_mut().for_each(|required_digests| required_digests.push(digest_at));
            }
            Err(error) => drop(tolerate(error)?),
        }
        Ok(())
    }

    /// Checks that a read shows the value of the first version that `versions` lists for the row.
    fn newest_is_listed(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Result<(), String>, Error> {
        let newest = snapshot.versions(&self.rows, key)?.next().transpose()?;
        let listed = newest.as_ref().and_then(|version| version.value.as_ref());
        if listed == snapshot.get(&self.rows, key)?.as_ref() {
            return Ok(Ok(()));
        }
        let key = key.escape_ascii();
        Ok(Err(format!("the first version of {key} is {newest:?}, and a read shows another value")))
    }

    /// Reads everything at an older timestamp and checks it; without history, reads the current
    /// snapshot.
    ///
    /// # Errors
    /// As [`Client::check_snapshot`].
    pub fn read_history(&mut self, workload: &dyn Workload) -> Result<(), Error> {
        let Some(from) = self.store.stats().history_start_ts else { return self.check_snapshot(workload) };
        if self.rng.one_in(3) {
            return self.recheck_one();
        }
        let newest = self.store.snapshot()?.read_ts();
        let own = self.committed.get(self.rng.below(self.committed.len().max(1))).copied().filter(|own| *own >= from);
        let at = match (self.rng.below(12), own) {
            // A timestamp that was just handed out. Every commit in progress must be shown by the
            // read, or get a timestamp above this one.
            (0 | 1, _) => self.store.begin()?.start_ts(),
            (2..=4, Some(own)) => own.previous(),
            (5..=7, Some(own)) => own,
            // The start of the history, which garbage collection may raise meanwhile.
            (8 | 9, _) => from,
            _ => {
                let span = newest.to_u64().saturating_sub(from.to_u64());
                Timestamp::from_u64(from.to_u64() + if span == 0 { 0 } else { self.rng.bits() % span })
            }
        };
        let visible_ts = self.store.stats().visible_ts;
        let snapshot = match self.store.snapshot_at(at) {
            // The history at this timestamp may have been removed meanwhile.
            Err(error) if matches!(error.kind(), ErrorKind::SnapshotTooOld(_)) => return Ok(()),
            snapshot => snapshot?,
        };
        let durable_ts = self.store.stats().durable_ts;
        let ScanResult { number, checked, keys } = match self.scan_snapshot(&snapshot, None, workload) {
            // Resolving the locks that the scan meets may take longer than the age limit.
            Err(error) => return tolerate(error).map(drop),
            Ok(scanned) => scanned,
        };
        let checked = checked.and_then(|()| {
            let may_be_lost = self.durable_snapshots && durable_ts < at.min(visible_ts);
            if may_be_lost { Err(format!("only what is at or below {durable_ts} is durable")) } else { Ok(()) }
        });
        let key = keys.get(self.rng.below(keys.len().max(1)));
        let listed = key.map_or(Ok(Ok(())), |key| self.is_listed(&snapshot, key))?;
        checked.and(listed).map_err(|problem| self.corruption(number, at, &problem))
    }

    /// Checks that an older snapshot shows the version that was the newest at its time, according
    /// to the versions that are listed now.
    fn is_listed(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Result<(), String>, Error> {
        let versions = self.store.snapshot()?.versions(&self.rows, key);
        let listed: Result<Vec<_>, _> = versions.and_then(Iterator::collect);
        let at = snapshot.read_ts();
        let (listed, shown) = match (listed, snapshot.get(&self.rows, key)) {
            (Ok(listed), Ok(shown)) => (listed, shown),
            (Err(error), _) | (_, Err(error)) => return tolerate(error).map(|_| Ok(())),
        };
        let version_then =
            listed.iter().find(|version| version.commit_ts <= at).and_then(|version| version.value.clone());
        // The history may have been shortened meanwhile.
        let is_kept = self.store.stats().history_start_ts.is_some_and(|from| from <= at);
        if version_then == shown || !is_kept {
            return Ok(Ok(()));
        }
        let times: Vec<_> = listed.iter().map(|version| version.commit_ts).collect();
        Ok(Err(format!(
            "the versions of {} are of {times:?}, and a read at {at} shows another value",
            key.escape_ascii()
        )))
    }

    /// Reads an older snapshot again: its digest must not have changed.
    fn recheck_one(&mut self) -> Result<(), Error> {
        let required_digests = self.required_digests.as_deref().unwrap_or_default();
        if let Some((at, _)) = required_digests.get(self.rng.below(required_digests.len().max(1))) {
            self.store.snapshot_at(*at)?;
        }
        let digests = self.history_digests.digests.lock().clone();
        digests.get(self.rng.below(digests.len().max(1))).map_or(Ok(()), |digest_at| self.check_digest(digest_at))
    }

    /// Checks all recorded digests.
    ///
    /// # Errors
    /// As [`Client::check_snapshot`].
    pub fn recheck_all(&self) -> Result<(), Error> {
        self.history_digests.digests.lock().clone().iter().try_for_each(|digest_at| self.check_digest(digest_at))
    }

    fn check_digest(&self, (at, digest): &(Timestamp, u64)) -> Result<(), Error> {
        match self.store.snapshot_at(*at).and_then(|snapshot| digest_of(&snapshot)) {
            Ok(found) if found == *digest => Ok(()),
            Ok(_) => Err(ErrorKind::Corruption(format!("the state at {at} has changed")).into()),
            Err(error) => tolerate(error).map(drop),
        }
    }

    /// Reads everything and records it. For a read of the history `began` is `None`; then the
    /// checker accepts an old state.
    fn scan_snapshot(
        &mut self,
        snapshot: &Snapshot,
        began: Option<u64>,
        workload: &dyn Workload,
    ) -> Result<ScanResult, Error> {
        let (mut rows, mut keys) = (Vec::new(), Vec::new());
        for row in snapshot.range(&self.rows, ..) {
            let (key, value) = row?.into_parts();
            rows.push((decode_key(&key), crate::value_encoding::decode_value(&value)));
            keys.push(key);
        }
        let state = rows.iter().cloned().collect();
        let checked = workload.check(&state).and(self.point_reads_match(snapshot, &keys, &rows)?);
        self.write_skews += write_skews(&state) as u64;
        let ops = vec![Op::Scan { from: String::new(), to: None, rows }];
        let number = self.recorder.number();
        let mut txn = self.new_transaction(None, snapshot.read_ts().to_u64(), began, ops);
        if began.is_none() {
            txn.session = HISTORY_SESSIONS + number;
        }
        self.recorder.record_commit(
            number,
            Entry { txn, incarnation: self.id.incarnation, durable: self.is_durable(), marker: None },
        );
        self.answer(number, Outcome::Committed, None);
        Ok(ScanResult { number, checked, keys })
    }

    /// Checks that point reads, single or in one call, show what the scan has shown.
    fn point_reads_match(
        &mut self,
        snapshot: &Snapshot,
        keys: &[Vec<u8>],
        rows: &[(String, String)],
    ) -> Result<Result<(), String>, Error> {
        let values = if self.rng.one_in(2) {
            snapshot.multi_get(&self.rows, keys)?
        } else {
            keys.iter().map(|key| snapshot.get(&self.rows, key)).collect::<Result<_, _>>()?
        };
        let shown = values.iter().map(|value| value.as_deref().map(crate::value_encoding::decode_value));
        let other = rows.iter().zip(shown).find(|((_, scanned), read)| read.as_ref() != Some(scanned));
        Ok(other.map_or(Ok(()), |((key, scanned), read)| {
            Err(format!("{key} is {scanned} in a scan and {read:?} in a point read"))
        }))
    }

    fn corruption(&self, number: u64, read_ts: Timestamp, problem: &str) -> Error {
        let (session, read_ts) = (self.id.session, read_ts.to_u64());
        ErrorKind::Corruption(format!("transaction {number} of session {session}, reading at {read_ts}: {problem}"))
            .into()
    }
}

/// A digest of all keyspaces and rows.
///
/// # Errors
/// Errors of the reads.
pub fn digest_of(snapshot: &Snapshot) -> Result<u64, Error> {
    let mut digest = DefaultHasher::new();
    for keyspace in snapshot.keyspaces()? {
        keyspace.name().hash(&mut digest);
        for row in snapshot.range(&keyspace, ..) {
            row?.into_parts().hash(&mut digest);
        }
    }
    Ok(digest.finish())
}
