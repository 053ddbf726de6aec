//! The named lock of a call of [`Store::transact_with_lock`](crate::Store::transact_with_lock).

use std::sync::Arc;

use crate::error::Result;
use crate::lock_manager::RequestHandle;
use crate::store::named_locks::fence::Fence;
use crate::store::txn::Txn;

/// The lock that is held during all attempts of one call, and fences each attempt.
#[derive(Clone)]
pub(crate) struct TxnLock {
    pub(super) fence: Fence,
    pub(super) request: Arc<RequestHandle>,
}

impl TxnLock {
    pub(in crate::store) fn fence(&self, txn: &mut Txn) -> Result<()> {
        txn.add_lock_fence(&self.fence, Some(&self.request))
    }
}
