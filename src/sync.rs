//! The mutex of everything above the engine: that of `parking_lot`.
//!
//! In builds for tests of crashes it lets the harness's scheduler switch threads before each lock is taken, and while one is
//! held: what two locks of one function leave open in between is then met like any other interleaving.

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
            // A scheduled thread must not wait where the scheduler does not know of it.
            loop {
                if let Some(guard) = self.0.try_lock() {
                    return guard;
                }
                before_lock(LockAttempt::Retry);
            }
        }
    }
}
