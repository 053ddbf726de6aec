//! Long work that tells how far it is, and asks whether to go on.

use std::ops::ControlFlow;

use crate::error::{ErrorKind, Result};

/// What the progress callback of [`Store::verify`](crate::Store::verify), [`Builder::repair`](crate::Builder::repair),
/// [`Snapshot::dump`](crate::Snapshot::dump) and [`Store::restore`](crate::Store::restore) answers: nothing, or
/// [`ControlFlow`], which stops the work where it says [`Break`](ControlFlow::Break). The call answers
/// [`ErrorKind::Cancelled`] then.
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// use std::ops::ControlFlow;
/// use percolite::{ErrorKind, Store};
///
/// let store = Store::in_memory()?;
/// assert!(store.verify(|so_far| println!("{} cells", so_far.cells()))?.is_ok());
/// let stopped = store.verify(|_| ControlFlow::Break(())).unwrap_err();
/// assert!(matches!(stopped.kind(), ErrorKind::Cancelled(_)));
/// # Ok(()) }
/// ```
pub trait IntoControlFlow {
    /// Whether to go on.
    fn into_control_flow(self) -> ControlFlow<()>;
}

/// Goes on.
impl IntoControlFlow for () {
    fn into_control_flow(self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl IntoControlFlow for ControlFlow<()> {
    fn into_control_flow(self) -> ControlFlow<()> {
        self
    }
}

/// An error where the callback wants no more; `what` says what has become of the work.
pub fn check_progress(answer: impl IntoControlFlow, what: impl FnOnce() -> String) -> Result<()> {
    match answer.into_control_flow() {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ErrorKind::Cancelled(what()).into()),
    }
}
