//! The mutex of all code above the engine: `parking_lot`'s.
//!
//! In builds for crash tests, the harness's scheduler can switch threads before each lock
//! operation, and while a mutex is locked. So crash tests also cover interleavings between two
//! critical sections of one function.

#[cfg(not(feature = "crashtest"))]
pub use parking_lot::{Mutex, MutexGuard};

#[cfg(feature = "crashtest")]
pub use parking_lot::MutexGuard;
#[cfg(feature = "crashtest")]
pub use switching::Mutex;

#[cfg(feature = "crashtest")]
mod switching {
    use parking_lot::MutexGuard;

    use crate::crashtest::{LockAttempt, before_lock};

    /// See the [module](super).
    #[derive(Debug, Default)]
    pub struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub const fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        #[cfg(feature = "tokio")]
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut()
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            if !before_lock(LockAttempt::First) {
                return self.0.lock();
            }
            // The harness's scheduler runs one thread at a time. If this thread blocked here,
            // outside the scheduler, the thread that has locked the mutex could never run and
            // unlock it.
            loop {
                if let Some(guard) = self.0.try_lock() {
                    return guard;
                }
                before_lock(LockAttempt::Retry);
            }
        }
    }
}
