//! Wakes the background worker before its idle interval ends.

use std::sync::Arc;

use crate::env::Parker;
use crate::sync::Mutex;

/// The parker of the background worker, once its thread runs.
#[derive(Default)]
pub struct BackgroundWaker(Mutex<Option<Arc<dyn Parker>>>);

impl BackgroundWaker {
    pub fn set(&self, parker: Arc<dyn Parker>) {
        *self.0.lock() = Some(parker);
    }

    pub fn wake(&self) {
        if let Some(parker) = &*self.0.lock() {
            parker.unpark();
        }
    }
}
