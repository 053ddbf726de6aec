//! `adya`'s workloads on a store in a process of its own, so that the process can be killed and its
//! disk cut off.
//!
//! The server runs one transaction for each line that it receives. Requests and answers have the
//! form of `adya`'s own protocol for databases behind a pipe (`adya::db::exec`); here they pass a
//! socket, because one process has the store and several clients use it.

pub mod client;
pub mod request;
pub mod transaction;
