//! The process that opened a store.
//!
//! `fork` gives the child a copy of every handle, but none of the store's threads, and a mutex that
//! another thread had locked stays locked in the child. Both processes would append to the same
//! place of the same log. So in the child every call fails, and dropping a handle does nothing: it
//! waits for no thread, locks no mutex, writes nothing and unlocks nothing. What the handle kept in
//! memory stays there until the child ends.
//!
//! The C library calls a handler in each child that `fork` makes. The handler counts, so a check is
//! one read of a counter, and every call can afford it. A child by `_Fork`, or by a bare system
//! call such as `clone`, calls no handler. So where a call would write, sync or close, process ids
//! are compared as well, which is a system call.

use forkguard::Guard;

/// A process, for the question whether the code runs in it or in a child of it.
#[derive(Clone, Debug)]
pub struct Process {
    id: u32,
    /// `None` if the handler could not be registered. Then process ids are compared.
    forks: Option<Guard>,
}

impl Process {
    /// The process that calls.
    pub fn current() -> Self {
        Self { id: std::process::id(), forks: Guard::try_new().ok() }
    }

    /// Whether this is the process that calls.
    #[inline]
    pub fn is_current(&self) -> bool {
        match &self.forks {
            Some(forks) => !forks.clone().detected_fork(),
            None => self.id == std::process::id(),
        }
    }

    /// Whether this is the process that calls, also if a child called no handler.
    pub fn is_surely_current(&self) -> bool {
        self.is_current() && self.id == std::process::id()
    }

    /// Why a call is refused in this process; `None` if it is the process that opened the store.
    #[inline]
    pub fn refusal(&self) -> Option<String> {
        if self.is_current() { None } else { Some(self.forked()) }
    }

    /// [`refusal`](Self::refusal), also if a child called no handler.
    pub fn sure_refusal(&self) -> Option<String> {
        if self.is_surely_current() { None } else { Some(self.forked()) }
    }

    #[cold]
    fn forked(&self) -> String {
        format!(
            "process {} was forked from process {}, which had opened a store, and cannot use it: fork first, and open \
             the store in one of the two processes",
            std::process::id(),
            self.id
        )
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::current()
    }
}
