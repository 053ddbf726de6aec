//! Repeats requests to a shared engine whose reply was lost.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::storage::Column;
use crate::engine::{EngineError, EngineSnapshot, OnCell, PageBuffer, PageRequest, RowRange, ScanVisitor};
use crate::env::Env;
use crate::row::{RowKey, TxnRecord, WriteRecord};
use crate::timestamp::Timestamp;
use crate::value::Value;

/// Maximum number of attempts at a request whose reply is lost.
pub const UNKNOWN_RETRIES_MAX: u32 = 50;
/// The pause before a request is repeated.
pub const RETRY_DELAY: Duration = Duration::from_millis(2);

/// Repeats an idempotent request whose reply is lost.
pub fn retry_unknown<T>(env: &dyn Env, mut request: impl FnMut() -> Result<T, EngineError>) -> Result<T, EngineError> {
    for _ in 1..UNKNOWN_RETRIES_MAX {
        match request() {
            Err(EngineError::Undetermined(_)) => env.sleep(RETRY_DELAY),
            reply => return reply,
        }
    }
    request()
}

/// An engine snapshot whose reads are repeated if a reply is lost. Only `scan_raw` is not: its
/// visitor could see a cell twice.
pub struct RetryingSnapshot {
    pub view: Arc<dyn EngineSnapshot>,
    pub env: Arc<dyn Env>,
}

impl EngineSnapshot for RetryingSnapshot {
    fn get_cell(&self, column: Column, row: &RowKey, on_cell: OnCell<'_>) -> Result<(), EngineError> {
        retry_unknown(&*self.env, || self.view.get_cell(column, row, &mut *on_cell))
    }

    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError> {
        retry_unknown(&*self.env, || self.view.txn_record(row, start_ts))
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Value>, EngineError> {
        retry_unknown(&*self.env, || self.view.data(row, start_ts))
    }

    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError> {
        retry_unknown(&*self.env, || self.view.version_at(row, upto))
    }

    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError> {
        retry_unknown(&*self.env, || self.view.scan_page(column, page, cells))
    }

    fn scan_raw(&self, column: Column, range: &RowRange, visit: ScanVisitor<'_>) -> Result<(), EngineError> {
        self.view.scan_raw(column, range, visit)
    }
}
