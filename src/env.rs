//! The environment of a store: clock, randomness, sleep and threads (RocksDB's `Env`).
//!
//! Above its engine the store uses the operating system only through [`Env`]. A simulator
//! implements `Env` with a virtual clock and a seeded scheduler, and so controls every source of
//! nondeterminism.
//!
//! No mutex of the store is kept locked during a call of the engine or the environment that may
//! block, with one exception: the mutex of the leader of the commit pipeline, which no other thread
//! locks meanwhile. So a scheduler that runs one thread at a time, and switches threads in such
//! calls, cannot deadlock.

#![allow(clippy::disallowed_methods, reason = "what the environment is made of")]

use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The number of yields in [`Env::yield_until`]. By `benches/EXPERIMENTS.md`, more yields gain
/// nothing. Without yields, 64 clients commit 0.75 times as often, and 0.35 times if all write the
/// same ten rows.
const YIELDS: u32 = 3;

/// The operating system as the store sees it, apart from its engine.
pub trait Env: Send + Sync {
    /// Wall clock time in milliseconds since 1970. It may jump in either direction.
    fn unix_millis(&self) -> u64;
    /// Monotonic time since some fixed moment.
    fn elapsed(&self) -> Duration;
    /// The monotonic clock of the machine, which all of its processes share; `None` if there is
    /// none. It must not run ahead of [`Env::elapsed`] in any process of the machine.
    fn boot_clock(&self) -> Option<BootClock> {
        None
    }
    /// 64 random bits.
    fn random(&self) -> u64;
    /// Blocks for about this long.
    fn sleep(&self, duration: Duration);
    /// Yields to other threads until `is_done` returns true, but only a few times. Used for events
    /// that come so soon that sleeping and being woken would take longer. May do nothing.
    fn yield_until(&self, _is_done: &dyn Fn() -> bool) {}
    /// A parker for the calling thread.
    fn parker(&self) -> Arc<dyn Parker>;
    /// A new watermark. Threads that wait for the default watermark block in the operating system,
    /// so a simulated scheduler must provide its own.
    fn new_watermark(&self) -> Arc<dyn Watermark> {
        Arc::new(CondvarWatermark::default())
    }
    /// Runs `work` on a new thread; the handle joins it.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>>;
}

/// A reading of [`Env::boot_clock`]. Readings with the same `boot` can be compared, even if they
/// were made by different processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootClock {
    /// Identifies the clock: it changes when the machine restarts. Not zero.
    pub boot: u64,
    /// Monotonic time since some moment that is the same for all processes.
    pub elapsed: Duration,
}

/// Blocks and wakes one thread.
pub trait Parker: Send + Sync {
    /// Blocks until [`Parker::unpark`] is called or `timeout` has passed. Returns immediately if
    /// [`Parker::unpark`] was called since `park` last returned. May wake spuriously. Only the
    /// thread that created the parker may call `park`.
    fn park(&self, timeout: Option<Duration>);
    /// Ends the thread's current wait or, if it is not waiting, its next one.
    fn unpark(&self);
}

/// An increasing number that threads can wait for.
pub trait Watermark: Send + Sync {
    /// Blocks until the number is at least `until`.
    fn wait_for(&self, until: u64);
    /// Raises the watermark to `number`, and ends all waits for this number or a smaller one. Does
    /// nothing if the watermark is already greater.
    fn advance_to(&self, number: u64);
}

/// A handle of a spawned thread.
pub trait JoinHandle: Send + Sync {
    /// Blocks until the thread has ended.
    fn join(self: Box<Self>);
}

/// The environment of the operating system.
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

    #[cfg(target_os = "linux")]
    fn boot_clock(&self) -> Option<BootClock> {
        // The clock behind `Instant`, too.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let elapsed = Duration::new(u64::try_from(now.tv_sec).ok()?, u32::try_from(now.tv_nsec).ok()?);
        Some(BootClock { boot: boot_number()?, elapsed })
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn yield_until(&self, is_done: &dyn Fn() -> bool) {
        for _ in 0..YIELDS {
            if is_done() {
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

/// A number of this start of the machine, from the kernel's random id. A time namespace has a
/// monotonic clock of its own, so the namespace's number is part of it.
#[cfg(target_os = "linux")]
fn boot_number() -> Option<u64> {
    static BOOT: std::sync::OnceLock<Option<u64>> = std::sync::OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().replace('-', "");
        let id = u128::from_str_radix(&id, 16).ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        let digits: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let [high, low] = [id >> 64, id & u128::from(u64::MAX)].map(|half| u64::try_from(half).unwrap_or_default());
        Some(high ^ low ^ digits.parse::<u64>().unwrap_or_default()).filter(|number| *number != 0)
    })
}

#[derive(Debug)]
struct ThreadParker(std::thread::Thread);

impl Parker for ThreadParker {
    fn park(&self, timeout: Option<Duration>) {
        match timeout {
            Some(timeout) => std::thread::park_timeout(timeout),
            None => std::thread::park(),
        }
    }

    fn unpark(&self) {
        self.0.unpark();
    }
}

/// One condition variable for even numbers and one for odd ones, so that reaching a number does not
/// wake the threads that wait for the next one.
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
        // If the number advances by one, only waits for the new number end. They are on the
        // condition variable of its parity, so the other one is not notified.
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
        // An error means that the thread has panicked. It is ignored: if the engine has panicked in
        // a write or a sync, the store has failed already.
        let _ = self.0.join();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_wait_ends_when_its_number_is_reached() {
        let (watermark, reached) = (SystemEnv::default().new_watermark(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for waiter in 0..8 {
                let (watermark, reached) = (&watermark, &reached);
                scope.spawn(move || {
                    for number in 1..2000 {
                        let until = number + waiter % 2;
                        watermark.wait_for(until);
                        assert!(reached.load(Ordering::SeqCst) >= until);
                    }
                });
            }
            for number in 1..=2000 {
                reached.store(number, Ordering::SeqCst);
                watermark.advance_to(number);
                std::thread::yield_now();
            }
            watermark.advance_to(5);
            watermark.wait_for(2000);
        });
    }

    #[test]
    fn the_greatest_number_ends_every_wait() {
        let watermark = SystemEnv::default().new_watermark();
        std::thread::scope(|scope| {
            for until in 1..5 {
                let watermark = &watermark;
                scope.spawn(move || watermark.wait_for(until));
            }
            std::thread::yield_now();
            watermark.advance_to(u64::MAX);
        });
        watermark.wait_for(u64::MAX);
    }
}
