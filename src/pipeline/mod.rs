//! The commit pipeline of a store that one process has for itself.
//!
//! ```text
//!   committers ──> queue ──> leader, one at a time                   one sync at a time
//!                             check preconditions, from memory         sample the visible view
//!                             allocate commit_ts                       engine.sync()
//!                             one engine.apply for all winners         publish it as the durable view
//!                             publish the visible view, answer         wake all commits that it covers
//! ```
//!
//! That is the whole rule: *a committer leads if there is no leader, and then decides the whole queue;
//! a durable commit syncs if no sync runs, and that covers all that is visible; else it waits.*
//!
//! Two timestamps follow from it. Everything at or below `visible_ts` is applied, and one shared view
//! shows exactly that. Everything at or below `durable_ts` survives a power cut. Read-write
//! transactions read at `visible_ts`, so they may read what is not durable yet. That is honest because
//! nothing that depends on it is acknowledged before it is durable itself: the log is one sequence, and
//! a later commit cannot survive without the earlier one.
//!
//! | part | owns |
//! |---|---|
//! | [`group_commit`] | the queue, the leader's round |
//! | [`precheck`], [`conflict_set`], [`bloom`] | the leader's memory of locks and commits |
//! | [`group_sync`] | the durable view, the syncs and their waiters |
//! | [`views`], [`snapshot_list`] | the visible view, the views in use |
//! | [`fates`] | transactions that are finished and still have locks |
//! | [`timestamps`] | allocation from the durable reservation |
//! | [`failure`] | the reason why no further call succeeds |
//!
//! Each part is handed what it uses; [`pipeline`] puts them together.

mod bloom;
mod conflict_set;
mod failure;
mod fates;
mod group_commit;
mod group_sync;
#[allow(clippy::module_inception, reason = "the folder is named after what it holds, and so is the file")]
mod pipeline;
mod precheck;
mod queue;
mod reply;
mod snapshot_list;
mod submission;
mod timestamps;
mod views;

pub use fates::{Fate, LockCleanup};
pub use pipeline::Pipeline;
pub use submission::{Rejection, Submission, SubmissionKind, SubmitResult};
