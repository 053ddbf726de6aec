//! `wait_lost`: a future that completes when the guard is lost.

use std::time::{Duration, Instant};

use percolite::{AsyncLockGuard, AsyncStore, LockOptions};

use super::common::{Busy, Steps, TIMEOUT, both_runtimes, in_memory};

fn once(store: &AsyncStore, lease: Duration) -> AsyncLockGuard {
    Steps::new(store.lock_with("n", LockOptions::exclusive().lease(lease).auto_renew(false))).end().unwrap()
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn wait_lost_returns_immediately_without_a_thread() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        for closes in [false, true] {
            let store = in_memory();
            let guards = [Steps::new(store.lock("n")).end().unwrap(), Steps::new(store.lock("other")).end().unwrap()];
            let mut lost = [0, 0].map(|at: usize| Steps::waiting(guards[at].wait_lost()));
            let mut other = Steps::waiting(guards[1].wait_lost());
            let _busy = Busy::begin(&runtime);
            if closes {
                store.store().clone().close().unwrap();
                other.answer();
            } else {
                assert!(store.store().force_unlock("n", guards[0].token()).unwrap());
                assert_eq!(other.wakes(), 0);
            }
            lost.iter_mut().for_each(Steps::answer);
            // A later call completes immediately.
            assert!(Steps::new(guards[0].wait_lost()).poll().is_ready());
        }
    }
}

#[test]
fn wait_lost_returns_at_lease_expiry() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        let store = in_memory();
        let (began, lease) = (Instant::now(), Duration::from_millis(300));
        let guard = once(&store, lease);
        let _busy = Busy::begin(&runtime);
        let mut lost = Steps::waiting(guard.wait_lost());
        assert!(lost.is_woken_within(TIMEOUT), "wait_lost does not complete after the end of the lease");
        lost.end();
        assert!(began.elapsed() >= lease && !guard.is_held());
    }
}

#[test]
fn wait_lost_follows_renewals() {
    for runtime in both_runtimes(2) {
        let _inside = runtime.enter();
        let store = in_memory();
        let guard = once(&store, Duration::from_millis(200));
        let mut lost = Steps::waiting(guard.wait_lost());
        Steps::new(guard.renew(LONG)).end().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(lost.poll().is_pending() && guard.is_held());
        Steps::new(guard.renew(Duration::from_millis(200))).end().unwrap();
        lost.end();
        assert!(!guard.is_held());
    }
}

#[test]
fn wait_lost_of_a_thread_follows_a_shorter_renewal() {
    let store = in_memory();
    let guard = store.store().lock_with("n", LockOptions::exclusive().lease(LONG).auto_renew(false)).unwrap();
    std::thread::scope(|scope| {
        let (answers, lost) = std::sync::mpsc::channel();
        let guard = &guard;
        scope.spawn(move || answers.send(guard.wait_lost(2 * TIMEOUT)));
        std::thread::sleep(Duration::from_millis(50));
        guard.renew(Duration::from_millis(200)).unwrap();
        assert_eq!(lost.recv_timeout(TIMEOUT), Ok(true), "wait_lost waits for the end of the first lease");
    });
}

#[test]
fn dropping_wait_lost_drops_its_waker() {
    let store = in_memory();
    let guard = Steps::new(store.lock("n")).end().unwrap();
    let waker = std::sync::Arc::new(NoopWaker);
    {
        let mut lost = std::pin::pin!(guard.wait_lost());
        let noop = std::task::Waker::from(std::sync::Arc::clone(&waker));
        assert!(lost.as_mut().poll(&mut std::task::Context::from_waker(&noop)).is_pending());
    }
    assert_eq!(std::sync::Arc::strong_count(&waker), 1, "the waker is kept");
}

struct NoopWaker;

impl std::task::Wake for NoopWaker {
    fn wake(self: std::sync::Arc<Self>) {}
}
