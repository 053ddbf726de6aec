//! Progress callbacks of long calls, which can cancel the call.

use std::ops::ControlFlow;

use crate::error::{ErrorKind, Result};

/// The result of the progress callback of [`Store::verify`](crate::Store::verify),
/// [`Builder::repair`](crate::Builder::repair), [`Snapshot::dump`](crate::Snapshot::dump) and
/// [`Store::restore`](crate::Store::restore): `()`, or a [`ControlFlow`].
/// [`Break`](ControlFlow::Break) cancels the call, which then returns [`ErrorKind::Cancelled`].
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
    /// Whether to continue.
    fn into_control_flow(self) -> ControlFlow<()>;
}

/// `()` always continues.
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

/// Fails if the callback cancels the call. `what` is the text of the error: how far the call got,
/// and what remains of its work.
pub fn check_progress(result: impl IntoControlFlow, what: impl FnOnce() -> String) -> Result<()> {
    match result.into_control_flow() {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ErrorKind::Cancelled(what()).into()),
    }
}
