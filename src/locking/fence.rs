//! Fences: the grants by which a transaction is fenced, as conditions of its commit.
//!
//! A fence counts itself in its grant's word before the commit is queued, and takes itself out when the commit is visible or refused.
//! What the next holder has to find is noted before the count goes down.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::entry::LockLost;
use super::grant::{Grant, LostReason};
use super::request::Request;
use crate::timestamp::Timestamp;

/// A condition of a transaction: it commits only while the grant stands.
#[derive(Clone)]
pub struct FencedBy {
    pub grant: Arc<Grant>,
    /// Whether the next conflicting grant has to find the commit durable.
    pub durable: bool,
    /// What the commit releases as soon as it is visible.
    pub releases: Option<Arc<Request>>,
}

/// The conditions of a transaction. Mostly there is none, and seldom more than one: neither allocates. Every submission has one:
/// with a `SmallVec` of one, which is 24 bytes larger, a commit without fences takes 7 % more instructions.
#[derive(Clone, Default)]
pub struct Fences(Kept);

#[derive(Clone, Default)]
enum Kept {
    #[default]
    None,
    /// One that releases nothing.
    Plain(Arc<Grant>, bool),
    Several(Arc<Vec<FencedBy>>),
}

impl Fences {
    pub fn add(&mut self, fence: FencedBy) {
        self.0 = match (std::mem::take(&mut self.0), fence) {
            (Kept::None, FencedBy { grant, durable, releases: None }) => Kept::Plain(grant, durable),
            (Kept::None, fence) => Kept::Several(Arc::new(vec![fence])),
            (Kept::Plain(grant, durable), fence) if Arc::ptr_eq(&grant, &fence.grant) => Kept::Plain(grant, durable),
            (Kept::Plain(grant, durable), fence) => {
                Kept::Several(Arc::new(vec![FencedBy { grant, durable, releases: None }, fence]))
            }
            (Kept::Several(mut several), fence) => {
                if !several.iter().any(|other| Arc::ptr_eq(&other.grant, &fence.grant)) {
                    Arc::make_mut(&mut several).push(fence);
                }
                Kept::Several(several)
            }
        };
    }

    pub fn is_empty(&self) -> bool {
        matches!(self.0, Kept::None)
    }

    fn find(&self, is_it: impl Fn(&Grant) -> bool) -> Option<&Arc<Grant>> {
        match &self.0 {
            Kept::None => None,
            Kept::Plain(grant, _) => Some(grant).filter(|grant| is_it(grant)),
            Kept::Several(several) => several.iter().map(|fence| &fence.grant).find(|grant| is_it(grant)),
        }
    }

    fn for_each(&self, mut of_one: impl FnMut(&Grant, bool)) {
        match &self.0 {
            Kept::None => {}
            Kept::Plain(grant, durable) => of_one(grant, *durable),
            Kept::Several(several) => several.iter().for_each(|fence| of_one(&fence.grant, fence.durable)),
        }
    }
}

/// The fences of a submission that is under way. Counted in their grants until this is dropped.
pub struct Entered(Fences);

impl Entered {
    /// To be called before the submission can be decided.
    pub fn new(fences: &Fences) -> Self {
        fences.for_each(|grant, _| {
            grant.word().fetch_add(1, Ordering::SeqCst);
        });
        Self(fences.clone())
    }

    /// Whether there is any.
    #[cfg(feature = "crashtest")]
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// The first grant that has ended. To be asked when the submission is decided.
    pub fn lost(&self) -> Option<LockLost> {
        let lost = self.0.find(Grant::has_ended)?;
        Some(lost.loss(lost.why_ended().unwrap_or(LostReason::Closed)))
    }

    /// Whether the commit may be acknowledged before it is durable.
    pub fn is_buffered(&self) -> bool {
        let mut is_buffered = false;
        self.0.for_each(|_, durable| is_buffered |= !durable);
        is_buffered
    }

    /// Notes that the commit is visible, and releases what it is to release.
    pub fn published(mut self, commit_ts: Timestamp) {
        let fences = std::mem::take(&mut self.0);
        fences.for_each(|grant, durable| {
            // Before the count goes down: where no commit is found under way, what they owe is found.
            if durable {
                grant.owe(commit_ts);
            }
            grant.word().fetch_sub(1, Ordering::SeqCst);
        });
        if let Kept::Several(several) = &fences.0 {
            for released in several.iter().filter_map(|fence| fence.releases.as_ref()) {
                released.release();
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.for_each(|grant, _| {
            grant.word().fetch_sub(1, Ordering::SeqCst);
        });
    }
}
