//! Time, randomness, sleeping and threads: above the engine, everything that makes a run differ from the last one goes through here.
//!
//! Above its engine the store never asks the operating system directly. A simulator implements [`Env`] with a virtual clock and a
//! seeded scheduler and owns every choice. No lock of the store is held across a call of the engine or of the runtime
//! that may wait, except by the one thread that leads the commit pipeline; so a scheduler that runs one thread at a time
//! and switches in those calls cannot get stuck.

#![allow(clippy::disallowed_methods, reason = "here is where the operating system is asked")]

use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// More than a few gain nothing, and none costs half of what many clients can do.
const YIELDS: u32 = 3;

/// What the store needs of the world besides its engine.
pub trait Env: Send + Sync {
    /// Wall clock time in milliseconds since 1970. It may jump, either way.
    fn unix_millis(&self) -> u64;
    /// Time since some fixed moment; never goes back.
    fn elapsed(&self) -> Duration;
    /// 64 random bits.
    fn random(&self) -> u64;
    /// Returns after about this long.
    fn sleep(&self, duration: Duration);
    /// Lets other threads run for a moment, one of which is about to do what is waited for: less than it costs to sleep and to
    /// be woken. May do nothing.
    fn spin_until(&self, _is_over: &dyn Fn() -> bool) {}
    /// The means to make the calling thread wait, and to end its wait.
    fn parker(&self) -> Arc<dyn Parker>;
    /// Something that threads can wait for together. The default waits in the operating system; a scheduler of its own must wait there.
    fn new_watermark(&self) -> Arc<dyn Watermark> {
        Arc::new(CondvarWatermark::default())
    }
    /// Runs `work` on a thread of its own; the handle waits for its end.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>>;
}

/// Makes one thread wait.
pub trait Parker: Send + Sync {
    /// Returns when [`Parker::unpark`] was called since the last return, after `at_most`, or for no reason at all. Only the
    /// thread that asked for the parker may call it.
    fn park(&self, at_most: Option<Duration>);
    /// Ends the thread's present wait or, if it is not waiting, its next one.
    fn unpark(&self);
}

/// A number that grows, and threads that wait until it has grown.
pub trait Watermark: Send + Sync {
    /// Returns once the number is at least `until`.
    fn wait_for(&self, until: u64);
    /// Raises the number, and ends the waits for it with one call. Does nothing if it is greater already.
    fn advance_to(&self, number: u64);
}

/// A thread that can be waited for.
pub trait JoinHandle: Send + Sync {
    /// Returns once the thread has ended.
    fn join(self: Box<Self>);
}

/// The operating system. Above its engine the store asks it for time, randomness and threads here only.
#[derive(Debug)]
pub struct SystemEnv {
    began: std::time::Instant,
}

impl Default for SystemEnv {
    fn default() -> Self {
        Self { began: std::time::Instant::now() }
    }
}

impl Env for SystemEnv {
    fn unix_millis(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn spin_until(&self, is_over: &dyn Fn() -> bool) {
        for _ in 0..YIELDS {
            if is_over() {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn parker(&self) -> Arc<dyn Parker> {
        thread_local! {
            static PARKER: Arc<ThreadParker> = Arc::new(ThreadParker(std::thread::current()));
        }
        PARKER.with(|parker| Arc::<ThreadParker>::clone(parker) as Arc<dyn Parker>)
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work)?;
        Ok(Box::new(SystemJoinHandle(thread)))
    }
}

#[derive(Debug)]
struct ThreadParker(std::thread::Thread);

impl Parker for ThreadParker {
    fn park(&self, at_most: Option<Duration>) {
        match at_most {
            Some(at_most) => std::thread::park_timeout(at_most),
            None => std::thread::park(),
        }
    }

    fn unpark(&self) {
        self.0.unpark();
    }
}

/// One condition for even numbers and one for odd ones, so that the next number does not wake those that wait for the one after it.
#[derive(Default)]
struct CondvarWatermark {
    number: std::sync::Mutex<u64>,
    parity: [std::sync::Condvar; 2],
}

impl Watermark for CondvarWatermark {
    fn wait_for(&self, until: u64) {
        let number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        let condition = &self.parity[usize::from(until % 2 == 1)];
        drop(condition.wait_while(number, |number| *number < until));
    }

    fn advance_to(&self, number: u64) {
        let before = {
            let mut current = self.number.lock().unwrap_or_else(PoisonError::into_inner);
            let raised = number.max(*current);
            std::mem::replace(&mut *current, raised)
        };
        // Mostly it is the next one.
        for (parity, condition) in (0..).zip(&self.parity) {
            if number > before.saturating_add(1) || number % 2 == parity {
                condition.notify_all();
            }
        }
    }
}

struct SystemJoinHandle(std::thread::JoinHandle<()>);

impl JoinHandle for SystemJoinHandle {
    fn join(self: Box<Self>) {
        // A thread of the store that panicked has poisoned the store already; there is nothing to add here.
        let _ = self.0.join();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_wait_ends_when_its_number_is_reached_and_not_before() {
        let (progress, reached) = (SystemEnv::default().new_watermark(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for waiter in 0..8 {
                let (progress, reached) = (&progress, &reached);
                scope.spawn(move || {
                    for number in 1..2000 {
                        let until = number + waiter % 2;
                        progress.wait_for(until);
                        assert!(reached.load(Ordering::SeqCst) >= until);
                    }
                });
            }
            for number in 1..=2000 {
                reached.store(number, Ordering::SeqCst);
                progress.advance_to(number);
                std::thread::yield_now();
            }
            progress.advance_to(5);
            progress.wait_for(2000);
        });
    }

    #[test]
    fn the_greatest_number_ends_every_wait() {
        let progress = SystemEnv::default().new_watermark();
        std::thread::scope(|scope| {
            for until in 1..5 {
                let progress = &progress;
                scope.spawn(move || progress.wait_for(until));
            }
            std::thread::yield_now();
            progress.advance_to(u64::MAX);
        });
        progress.wait_for(u64::MAX);
    }
}
