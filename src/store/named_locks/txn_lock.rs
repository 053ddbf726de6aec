//! The named lock of a transaction that runs under one.

use std::sync::Arc;

use crate::error::Result;
use crate::lock_manager::RequestHandle;
use crate::store::named_locks::fence::Fence;
use crate::store::txn::Txn;

/// The lock under which all attempts of one call run.
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
