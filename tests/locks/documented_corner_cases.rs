//! Corner cases that the documentation describes.

use std::time::Duration;

use percolite::{LockOptions, Store};

/// The background thread checks a lease again once half of the lease time has passed. After a
/// renewal for a shorter time it must check earlier.
#[test]
fn renewal_may_shorten_a_lease() {
    let store = Store::in_memory().unwrap();
    let guard = store.lock_with("job", LockOptions::exclusive().lease(Duration::from_secs(3600))).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    guard.renew(Duration::from_secs(2)).unwrap();
    assert!(!guard.wait_lost(Duration::from_millis(3500)));
    assert!(guard.entry().lease_remaining.unwrap() <= Duration::from_secs(2));
}

#[cfg(feature = "tokio")]
mod tasks {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use percolite::{AsyncLockGuard, AsyncStore, LockMode, LockOptions, LockWaitPolicy, Store, Timestamp};

    /// The lock is granted between two polls, and the future is not polled again.
    #[tokio::test]
    async fn upgrade_dropped_after_grant_stays_exclusive() {
        let store = AsyncStore::from(Store::in_memory().unwrap());
        let shared = || store.lock_with("name", LockOptions::shared());
        let (mut one, other): (AsyncLockGuard, _) = (shared().await.unwrap(), shared().await.unwrap());
        {
            let mut upgrade = pin!(one.upgrade(LockWaitPolicy::Forever));
            let mut noop = Context::from_waker(Waker::noop());
            assert!(matches!(upgrade.as_mut().poll(&mut noop), Poll::Pending));
            drop(other);
        }
        assert!(one.is_held());
        assert_eq!((one.entry().mode, one.token()), (LockMode::Exclusive, Timestamp::ZERO));
        one.upgrade(LockWaitPolicy::NoWait).await.unwrap();
        assert!(one.token() > Timestamp::ZERO);
        assert!(store.try_lock("name").await.unwrap().is_none());
        drop(one);
        assert_eq!(store.store().lock_table().unwrap().held, 0);
    }

    /// The future is dropped while a thread writes the row of its lease.
    #[tokio::test]
    async fn conversion_dropped_during_its_write_resumes_on_next_call() {
        let store = AsyncStore::from(Store::in_memory().unwrap());
        let lease = Duration::from_millis(1500);
        let mut guard = store.lock_with("name", LockOptions::exclusive().lease(lease)).await.unwrap();
        let before = guard.token();
        {
            let mut downgrade = pin!(guard.downgrade());
            let mut noop = Context::from_waker(Waker::noop());
            let _may_have_finished = downgrade.as_mut().poll(&mut noop);
        }
        guard.downgrade().await.unwrap();
        let token = guard.token();
        assert!(token > before);
        tokio::time::sleep(lease * 2).await;
        assert!(guard.is_held(), "the lease is not renewed");
        assert_eq!((guard.token(), guard.entry().mode), (token, LockMode::Shared));
        guard.downgrade().await.unwrap();
        assert_eq!(guard.token(), token);
    }

    #[tokio::test]
    async fn upgrade_dropped_before_grant_stays_shared() {
        let store = AsyncStore::from(Store::in_memory().unwrap());
        let shared = || store.lock_with("name", LockOptions::shared());
        let (mut one, other): (AsyncLockGuard, _) = (shared().await.unwrap(), shared().await.unwrap());
        let token = one.token();
        {
            let mut upgrade = pin!(one.upgrade(LockWaitPolicy::Forever));
            let mut noop = Context::from_waker(Waker::noop());
            assert!(matches!(upgrade.as_mut().poll(&mut noop), Poll::Pending));
        }
        drop(other);
        assert_eq!((one.entry().mode, one.token()), (LockMode::Shared, token));
        assert!(one.is_held());
        assert_eq!(store.store().lock_stats().exclusive.cancelled, 1);
    }
}
