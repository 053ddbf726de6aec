//! Runtimes, gates, and futures that are dropped before they end.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use percolite::{AsyncStore, Keyspace, Store};
use tokio::runtime::{Builder, Runtime};

/// A current_thread runtime and a multi-threaded one, each with at most `blocking_threads` blocking
/// threads.
pub fn both_runtimes(blocking_threads: usize) -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()].map(|mut builder| {
        builder.worker_threads(2).max_blocking_threads(blocking_threads).enable_time().build().unwrap()
    })
}

/// A store in memory with this admission limit, and a keyspace of it.
pub fn open(admission: usize) -> (AsyncStore, Keyspace) {
    let store = Store::builder().admission_limit(admission).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store.into(), rows)
}

/// Polls a future this many times and drops it. Returns its output if it was ready by then.
pub async fn drop_after_polls<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Polls a future once, outside of any task.
pub fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    struct NoopWaker;
    impl Wake for NoopWaker {
        fn wake(self: Arc<Self>) {}
    }
    future.poll(&mut Context::from_waker(&Waker::from(Arc::new(NoopWaker))))
}

/// Blocks threads until the gate is opened or dropped. A drop must open the gate, or the runtime of
/// a failed test would wait for the blocked threads forever.
#[derive(Default)]
pub struct Gate(Way);

/// The other side of a [`Gate`]: `pass` blocks the calling thread until the gate is open.
#[derive(Clone, Default)]
pub struct Way(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn way(&self) -> Way {
        self.0.clone()
    }

    pub fn open(&self) {
        *self.0.0.0.lock().unwrap() = true;
        self.0.0.1.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

impl Way {
    pub fn pass(&self) {
        let is_open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(is_open, |is_open| !*is_open).unwrap());
    }
}

/// Checks that `admission` attempts can run at the same time, and that none of them had to wait
/// until an admission timeout.
pub fn assert_no_permit_is_lost(store: &Store, rows: &Keyspace, admission: usize) {
    let before = store.stats().admission_timeouts;
    let together = Barrier::new(admission);
    std::thread::scope(|scope| {
        for number in 0..admission {
            let together = &together;
            scope.spawn(move || {
                store
                    .transact(|txn| {
                        together.wait();
                        txn.put(rows, format!("permit {number}"), "")
                    })
                    .unwrap();
            });
        }
    });
    assert_eq!(store.stats().admission_timeouts, before, "permits were lost");
}
