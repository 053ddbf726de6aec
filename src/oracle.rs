//! The timestamp oracle that several clients of a shared engine use. A store that has its engine
//! for itself has an oracle of its own, in this process.

use std::sync::Arc;

use crate::engine::EngineError;
use crate::env::Env;
use crate::local_oracle::LocalOracle;
use crate::timestamp::Timestamp;

/// A timestamp oracle that several clients of an engine share.
///
/// It must allocate each timestamp after the request for it began. A client that allocates a block
/// of timestamps for later requests breaks the order that reads depend on.
pub trait Oracle: Send + Sync {
    /// A timestamp greater than every other whose request ended before this one began.
    fn timestamp(&self) -> Result<Timestamp, EngineError>;
}

/// A shared oracle in memory, for simulated clients of one engine. Nothing of it is durable.
pub struct MemoryOracle {
    oracle: LocalOracle,
    env: Arc<dyn Env>,
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
