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
//! The whole rule: *a committer becomes the leader if there is no leader, and then writes the whole
//! queue. A durable commit syncs all that is visible if no sync is running; otherwise it waits for
//! a sync.* No write and no sync is delayed in the hope of a larger group.
//!
//! # Visible and durable
//!
//! Every commit at or below `visible_ts` is applied, and one shared view shows exactly these
//! commits. Every commit at or below `durable_ts` survives a power cut. Once a commit is visible,
//! its rows, row-queue tickets and permit are free; only the acknowledgement waits for the disk.
//!
//! Read-write transactions read at `visible_ts`, so they may read commits that are not durable yet.
//! Such reads are safe: the log is one sequence, so a later commit cannot survive without the
//! earlier commits that it has read, and no result that depends on them is acknowledged as durable
//! before they are durable. `DESIGN.md`, section 5, has the proof.
//!
//! # Parts
//!
//! | part | owns |
//! |---|---|
//! | [`group_commit`], [`queue`], [`write_group`], [`reply`] | the leader's round, the replies |
//! | [`precheck`], [`conflict_set`], [`bloom`] | the leader's memory of locks and commits |
//! | [`space`] | what is refused on a full disk |
//! | [`group_sync`] | the durable view, the syncs and their waiters |
//! | [`views`], [`snapshot_list`] | the visible view, the views in use |
//! | [`fates`] | transactions that are finished and still have locks |
//! | [`timestamps`] | allocation from the durable reservation |
//! | [`failure`] | the reason why no further call succeeds |
//!
//! [`pipeline`] constructs the parts, each with the other parts that it uses.

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
mod space;
mod submission;
mod timestamps;
mod views;
mod write_group;

pub use fates::{Fate, LockCleanup};
pub use pipeline::Pipeline;
pub use submission::{Rejection, Submission, SubmissionKind, SubmitResult};
