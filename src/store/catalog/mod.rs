//! The catalog: the keyspaces of the store.
//!
//! It is a keyspace of its own, with id 0, changed by ordinary transactions. So creating and
//! dropping keyspaces is atomic, durable and versioned. Its rows are:
//!
//! ```text
//!   name/<name>      -> the keyspace's id
//!   next             -> the id of the next keyspace; never decreases
//!   dropped/<id>     -> empty: its rows are to be deleted; `new`: staged, without a name yet
//!   lock/<name>      -> the leases of this named lock: see `named_locks::lease_row`
//!   restored         -> the last restored dump: see `restore_origin`
//!   restored/<id>    -> the keyspace here that has this id in the dump
//! ```
//!
//! A keyspace is dropped in two steps ([`drop`](mod@drop)) and restored in two ([`staging`]).
//! [`visibility`] is what a view shows of a keyspace in each step.

pub(in crate::store) mod drop;
pub(in crate::store) mod entries;
pub(in crate::store) mod handles;
pub(in crate::store) mod incremental_restore;
mod keyspaces;
pub(in crate::store) mod reader;
pub(in crate::store) mod restore_origin;
pub(in crate::store) mod staging;
pub(in crate::store) mod visibility;
pub(in crate::store) mod visibility_cache;
