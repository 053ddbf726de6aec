//! Futures dropped before, during and after the parts of an attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use percolite::engine::sim::SimStorage;
use percolite::row::RowKey;
use percolite::{AsyncStore, Keyspace, Store, Value};
use tokio::sync::oneshot;

use crate::common::{Gate, assert_no_permit_is_lost, both_runtimes, drop_after_polls, open};
use crate::hooked_engine::{Act, Control, HookedEngine};

fn written(store: &AsyncStore, rows: &Keyspace) -> Option<Value> {
    store.store().get(rows, "k").unwrap()
}

#[test]
fn a_future_dropped_before_its_attempt_has_no_effect() {
    for runtime in both_runtimes(1) {
        let (store, rows) = open(1);
        let (gate, began) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
        runtime.block_on(async {
            let (signal, is_busy) = oneshot::channel();
            let passing = gate.way();
            let busy = tokio::task::spawn_blocking(move || {
                signal.send(()).unwrap();
                passing.pass();
            });
            is_busy.await.unwrap();
            // The attempt gets its permit, and then waits for the only blocking thread, which is
            // busy.
            let (counted, put) = (Arc::clone(&began), rows.clone());
            let transact = store.transact(move |txn| {
                counted.fetch_add(1, Ordering::SeqCst);
                txn.put(&put, "k", "v")
            });
            assert!(drop_after_polls(1, transact).await.is_none());
            assert_eq!(Arc::strong_count(&began), 1, "the closure was not dropped");
            assert_no_permit_is_lost(store.store(), &rows, 1);
            gate.open();
            busy.await.unwrap();
        });
        drop(runtime);
        assert_eq!((began.load(Ordering::SeqCst), written(&store, &rows)), (0, None));
    }
}

#[test]
fn a_future_dropped_in_the_admission_queue_leaves_it() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        let gate = Gate::default();
        runtime.block_on(async {
            let (signal, is_inside) = oneshot::channel();
            let (mut signal, passing, inside) = (Some(signal), gate.way(), store.clone());
            let holder = tokio::spawn(async move {
                let work = move |_: &mut percolite::Txn| {
                    signal.take().map(|signal| signal.send(()));
                    passing.pass();
                    Ok::<_, percolite::Error>(())
                };
                inside.transact(work).await
            });
            is_inside.await.unwrap();
            for _ in 0..100 {
                let put = rows.clone();
                assert!(drop_after_polls(1, store.transact(move |txn| txn.put(&put, "k", "v"))).await.is_none());
            }
            gate.open();
            holder.await.unwrap().unwrap();
            assert_no_permit_is_lost(store.store(), &rows, 1);
        });
        drop(runtime);
        assert_eq!(written(&store, &rows), None);
    }
}

#[test]
fn a_future_dropped_while_its_closure_runs_commits_nothing() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        let gate = Gate::default();
        runtime.block_on(async {
            let (signal, is_inside) = oneshot::channel();
            let (mut signal, passing, put) = (Some(signal), gate.way(), rows.clone());
            let transact = store.transact(move |txn| {
                txn.put(&put, "k", "v")?;
                signal.take().map(|signal| signal.send(()));
                passing.pass();
                Ok::<_, percolite::Error>(())
            });
            tokio::select! {
                biased;
                _ = transact => panic!("the gate was still closed"),
                inside = is_inside => inside.unwrap(),
            }
        });
        gate.open();
        drop(runtime);
        assert_eq!(written(&store, &rows), None);
        assert_eq!(store.store().row_locks().unwrap().count(), 0);
        assert_no_permit_is_lost(store.store(), &rows, 1);
    }
}

#[test]
fn dropping_a_future_does_not_undo_a_commit_already_begun() {
    for runtime in both_runtimes(2) {
        let control = Arc::new(Control::default());
        let engine = Arc::new(SimStorage::new().exclusive_engine());
        let engine = HookedEngine { engine, control: Arc::clone(&control), batch_rows_max: usize::MAX };
        let store = Store::builder().open_engine(Arc::new(engine)).unwrap();
        let rows = store.keyspace("rows").unwrap();
        let store = AsyncStore::from(store);
        let gate = Gate::default();
        let (signal, is_writing) = oneshot::channel();
        let (signal, passing, watched) =
            (std::sync::Mutex::new(Some(signal)), gate.way(), RowKey::new(rows.id(), b"k"));
        control.on_write(move |groups| {
            if groups.iter().flat_map(|group| group.changes().into_owned()).any(|change| change.row == watched) {
                signal.lock().unwrap().take().map(|signal| signal.send(()));
                passing.pass();
            }
            Act::Pass
        });
        runtime.block_on(async {
            let put = rows.clone();
            tokio::select! {
                biased;
                _ = store.transact(move |txn| txn.put(&put, "k", "v")) => panic!("the gate was still closed"),
                writing = is_writing => writing.unwrap(),
            }
        });
        gate.open();
        drop(runtime);
        assert_eq!(written(&store, &rows).as_deref(), Some(&b"v"[..]));
        assert_eq!(store.store().row_locks().unwrap().count(), 0);
    }
}
