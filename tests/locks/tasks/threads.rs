//! Waiting tasks do not occupy threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use percolite::LockOptions;

use super::common::{assert_nothing_left, forever, in_memory, until, waiting};

const MANY: u64 = 10_000;
/// All of them have had the lock within this time.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn ten_thousand_waiters_need_two_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).max_blocking_threads(2).enable_time().build().unwrap();
    let store = in_memory();
    let test = async {
        let held = store.lock("n").await.unwrap();
        let (inside, had) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let begin = |_| {
            let (store, inside, had) = (store.clone(), Arc::clone(&inside), Arc::clone(&had));
            tokio::spawn(async move {
                let guard = store.lock_with("n", forever(LockOptions::exclusive())).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                had.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.token()
            })
        };
        let tasks: Vec<_> = (0..MANY).map(begin).collect();
        until("all wait", || waiting(&store) == MANY as usize).await;
        // A blocking thread is free for other calls.
        let rows = store.keyspace("rows").await.unwrap();
        store.transact(move |txn| txn.put(&rows, "k", "v")).await.unwrap();
        drop(held);
        let mut tokens = Vec::new();
        for task in tasks {
            tokens.push(task.await.unwrap());
        }
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!((tokens.len() as u64, had.load(Ordering::SeqCst)), (MANY, MANY));
        assert_eq!(store.store().lock_stats().wakeups, MANY);
    };
    let in_time = runtime.block_on(async { tokio::time::timeout(LIMIT, test).await });
    in_time.expect("a task among 10,000 is not woken");
    assert_nothing_left(&store);
}
