//! Which rows of a keyspace: options that `scan` and `delete` share.

use std::ffi::OsString;
use std::ops::Bound;

use anyhow::Result;

use crate::bytes::Form;
use crate::exit::Code;

/// The options.
#[derive(clap::Args)]
pub struct Range {
    /// The first key
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// The key before which it ends
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// What keys begin with
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
}

/// Which rows of a keyspace.
#[derive(Debug, PartialEq, Eq)]
pub enum Rows {
    Prefix(Vec<u8>),
    /// From the first up to, and without, the second.
    Between(Option<Vec<u8>>, Option<Vec<u8>>),
}

impl Range {
    pub fn rows(&self, keys: Form) -> Result<Rows> {
        let read = |key: &Option<OsString>| key.as_ref().map(|key| keys.read(key)).transpose();
        match (read(&self.prefix)?, read(&self.from)?, read(&self.to)?) {
            (Some(prefix), ..) => Ok(Rows::Prefix(prefix)),
            (None, Some(from), Some(to)) if from > to => {
                Err(Code::Usage.error("--from lies behind --to: they name the range from below, in either direction"))
            }
            (None, from, to) => Ok(Rows::Between(from, to)),
        }
    }
}

impl Rows {
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        match self {
            Self::Prefix(prefix) => (Bound::Included(prefix), Bound::Unbounded),
            Self::Between(from, to) => (
                from.as_deref().map_or(Bound::Unbounded, Bound::Included),
                to.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
            ),
        }
    }
}
