//! `get_lock`, `release_lock` and `is_free_lock`, called by tasks.

use std::time::Duration;

use percolite::{LockOptions, Timestamp};

use super::common::on_both;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_name_is_free_then_taken_then_free() {
    on_both(|store| async move {
        assert!(store.run_blocking(|store| store.is_free_lock("some_resource")).await.unwrap());
        let token = store.run_blocking(|store| store.get_lock("some_resource", HOUR)).await.unwrap().unwrap();
        assert!(!store.run_blocking(|store| store.is_free_lock("some_resource")).await.unwrap());
        // Requests of tasks respect the lease.
        assert!(store.try_lock("some_resource").await.unwrap().is_none());
        assert!(store.run_blocking(move |store| store.release_lock("some_resource", token)).await.unwrap());
        assert!(store.run_blocking(|store| store.is_free_lock("some_resource")).await.unwrap());
        assert!(store.try_lock("some_resource").await.unwrap().unwrap().token() > token);
    });
}

#[test]
fn of_many_get_lock_calls_one_succeeds() {
    on_both(|store| async move {
        let get = || {
            let store = store.clone();
            tokio::spawn(async move { store.run_blocking(|store| store.get_lock("n", HOUR)).await })
        };
        let tasks: Vec<_> = (0..16).map(|_| get()).collect();
        let mut tokens = Vec::new();
        for task in tasks {
            tokens.extend(task.await.unwrap().unwrap());
        }
        assert_eq!(tokens.len(), 1);
        let token = tokens[0];
        assert!(store.run_blocking(move |store| store.release_lock("n", token)).await.unwrap());
    });
}

#[test]
fn a_wrong_token_releases_nothing() {
    on_both(|store| async move {
        let guard = store.lock_with("n", LockOptions::exclusive().lease(HOUR)).await.unwrap();
        let token = guard.token();
        let wrong = [Timestamp::ZERO, token.previous(), token.next()];
        for token in wrong {
            assert!(!store.run_blocking(move |store| store.release_lock("n", token)).await.unwrap());
            assert!(!store.run_blocking(move |store| store.force_unlock("n", token)).await.unwrap());
        }
        assert!(guard.is_held());
        assert_eq!(guard.entry().token, Some(token));
        assert!(store.run_blocking(move |store| store.release_lock("n", token)).await.unwrap());
        guard.wait_lost().await;
        assert!(!store.run_blocking(move |store| store.release_lock("n", token)).await.unwrap());
    });
}

#[test]
fn an_expired_lease_is_free_before_any_sweep() {
    on_both(|store| async move {
        let lease = Duration::from_millis(100);
        let token = store.run_blocking(move |store| store.get_lock("n", lease)).await.unwrap().unwrap();
        assert!(!store.store().is_free_lock("n").unwrap());
        tokio::time::sleep(2 * lease).await;
        assert!(store.store().is_free_lock("n").unwrap());
        assert!(!store.run_blocking(move |store| store.release_lock("n", token)).await.unwrap());
    });
}
