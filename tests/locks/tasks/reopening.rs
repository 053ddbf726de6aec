//! Leases of tasks when their store is closed, loses power, and is opened again.

use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{AsyncStore, Durability, ErrorKind, LockLostReason, LockOptions, Result, Timestamp};
use tokio::runtime::Runtime;

use super::common::{TIMEOUT, both_runtimes};
use crate::hooked_store::assert_lost;
use crate::support::clocks::{Clocks, HOUR};
use crate::support::rows;

fn lease() -> LockOptions {
    LockOptions::exclusive().lease(HOUR)
}

/// Incarnations of one store, each of which may end with a power cut.
struct Restarts {
    memory: SimStorage,
    clocks: std::sync::Arc<Clocks>,
}

impl Restarts {
    fn store(&self) -> AsyncStore {
        self.clocks.builder().durability(Durability::Buffered).open_in_memory(&self.memory).unwrap().into()
    }

    fn rows(&self) -> Vec<String> {
        rows::names(&self.memory.exclusive_engine())
    }
}

fn for_both<F: Future<Output = ()>>(test: impl Fn(Restarts) -> F) {
    for runtime in both_runtimes(8) {
        in_time(&runtime, test(Restarts { memory: SimStorage::new(), clocks: Clocks::new() }));
    }
}

fn in_time(runtime: &Runtime, test: impl Future<Output = ()>) {
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, test).await.expect("the test hangs") });
}

async fn attach(store: &AsyncStore, name: &'static str, token: Timestamp) -> Result<percolite::AsyncLockGuard> {
    store.run_blocking(move |store| store.attach_lock(name, token)).await.map(Into::into)
}

#[test]
fn close_releases_leases_with_a_guard() {
    for_both(|restarts| async move {
        let store = restarts.store();
        let guard = store.lock_with("n", lease()).await.unwrap();
        let mut shared = Vec::new();
        for _ in 0..3 {
            shared.push(store.lock_with("shared", LockOptions::shared().lease(HOUR)).await.unwrap());
        }
        assert_eq!(restarts.rows(), ["n", "shared"]);
        store.clone().close().await.unwrap();
        assert!(shared.iter().chain([&guard]).all(|guard| !guard.is_held()));
        assert!(matches!(guard.renew(HOUR).await.unwrap_err().kind(), ErrorKind::Closed(_)));
        assert_eq!(store.store().lock_stats().lost, 0);
        restarts.memory.crash(0);
        assert_eq!(restarts.rows(), [""; 0]);
        let store = restarts.store();
        for name in ["n", "shared"] {
            assert!(store.try_lock(name).await.unwrap().is_some());
        }
    });
}

#[test]
fn a_detached_lease_is_held_after_close() {
    for_both(|restarts| async move {
        let store = restarts.store();
        let token = store.lock_with("n", lease()).await.unwrap().detach().unwrap();
        assert!(store.lock("other").await.unwrap().detach().is_err(), "a guard without a lease cannot be detached");
        store.close().await.unwrap();
        restarts.clocks.pass(HOUR / 4);
        assert_eq!(restarts.rows(), ["n"]);
        let store = restarts.store();
        assert!(store.try_lock("n").await.unwrap().is_none());
        let left = store.store().lock_holders("n").unwrap()[0].lease_remaining.unwrap();
        assert!(left.abs_diff(HOUR / 4 * 3) <= Duration::from_secs(1), "{left:?}");
        let guard = attach(&store, "n", token).await.unwrap();
        assert_eq!(guard.token(), token);
        guard.release().await.unwrap();
        assert_eq!(restarts.rows(), [""; 0]);
    });
}

#[test]
fn a_returned_release_survives_a_power_cut() {
    for_both(|restarts| async move {
        let store = restarts.store();
        let guard = store.lock_with("guard", lease()).await.unwrap();
        let tokens = store.run_blocking(|store| -> Result<_> {
            Ok(["by token", "forced"].map(|name| store.get_lock(name, HOUR).unwrap().unwrap()))
        });
        let [by_token, forced] = tokens.await.unwrap();
        let token = guard.token();
        restarts.memory.crash(0);
        // A lease is durable when it is granted, in a buffered store too.
        assert_eq!(restarts.rows(), ["by token", "forced", "guard"]);
        let store = restarts.store();
        attach(&store, "guard", token).await.unwrap().release().await.unwrap();
        assert!(store.run_blocking(move |store| store.release_lock("by token", by_token)).await.unwrap());
        assert!(store.run_blocking(move |store| store.force_unlock("forced", forced)).await.unwrap());
        restarts.memory.crash(0);
        assert_eq!(restarts.rows(), [""; 0]);
        let store = restarts.store();
        for name in ["by token", "forced", "guard"] {
            assert!(store.try_lock(name).await.unwrap().is_some(), "{name}");
        }
    });
}

#[test]
fn a_damaged_row_blocks_its_name_and_no_other() {
    for whole_cell in [true, false] {
        for_both(|restarts| async move {
            let store = restarts.store();
            let token = store.lock_with("n", lease()).await.unwrap().detach().unwrap();
            let good = store.lock_with("good", lease()).await.unwrap().detach().unwrap();
            store.close().await.unwrap();
            rows::damage(&restarts.memory, "n", token, whole_cell);
            let store = restarts.store();
            let answers = [
                store.lock("n").await.map(drop),
                store.try_lock("n").await.map(drop),
                store.lock_with("n", lease()).await.map(drop),
                attach(&store, "n", token).await.map(drop),
            ];
            for error in answers.map(Result::unwrap_err) {
                assert!(matches!(error.kind(), ErrorKind::Corruption(_)) && error.to_string().contains('n'), "{error}");
            }
            drop(store.lock_with("other", lease()).await.unwrap());
            attach(&store, "good", good).await.unwrap().release().await.unwrap();
            let problems = store.run_blocking(|store| store.verify(|_| ())).await.unwrap().issues;
            assert!(problems.iter().any(|problem| problem.to_string().contains("lock/n")), "{problems:?}");
            let any = Timestamp::from_u64(12345);
            assert!(store.run_blocking(move |store| store.force_unlock("n", any)).await.unwrap());
            assert_lost(attach(&store, "n", token).await, token, LockLostReason::UnknownToken);
            store.lock_with("n", lease()).await.unwrap().release().await.unwrap();
        });
    }
}

#[cfg(feature = "rocks")]
#[test]
fn a_hundred_thousand_leases_are_held() {
    crate::leases::damage::with_very_many(|store, clocks, token, many| {
        let [runtime, _] = both_runtimes(8);
        let store = AsyncStore::from(store);
        in_time(&runtime, async {
            assert_eq!(store.store().lock_table().unwrap().held, many + 1);
            for at in (0..many).step_by(997) {
                assert!(store.try_lock(rows::job(at)).await.unwrap().is_none());
            }
            assert_eq!(attach(&store, "job 000007", token).await.unwrap().token(), token);
            clocks.pass(HOUR);
            assert!(store.try_lock("job 000008").await.unwrap().is_some());
        });
    });
}
