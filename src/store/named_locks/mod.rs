//! Named locks as programs use them: locks on a name, taken by the user, as PostgreSQL's advisory
//! locks. They are not row locks, which the protocol sets on rows of a transaction.
//!
//! ```text
//!   lock ──> request (lock_manager) ──> granted in memory
//!        ──> activate: drain, min_read_ts, token, lease row, durable, check ──> guard
//!   fence ──> condition of a transaction ──> checked by the leader of the commit pipeline
//! ```
//!
//! - `LockManager`, in `lock_manager`, has the requests and grants in memory.
//! - `LockAuthority`, of the coordinator, is the commits' side: timestamps, drain, durability.
//! - `NamedLocks` has what guards keep: the manager, the clock and the lease renewer.
//! - `LockService` is made for each call, of all of these and the store.
//!
//! How the end of a grant rejects a fenced commit: `Txn::fence` adds the grant to the conditions of
//! the transaction. Before the commit is queued, `InFlightFences` adds one to the grant's number of
//! commits in flight, so that the next grant waits for the commit. The leader calls
//! `InFlightFences::first_lost` when it decides the commit, and rejects the commit if the grant has
//! ended. The coordinator turns the rejection into [`LockLost`](crate::ErrorKind::LockLost). A
//! transaction that only reads checks its grants when it ends.
//!
//! `docs/locks.md` in the repository has the design: the purpose of each step, and what was
//! rejected.

mod acquire;
mod activate;
pub(in crate::store) mod background;
mod by_token;
pub(in crate::store) mod errors;
pub(in crate::store) mod fence;
pub(in crate::store) mod guard;
pub(in crate::store) mod inspect;
mod lease_renewer;
pub(in crate::store) mod lease_row;
pub(in crate::store) mod lease_rows;
pub(in crate::store) mod load_leases;
pub(in crate::store) mod locked_txn;
pub(in crate::store) mod options;
mod renew_leases;
pub(in crate::store) mod request;
pub(in crate::store) mod service;
pub(in crate::store) mod state;
pub(in crate::store) mod txn_lock;
