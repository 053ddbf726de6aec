//! The options `--from`, `--to` and `--prefix` of `scan` and `delete`.

use std::ffi::OsString;
use std::ops::Bound;

use anyhow::Result;

use crate::encoding::Encoding;
use crate::exit::Code;

#[derive(clap::Args)]
pub struct RangeArgs {
    /// The lower bound of the keys, inclusive
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// The upper bound of the keys, exclusive
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Only keys with this prefix
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
}

/// The selected keys of a keyspace.
#[derive(Debug, PartialEq, Eq)]
pub enum KeySelection {
    Prefix(Vec<u8>),
    /// Inclusive lower and exclusive upper bound.
    Range(Option<Vec<u8>>, Option<Vec<u8>>),
}

impl RangeArgs {
    pub fn selection(&self, keys: Encoding) -> Result<KeySelection> {
        let decode = |key: &Option<OsString>| key.as_ref().map(|key| keys.decode_arg(key)).transpose();
        match (decode(&self.prefix)?, decode(&self.from)?, decode(&self.to)?) {
            (Some(prefix), ..) => Ok(KeySelection::Prefix(prefix)),
            (None, Some(from), Some(to)) if from > to => {
                Err(Code::Usage.error("--from is after --to: --from is the lower bound, also of a reverse scan"))
            }
            (None, from, to) => Ok(KeySelection::Range(from, to)),
        }
    }
}

impl KeySelection {
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        match self {
            Self::Prefix(prefix) => (Bound::Included(prefix), Bound::Unbounded),
            Self::Range(from, to) => (
                from.as_deref().map_or(Bound::Unbounded, Bound::Included),
                to.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
            ),
        }
    }
}
