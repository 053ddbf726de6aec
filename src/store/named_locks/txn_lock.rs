//! The named lock of a call of [`Store::transact_with_lock`](crate::Store::transact_with_lock).

use std::sync::Arc;

use crate::error::Result;
use crate::lock_manager::RequestHandle;
use crate::store::handle::Store;
use crate::store::named_locks::fence::Fence;
use crate::store::named_locks::state::NamedLocks;
use crate::store::txn::Txn;

/// The lock that is held during all attempts of one call, and fences each attempt.
#[derive(Clone)]
pub(crate) struct TxnLock {
    fence: Fence,
    request: Arc<RequestHandle>,
}

impl TxnLock {
    /// The request must be granted and its grant activated.
    pub fn new(locks: &NamedLocks, request: RequestHandle) -> Self {
        let fence = Fence { grant: Arc::clone(request.grant()), store: locks.store };
        Self { fence, request: Arc::new(request) }
    }

    pub(in crate::store) fn fence(&self, txn: &mut Txn) -> Result<()> {
        txn.add_lock_fence(&self.fence, Some(&self.request))
    }

    /// Releases the lock if the commit has not done so, and forgets the ended grants of its name
    /// for which no later grant has to wait.
    pub fn release(&self, store: &Store) {
        self.request.release();
        if let (Some(locks), Ok(authority)) = (&store.inner.locks, store.inner.lock_authority()) {
            locks.manager.prune(&self.fence.grant.name, authority.durable_ts());
        }
    }
}
