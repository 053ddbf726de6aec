//! What happens to a part of the store whose code panics: its state may be anything, so its other
//! callers must not go on with it, nor wait for it forever.

/// Calls `on_panic` if the code panics while the guard exists.
pub struct PanicGuard<F: Fn()> {
    on_panic: F,
    /// A destructor can commit, or release a lock, while its thread unwinds. Such a panic is not
    /// that of the guarded code.
    was_panicking: bool,
}

impl<F: Fn()> PanicGuard<F> {
    pub fn new(on_panic: F) -> Self {
        Self { on_panic, was_panicking: std::thread::panicking() }
    }
}

impl<F: Fn()> Drop for PanicGuard<F> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            (self.on_panic)();
        }
    }
}
