//! The rows of a keyspace in a read view never change, whatever is created, dropped, renamed,
//! truncated or restored.

use std::collections::BTreeMap;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{
    DumpHeader, DumpOptions, DumpStats, Error, ErrorKind, Keyspace, OnExisting, Row, Snapshot, Store, Timestamp, Value,
};
use proptest::prelude::*;

type Rows = BTreeMap<Vec<u8>, Value>;

fn parts(row: percolite::Result<Row>) -> percolite::Result<(Vec<u8>, Value)> {
    row.map(Row::into_parts)
}

/// Reads the keyspace with each reading call; all calls must agree. Returns the rows or the kind of
/// the error.
fn answer(snapshot: &Snapshot, keyspace: &Keyspace) -> Result<Rows, ErrorKind> {
    let kind = |error: Error| error.kind().clone();
    let scanned: Result<Rows, _> = snapshot.range(keyspace, ..).map(parts).collect::<Result<_, _>>().map_err(kind);
    let prefixed: Result<Rows, _> =
        snapshot.prefix(keyspace, "").rev().map(parts).collect::<Result<_, _>>().map_err(kind);
    assert_eq!(scanned, prefixed);
    let value = scanned.clone().map(|rows| rows.get(&b"k"[..]).cloned());
    assert_eq!(snapshot.get(keyspace, "k").map_err(kind), value);
    assert_eq!(snapshot.multi_get(keyspace, ["k"]).map_err(kind), value.clone().map(|value| vec![value]));
    let newest = snapshot.versions(keyspace, "k").and_then(|mut versions| versions.next().transpose()).map_err(kind);
    assert_eq!(newest.map(|version| version.and_then(|version| version.value)), value);
    scanned
}

/// Like [`answer`], for a transaction that begins now.
fn answer_of_txn(store: &Store, keyspace: &Keyspace) -> impl Fn() -> Result<Rows, ErrorKind> {
    let (txn, keyspace) = (store.begin().unwrap(), keyspace.clone());
    move || {
        let rows: Result<Rows, Error> = txn.range(&keyspace, ..).map(parts).collect();
        let value = txn.get(&keyspace, "k").map_err(|error| error.kind().clone());
        assert_eq!(
            value,
            txn.multi_get(&keyspace, ["k"]).map(|mut all| all.remove(0)).map_err(|error| error.kind().clone())
        );
        let rows = rows.map_err(|error| error.kind().clone());
        assert_eq!(rows.clone().map(|rows| rows.get(&b"k"[..]).cloned()), value);
        rows
    }
}

fn put(store: &Store, keyspace: &Keyspace, value: &str) {
    store.transact(|txn| txn.put(keyspace, "k", value)).unwrap();
}

fn one(value: &str) -> Result<Rows, ErrorKind> {
    Ok([(b"k".to_vec(), value.into())].into())
}

#[test]
fn a_keyspace_created_after_a_snapshot_is_empty_in_it() {
    let store = Store::in_memory().unwrap();
    let (before, in_txn) = (store.snapshot().unwrap(), store.begin().unwrap());
    let rows = store.keyspace("rows").unwrap();
    put(&store, &rows, "v");
    let between = store.snapshot().unwrap();
    for round in 0..3 {
        assert_eq!(answer(&before, &rows), Ok(Rows::new()), "{round}");
        assert_eq!(in_txn.get(&rows, "k").unwrap(), None, "{round}");
        assert_eq!(in_txn.range(&rows, ..).count(), 0, "{round}");
        assert_eq!(answer(&between, &rows), one("v"), "{round}");
        match round {
            0 => store.drop_keyspace("rows").unwrap(),
            // Long enough for the background to delete the rows if it ignored the open readers.
            _ => std::thread::sleep(Duration::from_millis(700)),
        }
    }
    let not_found = ErrorKind::KeyspaceNotFound("rows".into());
    assert_eq!(answer(&store.snapshot().unwrap(), &rows), Err(not_found));
}

/// The snapshot and the transaction begin during the restore, when a row is already committed and
/// the keyspace has no name yet.
#[test]
fn a_keyspace_is_empty_until_its_restore_has_finished() {
    let from = Store::in_memory().unwrap();
    let rows = from.keyspace("rows").unwrap();
    put(&from, &rows, "v");
    let mut dump = Vec::new();
    from.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();

    let store = Store::in_memory().unwrap();
    let mut while_it_runs = Vec::new();
    let mut txn = None;
    store
        .restore(&dump[..], OnExisting::Fail, |so_far| {
            while_it_runs.push((so_far.rows, store.snapshot().unwrap()));
            txn = Some(store.begin().unwrap());
        })
        .unwrap();
    let (restored, during) = while_it_runs.pop().unwrap();
    assert_eq!(restored, 1, "no row was restored yet");
    let rows = store.existing_keyspace("rows").unwrap();
    for dropped in [false, true] {
        assert_eq!(answer(&during, &rows), Ok(Rows::new()), "dropped: {dropped}");
        let mut txn = txn.take().unwrap_or_else(|| store.begin().unwrap());
        if dropped {
            break;
        }
        assert_eq!(txn.get(&rows, "k").unwrap(), None);
        let error = txn.put(&rows, "k", "mine").unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("row rows/k was committed at"), "{error}");
        let error = txn.get_for_update(&rows, "k").unwrap_err();
        assert!(error.is_retryable(), "{error}");
        drop(txn);
        assert_eq!(answer(&store.snapshot().unwrap(), &rows), one("v"));
        store.drop_keyspace("rows").unwrap();
    }
}

/// Like the test above, for a keyspace that an increment creates.
#[test]
fn a_keyspace_is_empty_until_its_increment_has_finished() {
    let from = Store::builder().history_retention(Duration::from_secs(3600)).in_memory().unwrap();
    put(&from, &from.keyspace("old").unwrap(), "v");
    let (mut base, mut increment) = (Vec::new(), Vec::new());
    from.snapshot().unwrap().dump(&mut base, |_| ()).unwrap();
    put(&from, &from.keyspace("rows").unwrap(), "v");
    let since = DumpOptions::default().since(DumpHeader::read(&base[..]).unwrap());
    from.snapshot().unwrap().dump_with(since, &mut increment, |_| ()).unwrap();

    let store = Store::in_memory().unwrap();
    store.restore(&base[..], OnExisting::Fail, |_| ()).unwrap();
    let (mut during, mut txn) = (None, None);
    let so_far = |so_far: &DumpStats| {
        (during, txn) = (Some((so_far.rows, store.snapshot().unwrap())), Some(store.begin().unwrap()));
    };
    store.restore(&increment[..], OnExisting::Fail, so_far).unwrap();
    let ((restored, during), mut txn) = (during.unwrap(), txn.unwrap());
    assert_eq!(restored, 1, "no row was restored yet");
    let rows = store.existing_keyspace("rows").unwrap();
    assert_eq!(answer(&during, &rows), Ok(Rows::new()));
    let error = txn.put(&rows, "k", "mine").unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(answer(&store.snapshot().unwrap(), &rows), one("v"));
    store.drop_keyspace("rows").unwrap();
    assert_eq!(answer(&during, &rows), Ok(Rows::new()));
    let not_found = ErrorKind::KeyspaceNotFound("rows".into());
    assert_eq!(answer(&store.snapshot().unwrap(), &rows), Err(not_found));
}

#[test]
fn a_keyspace_dropped_before_a_restart_is_only_in_history() {
    let memory = SimStorage::new();
    let open = || Store::builder().history_retention(Duration::from_secs(3600)).open_in_memory(&memory).unwrap();
    let store = open();
    let rows = store.keyspace("rows").unwrap();
    put(&store, &rows, "v");
    let then = store.snapshot().unwrap().read_ts();
    store.drop_keyspace("rows").unwrap();
    drop((store, rows));
    let store = open();
    let past = store.snapshot_at(then).unwrap();
    let rows = past.keyspaces().unwrap().remove(0);
    assert_eq!(answer(&past, &rows), one("v"));
    let not_found = ErrorKind::KeyspaceNotFound("rows".into());
    assert_eq!(answer(&store.snapshot().unwrap(), &rows), Err(not_found.clone()));
    assert_eq!(*store.transact(|txn| txn.put(&rows, "k", "w")).unwrap_err().kind(), not_found);
    assert_eq!(answer(&past, &rows), one("v"));
}

#[derive(Clone, Debug)]
enum Step {
    Open(u8),
    Put(u8, u8),
    Drop(u8),
    Truncate(u8),
    Rename(u8, u8),
    Restore,
    Snapshot,
    Past(u8),
    Txn,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || 0_u8..3;
    let step = prop_oneof![
        4 => name().prop_map(Step::Open),
        4 => (name(), any::<u8>()).prop_map(|(name, value)| Step::Put(name, value)),
        2 => name().prop_map(Step::Drop),
        1 => name().prop_map(Step::Truncate),
        1 => (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => Just(Step::Restore),
        4 => Just(Step::Snapshot),
        2 => any::<u8>().prop_map(Step::Past),
        2 => Just(Step::Txn),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..25)
}

/// What a read view must return for each keyspace id: its rows, no rows if it did not exist yet, or
/// an error if it was dropped.
#[derive(Clone, Default)]
struct Model {
    live: BTreeMap<u32, Rows>,
    dropped: Vec<u32>,
}

impl Model {
    fn answer(&self, keyspace: &Keyspace) -> Result<Rows, ErrorKind> {
        let id = keyspace.id().0;
        if self.dropped.contains(&id) {
            return Err(ErrorKind::KeyspaceNotFound(keyspace.name().into()));
        }
        Ok(self.live.get(&id).cloned().unwrap_or_default())
    }
}

/// A read view, and the state that it must always show.
type View = (Box<dyn Fn(&Keyspace) -> Result<Rows, ErrorKind>>, Model);

struct Run {
    memory: SimStorage,
    store: Store,
    now: Model,
    names: BTreeMap<String, u32>,
    handles: Vec<Keyspace>,
    views: Vec<View>,
    timestamps: Vec<(Timestamp, Model)>,
}

impl Run {
    fn open(memory: &SimStorage) -> Store {
        Store::builder()
            .history_retention(Duration::from_secs(3600))
            .background_resolve(true)
            .open_in_memory(memory)
            .unwrap()
    }

    fn new() -> Self {
        let memory = SimStorage::new();
        let store = Self::open(&memory);
        let (now, names, handles, views, timestamps) = Default::default();
        Self { memory, store, now, names, handles, views, timestamps }
    }

    fn listed(&mut self, handle: Keyspace) {
        let rows = self.store.snapshot().unwrap().range(&handle, ..).map(parts).collect::<Result<_, _>>().unwrap();
        self.names.insert(handle.name().into(), handle.id().0);
        self.now.live.insert(handle.id().0, rows);
        self.handles.push(handle);
    }

    fn dropped(&mut self, name: &str) {
        let id = self.names.remove(name).unwrap();
        self.now.live.remove(&id);
        self.now.dropped.push(id);
    }

    fn take(&mut self, step: &Step) {
        let name = |number: &u8| format!("name{number}");
        match step {
            Step::Open(number) => {
                let handle = self.store.keyspace(&name(number)).unwrap();
                self.listed(handle);
            }
            Step::Put(number, value) => {
                let Ok(handle) = self.store.existing_keyspace(&name(number)) else { return };
                self.store.transact(|txn| txn.put(&handle, "k", [*value])).unwrap();
                self.now.live.get_mut(&handle.id().0).unwrap().insert(b"k".to_vec(), [*value].into());
            }
            Step::Drop(number) => match self.store.drop_keyspace(&name(number)) {
                Ok(()) => self.dropped(&name(number)),
                Err(error) => assert!(!self.names.contains_key(&name(number)), "{error}"),
            },
            Step::Truncate(number) => {
                let Ok(handle) = self.store.truncate_keyspace(&name(number)) else { return };
                self.dropped(&name(number));
                self.listed(handle);
            }
            Step::Rename(from, to) => {
                let Ok(handle) = self.store.rename_keyspace(&name(from), &name(to)) else { return };
                self.names.remove(&name(from));
                self.listed(handle);
            }
            Step::Restore => self.restore(),
            Step::Snapshot => self.snapshot(),
            Step::Past(which) => {
                let Some((at, model)) = self.timestamps.get(usize::from(*which) % self.timestamps.len().max(1)) else {
                    return;
                };
                let past = self.store.snapshot_at(*at).unwrap();
                self.handles.extend(past.keyspaces().unwrap());
                self.views.push((Box::new(move |keyspace| answer(&past, keyspace)), model.clone()));
            }
            Step::Txn => {
                let store = self.store.clone();
                let txn = store.begin().unwrap();
                let rows = move |keyspace: &Keyspace| {
                    let rows: Result<Rows, Error> = txn.range(keyspace, ..).map(parts).collect();
                    let rows = rows.map_err(|error| error.kind().clone());
                    let value = txn.get(keyspace, "k").map_err(|error| error.kind().clone());
                    assert_eq!(rows.clone().map(|rows| rows.get(&b"k"[..]).cloned()), value);
                    rows
                };
                self.views.push((Box::new(rows), self.now.clone()));
            }
            Step::Reopen => {
                (self.handles, self.views) = Default::default();
                self.store.clone().close().unwrap();
                self.store = Self::open(&self.memory);
                self.handles = self.store.snapshot().unwrap().keyspaces().unwrap();
            }
        }
    }

    fn snapshot(&mut self) {
        let snapshot = self.store.snapshot().unwrap();
        self.timestamps.push((snapshot.read_ts(), self.now.clone()));
        self.views.push((Box::new(move |keyspace| answer(&snapshot, keyspace)), self.now.clone()));
    }

    /// Restores a dump of the current state, with snapshots taken meanwhile.
    fn restore(&mut self) {
        let mut dump = Vec::new();
        self.store.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();
        let mut snapshots = Vec::new();
        let store = self.store.clone();
        store.restore(&dump[..], OnExisting::Replace, |_| snapshots.push(store.snapshot().unwrap())).unwrap();
        for snapshot in snapshots {
            self.timestamps.push((snapshot.read_ts(), self.now.clone()));
            self.views.push((Box::new(move |keyspace| answer(&snapshot, keyspace)), self.now.clone()));
        }
        for name in self.names.keys().cloned().collect::<Vec<_>>() {
            self.dropped(&name);
            let handle = self.store.existing_keyspace(&name).unwrap();
            self.listed(handle);
        }
    }

    fn check(&self) {
        for (number, (read, model)) in self.views.iter().enumerate() {
            for keyspace in &self.handles {
                assert_eq!(read(keyspace), model.answer(keyspace), "view {number}, {keyspace:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_read_view_keeps_its_answers(steps in steps()) {
        let mut run = Run::new();
        for step in &steps {
            run.take(step);
            run.check();
        }
    }
}

#[test]
fn own_writes_are_read_in_a_keyspace_created_later() {
    let store = Store::in_memory().unwrap();
    let mut txn = store.begin().unwrap();
    let rows = store.keyspace("rows").unwrap();
    txn.put(&rows, "k", "v").unwrap();
    assert_eq!(txn.get(&rows, "k").unwrap(), Some("v".into()));
    assert_eq!(txn.range(&rows, ..).count(), 1);
    let other = answer_of_txn(&store, &rows);
    txn.commit().unwrap();
    assert_eq!(other(), Ok(Rows::new()));
    assert_eq!(answer(&store.snapshot().unwrap(), &rows), one("v"));
}
