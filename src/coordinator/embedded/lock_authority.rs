//! The pipeline as the authority for named locks: see [`LockAuthority`].
//!
//! Fencing tokens and commit timestamps come from the same allocator. So a token is above every
//! commit that was decided before it; [`drain`](LockAuthority::drain) waits until those commits are
//! visible.

use std::sync::Arc;

use super::super::LockAuthority;
use crate::error::Result;
use crate::lock_manager::LockManager;
use crate::pipeline::Pipeline;
use crate::read_view::ReadView;
use crate::timestamp::Timestamp;

/// The pipeline as the authority for grants.
pub struct PipelineAuthority(pub Arc<Pipeline>);

impl LockAuthority for PipelineAuthority {
    fn manager(&self) -> &Arc<LockManager> {
        self.0.named_locks()
    }

    fn token(&self) -> Result<Timestamp> {
        let token = self.0.timestamps().next();
        self.0.timestamps().request_reservation();
        token
    }

    #[cfg(feature = "tokio")]
    fn try_token(&self) -> Option<Timestamp> {
        let token = self.0.timestamps().try_next();
        self.0.timestamps().request_reservation();
        token
    }

    fn drain(&self) -> Result<()> {
        self.0.drain()
    }

    fn visible_view(&self) -> Arc<ReadView> {
        self.0.views().visible()
    }

    fn durable_ts(&self) -> Timestamp {
        self.0.sync().durable_ts()
    }

    fn wait_durable(&self, ts: Timestamp) -> Result<()> {
        // The error of the sync is *undetermined*. This caller has committed nothing, so it gets
        // *closed* instead.
        self.0.sync().wait_durable(ts).map_err(|_| self.0.failure().ended_error())
    }
}
