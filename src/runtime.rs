//! Time, randomness, sleeping and threads: everything that makes a run differ from the last one goes through here.
//!
//! The store never asks the operating system directly. A simulator implements [`Runtime`] with a virtual clock and a
//! seeded scheduler and owns every choice. No lock of the store is held across a call of the engine or of the runtime
//! that may wait, except by the one thread that leads the commit pipeline; so a scheduler that runs one thread at a time
//! and switches in those calls cannot get stuck.

#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::Duration;

/// More than a few gain nothing, and none costs half of what many clients can do.
const YIELDS: u32 = 3;

/// What the store needs of the world besides its engine.
pub trait Runtime: Send + Sync {
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
    fn give_way(&self, _is_over: &dyn Fn() -> bool) {}
    /// The means to make the calling thread wait, and to end its wait.
    fn parker(&self) -> Arc<dyn Parker>;
    /// Runs `work` on a thread of its own; the handle waits for its end.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn Joined>>;
}

/// Makes one thread wait.
pub trait Parker: Send + Sync {
    /// Returns when [`Parker::unpark`] was called since the last return, after `at_most`, or for no reason at all. Only the
    /// thread that asked for the parker may call it.
    fn park(&self, at_most: Option<Duration>);
    /// Ends the thread's present wait or, if it is not waiting, its next one.
    fn unpark(&self);
}

/// A thread that can be waited for.
pub trait Joined: Send + Sync {
    /// Returns once the thread has ended.
    fn join(self: Box<Self>);
}

/// The operating system. Here, and nowhere else, the store asks it for time, randomness and threads.
#[derive(Debug)]
pub struct System {
    began: std::time::Instant,
}

impl Default for System {
    fn default() -> Self {
        Self { began: std::time::Instant::now() }
    }
}

impl Runtime for System {
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

    fn give_way(&self, is_over: &dyn Fn() -> bool) {
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

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn Joined>> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work)?;
        Ok(Box::new(SystemThread(thread)))
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

struct SystemThread(std::thread::JoinHandle<()>);

impl Joined for SystemThread {
    fn join(self: Box<Self>) {
        // A thread of the store that panicked has poisoned the store already; there is nothing to add here.
        let _ = self.0.join();
    }
}
