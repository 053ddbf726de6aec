//! The entries of a store's status: transactions, conflicts and row locks in their JSON form.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::error::Conflict;
use crate::json_forms::{millis, seconds, text, text_or_none};
use crate::protocol::TxnStatus;
use crate::store::introspect::active_readers::{ActiveKind, ActiveTransaction};
use crate::store::introspect::retrying_calls::RetryingCall;
use crate::store::introspect::row_locks::RowLock;
use crate::store::introspect::slow_log::{SlowTransaction, TxnOutcome};
use crate::timestamp::Timestamp;

/// An active transaction or snapshot: [`ActiveTransaction`] in a
/// [`StoreStatus`](crate::StoreStatus).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields of `ActiveTransaction`")]
pub struct ActiveTransactionStatus {
    /// `transaction` or `snapshot`.
    pub kind: String,
    pub label: Option<String>,
    pub owner_id: Option<String>,
    #[serde(with = "text_or_none")]
    pub start_ts: Option<Timestamp>,
    #[serde(with = "text")]
    pub read_ts: Timestamp,
    #[serde(rename = "age_s", with = "seconds")]
    pub age: Duration,
    pub buffered_rows: u64,
    pub buffered_bytes: u64,
    pub is_large: bool,
    #[serde(default)]
    pub locked_rows: u64,
    pub is_expired: bool,
}

/// A call of `transact` that retries: [`RetryingCall`] in a [`StoreStatus`](crate::StoreStatus).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields of `RetryingCall`")]
pub struct RetryingCallStatus {
    pub label: Option<String>,
    #[serde(rename = "age_s", with = "seconds")]
    pub age: Duration,
    pub failed_attempts: u32,
    pub last_conflict: ConflictStatus,
}

/// A slow transaction: [`SlowTransaction`] in a [`StoreStatus`](crate::StoreStatus).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields of `SlowTransaction`")]
pub struct SlowTransactionStatus {
    pub label: Option<String>,
    pub owner_id: String,
    #[serde(with = "text")]
    pub start_ts: Timestamp,
    #[serde(rename = "started_at_ms", with = "millis")]
    pub started_at: SystemTime,
    #[serde(rename = "duration_s", with = "seconds")]
    pub duration: Duration,
    /// The duration by phase, in seconds; the keys are those of
    /// [`TimeBreakdown::parts`](crate::store::TimeBreakdown::parts).
    pub breakdown: BTreeMap<String, f64>,
    pub attempts: u32,
    /// `committed`, `rolled back`, `conflict` or `failed`.
    pub outcome: String,
    pub conflicts: Vec<ConflictStatus>,
}

/// A conflict, with its row and the other transaction: [`Conflict`] in a
/// [`StoreStatus`](crate::StoreStatus).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields of `Conflict`")]
pub struct ConflictStatus {
    pub keyspace: Option<String>,
    /// The key, as text if it is UTF-8 without control characters, otherwise escaped.
    pub key: String,
    pub owner_id: Option<String>,
    pub label: Option<String>,
    /// The conflict as text.
    pub message: String,
}

/// A locked row: [`RowLock`] in a [`StoreStatus`](crate::StoreStatus).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields of `RowLock`")]
pub struct RowLockStatus {
    pub keyspace: Option<String>,
    /// The key, as text if it is UTF-8 without control characters, otherwise escaped.
    pub key: String,
    pub owner_id: String,
    #[serde(with = "text")]
    pub start_ts: Timestamp,
    pub primary_keyspace: Option<String>,
    pub primary: String,
    /// `pending`, `committed` or `rolled back`.
    pub txn_status: String,
    /// The commit timestamp, if the transaction is committed.
    #[serde(default, with = "text_or_none")]
    pub commit_ts: Option<Timestamp>,
    pub is_orphan: bool,
}

/// A readable form of a key: as text if it is UTF-8 without control characters, otherwise escaped.
fn display_key(key: &[u8]) -> String {
    match str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}

impl From<&ActiveTransaction> for ActiveTransactionStatus {
    fn from(active: &ActiveTransaction) -> Self {
        Self {
            kind: match active.kind {
                ActiveKind::Transaction => "transaction".into(),
                ActiveKind::Snapshot => "snapshot".into(),
            },
            label: active.label.map(Into::into),
            owner_id: active.owner_id.map(|owner| owner.to_string()),
            start_ts: active.start_ts,
            read_ts: active.read_ts,
            age: active.age,
            buffered_rows: active.buffered_rows,
            buffered_bytes: active.buffered_bytes,
            is_large: active.is_large,
            locked_rows: active.locked_rows,
            is_expired: active.is_expired,
        }
    }
}

impl From<&RetryingCall> for RetryingCallStatus {
    fn from(call: &RetryingCall) -> Self {
        Self {
            label: call.label.map(Into::into),
            age: call.age,
            failed_attempts: call.failed_attempts,
            last_conflict: (&call.last_conflict).into(),
        }
    }
}

impl From<&SlowTransaction> for SlowTransactionStatus {
    fn from(slow: &SlowTransaction) -> Self {
        let parts = slow.breakdown.parts().into_iter();
        let outcome = match &slow.outcome {
            TxnOutcome::Committed(_) => "committed",
            TxnOutcome::RolledBack => "rolled back",
            TxnOutcome::Conflict => "conflict",
            TxnOutcome::Failed(_) => "failed",
        };
        Self {
            label: slow.label.map(Into::into),
            owner_id: slow.owner_id.to_string(),
            start_ts: slow.start_ts,
            started_at: slow.started_at,
            duration: slow.duration,
            breakdown: parts.map(|(phase, took)| (phase.to_owned(), took.as_secs_f64())).collect(),
            attempts: slow.attempts,
            outcome: outcome.into(),
            conflicts: slow.conflicts.iter().map(Into::into).collect(),
        }
    }
}

impl From<&Conflict> for ConflictStatus {
    fn from(conflict: &Conflict) -> Self {
        Self {
            keyspace: conflict.keyspace.clone(),
            key: display_key(conflict.row.user_key()),
            owner_id: conflict.conflicting_owner.map(|owner| owner.to_string()),
            label: conflict.conflicting_label.map(Into::into),
            message: conflict.to_string(),
        }
    }
}

impl From<&RowLock> for RowLockStatus {
    fn from(lock: &RowLock) -> Self {
        let (txn_status, commit_ts) = match lock.txn_status {
            TxnStatus::Pending => ("pending", None),
            TxnStatus::Committed(ts) => ("committed", Some(ts)),
            TxnStatus::RolledBack => ("rolled back", None),
        };
        Self {
            keyspace: lock.keyspace.clone(),
            key: display_key(lock.row.user_key()),
            owner_id: lock.owner_id.to_string(),
            start_ts: lock.start_ts,
            primary_keyspace: lock.primary_keyspace.clone(),
            primary: display_key(lock.primary.user_key()),
            txn_status: txn_status.into(),
            commit_ts,
            is_orphan: lock.is_orphan,
        }
    }
}
