//! What a broken invariant does to the lock manager.

/// Calls `on_panic` if a change panics while the guard exists.
pub struct PanicGuard<F: Fn()> {
    on_panic: F,
    /// A destructor can release a lock while its thread unwinds; that panic is not the manager's.
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
