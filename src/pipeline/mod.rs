//! The commit pipeline of a store that this process has open exclusively.
//!
//! ```text
//! committers ─> queue ─> leader, one at a time              sync, one at a time
//!                        check preconditions in memory      sample the visible view
//!                        allocate commit_ts                 engine.sync()
//!                        one engine.apply for all passed    publish it as the durable view
//!                        publish the visible view, reply    wake all commits that it covers
//! ```
//!
//! The whole rule: *a committer leads if there is no leader, and then writes the whole queue. A
//! durable commit makes a sync if none is running, for all that is visible; otherwise it waits for
//! one.* No write and no sync is delayed in the hope of a larger group.
//!
//! # Visible and durable
//!
//! Everything at or below `visible_ts` is applied, and one shared view shows exactly that.
//! Everything at or below `durable_ts` survives a power cut. A commit's rows, row-queue tickets and
//! permit are free once it is visible; only its acknowledgement waits for the disk.
//!
//! Read-write transactions read at `visible_ts`, so they may read commits that are not durable yet.
//! That is safe because nothing that depends on such a read is acknowledged before the read commits
//! are durable. The log is one sequence: a later commit cannot survive without the earlier one.
//! [Group sync](group_sync) has the proof.
//!
//! # Parts
//!
//! | part | owns |
//! |---|---|
//! | [`group_commit`], [`queue`], [`write_group`], [`reply`] | the leader's round, the replies |
//! | [`precheck`], [`conflict_set`], [`bloom`] | the leader's memory of locks and commits |
//! | [`group_sync`] | the durable view, the syncs and their waiters |
//! | [`views`], [`snapshot_list`] | the visible view, the views in use |
//! | [`fates`] | transactions that are finished and still have locks |
//! | [`timestamps`] | allocation from the durable reservation |
//! | [`failure`] | the reason why no further call succeeds |
//!
//! Each part gets what it uses at its construction, by [`pipeline`].

mod bloom;
mod conflict_set;
mod failure;
mod fates;
mod group_commit;
mod group_sync;
#[allow(clippy::module_inception, reason = "the directory and the file are both named after the type")]
mod pipeline;
mod precheck;
mod queue;
mod reply;
mod snapshot_list;
mod submission;
mod timestamps;
mod views;
mod write_group;

pub use fates::{Fate, LockCleanup};
pub use pipeline::Pipeline;
pub use submission::{Rejection, Submission, SubmissionKind, SubmitResult};
