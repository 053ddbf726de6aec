//! Errors of engines.

use crate::option_ranges::OptionOutOfRange;

/// Why a call of an engine failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A change may or may not have been applied; or a read or a sync has failed in a way that no
    /// other variant describes.
    #[error("the engine failed; the request may or may not have been applied: {0}")]
    Undetermined(String),
    /// The request exceeds the engine's [`Capabilities`](super::Capabilities); nothing was applied.
    #[error("{what} of {requested} exceeds the engine's limit of {limit}")]
    Limit {
        /// The quantity that is too large.
        what: &'static str,
        /// The requested value.
        requested: usize,
        /// The greatest allowed value.
        limit: usize,
    },
    /// The stored data is damaged. Nothing was applied.
    #[error("{0}")]
    Corruption(String),
    /// The directory is not a store, or is a store of another format; nothing was changed.
    #[error("{0}")]
    NotAStore(String),
    /// The engine is in use by another process or handle.
    #[error("{0}")]
    AlreadyOpen(String),
    /// This engine does not support the request.
    #[error("this engine cannot {0}")]
    Unsupported(&'static str),
    /// A file operation failed: opening, copying, a checkpoint, the status file. Such a failure is
    /// no sign of damaged data.
    #[error("{0}")]
    Io(String),
    /// An option is out of its bounds; nothing was changed.
    #[error(transparent)]
    InvalidOption(#[from] OptionOutOfRange),
}

impl EngineError {
    /// The error of a request of which a part was applied already.
    pub(crate) fn after_write(self) -> Self {
        match self {
            Self::Corruption(text) => Self::Undetermined(text),
            error => error,
        }
    }
}
