//! The timestamp oracle that several clients of a shared engine use. A store on an exclusive engine
//! has an oracle of its own, in its process.

use std::fmt;
use std::sync::Arc;

use crate::engine::EngineError;
use crate::env::Env;
use crate::local_oracle::LocalOracle;
use crate::timestamp::Timestamp;

/// A timestamp oracle that several clients of an engine share.
///
/// Each timestamp must be allocated after the request for that timestamp began. A client must not
/// allocate timestamps in advance, for later requests: a commit could then get a timestamp below
/// the `read_ts` of a reader that has already read without it.
pub trait Oracle: Send + Sync {
    /// A timestamp greater than those of all requests that ended before this request began.
    fn timestamp(&self) -> Result<Timestamp, EngineError>;
}

/// A shared oracle in memory, for simulated clients of one engine. Nothing of it is durable.
pub struct MemoryOracle {
    oracle: LocalOracle,
    env: Arc<dyn Env>,
}

impl fmt::Debug for MemoryOracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryOracle").field("oracle", &self.oracle).finish_non_exhaustive()
    }
}

impl MemoryOracle {
    /// An oracle that reads the wall clock of `env`.
    pub fn new(env: Arc<dyn Env>) -> Self {
        let oracle = LocalOracle::new(Timestamp::ZERO);
        oracle.reserve_until(Timestamp::MAX);
        Self { oracle, env }
    }
}

impl Oracle for MemoryOracle {
    fn timestamp(&self) -> Result<Timestamp, EngineError> {
        let used_up = || EngineError::Corruption("the timestamp oracle is exhausted".into());
        self.oracle.next(self.env.unix_millis()).ok_or_else(used_up)
    }
}
