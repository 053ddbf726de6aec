//! How a client looks at everything at one moment, now or in the past.

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

/// Each look at the past is a session of its own, numbered from here on.
const PAST_SESSIONS: u64 = 1 << 40;

/// What clients of a store tell each other.
#[derive(Default)]
pub struct PastDigests {
    /// What everything in the store was at some moments: a digest of each.
    pub digests: Mutex<Vec<(Timestamp, u64)>>,
    /// Keyspaces that were dropped in this life of the store, with a moment when they were gone.
    pub dropped: Mutex<BTreeMap<KeyspaceId, Timestamp>>,
}

/// See [`Memory`].
pub type SharedPast = Arc<PastDigests>;

/// What a look at everything has found.
struct ScanResult {
    number: u64,
    checked: Result<(), String>,
    keys: Vec<Vec<u8>>,
}

impl Client<'_> {
    /// Looks at everything at one moment, and judges it.
    ///
    /// # Errors
    /// Those of the store, and a broken promise of the workload as corruption.
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
        scanned.or_else(|why| tolerate(why).map(drop))
    }

    /// Remembers what is there at a moment.
    pub(super) fn record_digest(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        match digest_of(snapshot) {
            Ok(digest) => {
                let digest_at = (snapshot.read_ts(), digest);
                self.past.digests.lock().push(digest_at);
                self.required_past.iter_mut().for_each(|required_past| required_past.push(digest_at));
            }
            Err(why) => drop(tolerate(why)?),
        }
        Ok(())
    }

    /// The version that is read is the first of a row's versions.
    fn newest_is_listed(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Result<(), String>, Error> {
        let newest = snapshot.versions(&self.rows, key)?.next().transpose()?;
        let listed = newest.as_ref().and_then(|version| version.value.as_ref());
        if listed == snapshot.get(&self.rows, key)?.as_ref() {
            return Ok(Ok(()));
        }
        let key = key.escape_ascii();
        Ok(Err(format!("the versions of {key} begin with {newest:?}, and it is read otherwise")))
    }

    /// Looks at everything as it was at some moment of the past, if the store keeps history, and judges it.
    ///
    /// # Errors
    /// Those of [`Client::observe`].
    pub fn read_past(&mut self, workload: &dyn Workload) -> Result<(), Error> {
        let Some(from) = self.store.stats().history_start_ts else { return self.check_snapshot(workload) };
        if self.rng.one_in(3) {
            return self.recheck_one();
        }
        let newest = self.store.snapshot()?.read_ts();
        let own = self.committed.get(self.rng.below(self.committed.len().max(1))).copied().filter(|own| *own >= from);
        let at = match (self.rng.below(12), own) {
            // Nothing may be committed at or below it any more once it has been asked about.
            (0 | 1, _) => self.store.begin()?.start_ts(),
            (2..=4, Some(own)) => own.previous(),
            (5..=7, Some(own)) => own,
            _ => {
                let span = newest.to_u64().saturating_sub(from.to_u64());
                Timestamp::from_u64(from.to_u64() + if span == 0 { 0 } else { self.rng.bits() % span })
            }
        };
        let visible_ts = self.store.stats().visible_ts;
        let snapshot = match self.store.snapshot_at(at) {
            // It may have been collected since.
            Err(why) if matches!(why.kind(), ErrorKind::SnapshotTooOld(_)) => return Ok(()),
            snapshot => snapshot?,
        };
        let durable_ts = self.store.stats().durable_ts;
        let ScanResult { number, checked, keys } = match self.scan_snapshot(&snapshot, None, workload) {
            // Whoever has to resolve a thousand locks on the way may come too late.
            Err(why) => return tolerate(why).map(drop),
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

    /// Among the versions of a row, as they are listed now, is the one that a snapshot of the past shows.
    fn is_listed(&self, past: &Snapshot, key: &[u8]) -> Result<Result<(), String>, Error> {
        let versions = self.store.snapshot()?.versions(&self.rows, key);
        let listed: Result<Vec<_>, _> = versions.and_then(Iterator::collect);
        let at = past.read_ts();
        let (listed, shown) = match (listed, past.get(&self.rows, key)) {
            (Ok(listed), Ok(shown)) => (listed, shown),
            (Err(why), _) | (_, Err(why)) => return tolerate(why).map(|_| Ok(())),
        };
        let version_then =
            listed.iter().find(|version| version.commit_ts <= at).and_then(|version| version.value.clone());
        // Or it has gone since.
        let is_kept = self.store.stats().history_start_ts.is_some_and(|from| from <= at);
        if version_then == shown || !is_kept {
            return Ok(Ok(()));
        }
        let times: Vec<_> = listed.iter().map(|version| version.commit_ts).collect();
        Ok(Err(format!("the versions of {} are of {times:?}, and at {at} it was another", key.escape_ascii())))
    }

    /// Looks at a moment that was looked at before: the past does not change.
    fn recheck_one(&mut self) -> Result<(), Error> {
        let required_past = self.required_past.as_deref().unwrap_or_default();
        if let Some((at, _)) = required_past.get(self.rng.below(required_past.len().max(1))) {
            self.store.snapshot_at(*at)?;
        }
        let digests = self.past.digests.lock().clone();
        digests.get(self.rng.below(digests.len().max(1))).map_or(Ok(()), |digest_at| self.check_digest(digest_at))
    }

    /// [`Client::look_back`] on every moment that anybody has looked at.
    ///
    /// # Errors
    /// Those of [`Client::observe`].
    pub fn recheck_all(&self) -> Result<(), Error> {
        self.past.digests.lock().clone().iter().try_for_each(|digest_at| self.check_digest(digest_at))
    }

    fn check_digest(&self, (at, digest): &(Timestamp, u64)) -> Result<(), Error> {
        match self.store.snapshot_at(*at).and_then(|snapshot| digest_of(&snapshot)) {
            Ok(found) if found == *digest => Ok(()),
            Ok(_) => Err(ErrorKind::Corruption(format!("the past of {at} is not what it was")).into()),
            Err(why) => tolerate(why).map(drop),
        }
    }

    /// Reads everything and enters it; one that does not say when it began need not have seen the newest.
    fn scan_snapshot(
        &mut self,
        snapshot: &Snapshot,
        began: Option<u64>,
        workload: &dyn Workload,
    ) -> Result<ScanResult, Error> {
        let (mut rows, mut keys) = (Vec::new(), Vec::new());
        for row in snapshot.range(&self.rows, ..) {
            let (key, value) = row?;
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
            txn.session = PAST_SESSIONS + number;
        }
        self.recorder.record_commit(
            number,
            Entry { txn, incarnation: self.id.incarnation, durable: self.is_durable(), marker: None },
        );
        self.answer(number, Outcome::Committed, None);
        Ok(ScanResult { number, checked, keys })
    }

    /// Read at once, or one by one, the rows are what the scan has shown.
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
        Ok(other
            .map_or(Ok(()), |((key, scanned), read)| Err(format!("{key} is {scanned} in a scan and read as {read:?}"))))
    }

    fn corruption(&self, number: u64, read_ts: Timestamp, problem: &str) -> Error {
        let (session, read_ts) = (self.id.session, read_ts.to_u64());
        ErrorKind::Corruption(format!("transaction {number} of session {session}, reading at {read_ts}: {problem}"))
            .into()
    }
}

/// Of all keyspaces and rows.
///
/// # Errors
/// Those of reading.
pub fn digest_of(snapshot: &Snapshot) -> Result<u64, Error> {
    let mut digest = DefaultHasher::new();
    for keyspace in snapshot.keyspaces()? {
        keyspace.name().hash(&mut digest);
        for row in snapshot.range(&keyspace, ..) {
            row?.hash(&mut digest);
        }
    }
    Ok(digest.finish())
}
