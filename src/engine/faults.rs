//! The faults of an [unreliable network](super::unreliable), chosen by a seed.

use std::collections::VecDeque;

use super::{EngineError, RowBatch};
use crate::split_mix64::SplitMix64;

/// The maximum number of delayed copies that have not arrived yet. Once it is reached, the next
/// call first delivers the oldest copy.
pub const MAX_LATE_COPIES: usize = 64;

/// The probability of each fault, in per mille, and the longest delays. The default has no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests that never arrive: they are not applied, and return [`EngineError::Undetermined`].
    pub lost_requests: u16,
    /// Changes whose reply never arrives: they are applied, and return
    /// [`EngineError::Undetermined`].
    pub lost_replies: u16,
    /// Calls of [`Engine::apply`](super::Engine::apply) that apply only their first few batches,
    /// and return [`EngineError::Undetermined`]. No batch is split.
    pub truncated_requests: u16,
    /// Changes that arrive twice in a row. The client gets the reply to one of the two copies.
    pub duplicates: u16,
    /// Calls of [`Engine::apply`](super::Engine::apply) of which a delayed copy arrives much later.
    pub late_duplicates: u16,
    /// The maximum number of calls until a delayed copy arrives; 0 counts as 1.
    pub late_calls_max: u64,
    /// Requests and replies that are delayed. For each call the two are drawn independently.
    pub delays: u16,
    /// The maximum delay in milliseconds; 0 counts as 1.
    pub delay_max_ms: u64,
}

impl Faults {
    /// All faults, with probabilities at which a short run meets each of them.
    pub fn bad_network() -> Self {
        Self {
            lost_requests: 60,
            lost_replies: 60,
            truncated_requests: 60,
            duplicates: 60,
            late_duplicates: 120,
            late_calls_max: 200,
            delays: 60,
            delay_max_ms: 50,
        }
    }
}

/// The number of times that each fault has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Changes and reads that never arrived.
    pub lost_requests: u64,
    /// Changes that arrived, but whose reply was lost.
    pub lost_replies: u64,
    /// Calls of [`Engine::apply`](super::Engine::apply) of which only the first batches arrived.
    pub truncated_requests: u64,
    /// Changes that arrived twice in a row.
    pub duplicates: u64,
    /// Duplicates of which the client got the second reply.
    pub second_replies: u64,
    /// Delayed copies made of calls of [`Engine::apply`](super::Engine::apply).
    pub late_copies: u64,
    /// Delayed copies that have arrived.
    pub late_deliveries: u64,
    /// Delayed copies that were applied, because their preconditions still held.
    pub late_applied: u64,
    /// Delayed requests and delayed replies; a call can count twice.
    pub delays: u64,
}

pub(super) struct FaultPlan {
    pub faults: Faults,
    pub dice: SplitMix64,
    pub injected: FaultCounts,
    pub calls: u64,
    pub late: VecDeque<Late>,
}

/// A delayed copy, and the number of the call before which it arrives.
pub(super) struct Late {
    pub due: u64,
    pub batches: Vec<RowBatch>,
}

/// The faults of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallPlan {
    pub request_delay_ms: u64,
    pub reply_delay_ms: u64,
    pub delivery: Delivery,
    pub reply_lost: bool,
}

/// How often a request arrives, and which reply is sent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Delivery {
    Never,
    #[default]
    Once,
    TwiceFirstReply,
    TwiceSecondReply,
}

impl Delivery {
    pub fn deliver<T>(self, change: impl Fn() -> Result<T, EngineError>) -> Result<T, EngineError> {
        let first = change();
        match self {
            Self::Never | Self::Once => first,
            Self::TwiceFirstReply => {
                // The second reply is discarded.
                let _ = change();
                first
            }
            Self::TwiceSecondReply => change(),
        }
    }
}

/// The kind of a call, which decides the possible faults.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    Read,
    Change,
}

impl FaultPlan {
    pub fn plan_call(&mut self, kind: CallKind) -> CallPlan {
        self.calls += 1;
        let faults = self.faults;
        let changes = kind == CallKind::Change;
        let (request_delay_ms, reply_delay_ms) = (self.delay(), self.delay());
        let lost = self.dice.happens(faults.lost_requests);
        let reply_lost = self.dice.happens(faults.lost_replies) && changes && !lost;
        let twice = self.dice.happens(faults.duplicates) && changes;
        let second = self.dice.happens(500);
        let delivery = match (lost, twice, second) {
            (true, ..) => Delivery::Never,
            (false, false, _) => Delivery::Once,
            (false, true, false) => Delivery::TwiceFirstReply,
            (false, true, true) => Delivery::TwiceSecondReply,
        };
        let reply_delay_ms = if lost { 0 } else { reply_delay_ms };
        let plan = CallPlan { request_delay_ms, reply_delay_ms, delivery, reply_lost };
        let seen_second = delivery == Delivery::TwiceSecondReply && !reply_lost;
        self.injected.lost_requests += u64::from(lost);
        self.injected.lost_replies += u64::from(reply_lost);
        self.injected.duplicates += u64::from(twice && !lost);
        self.injected.second_replies += u64::from(seen_second);
        self.injected.delays += u64::from(plan.request_delay_ms > 0) + u64::from(plan.reply_delay_ms > 0);
        plan
    }

    fn delay(&mut self) -> u64 {
        let happens = self.dice.happens(self.faults.delays);
        let millis = self.dice.up_to(self.faults.delay_max_ms);
        if happens { millis } else { 0 }
    }

    /// Removes and returns the delayed copies that arrive before this call.
    pub fn due(&mut self) -> Vec<Late> {
        let surplus = (self.late.len() + 1).saturating_sub(MAX_LATE_COPIES);
        let mut due: Vec<Late> = self.late.drain(..surplus).collect();
        for copy in std::mem::take(&mut self.late) {
            if copy.due <= self.calls {
                due.push(copy);
            } else {
                self.late.push_back(copy);
            }
        }
        due
    }

    /// Decides whether a delayed copy of the request is made, and whether the request itself is
    /// truncated. Returns how many of the first batches arrive; `None`: all of them.
    pub fn plan_copies(&mut self, batches: &[RowBatch], arrives: bool) -> Option<usize> {
        let late = self.dice.happens(self.faults.late_duplicates);
        let by = self.dice.up_to(self.faults.late_calls_max);
        let truncated = self.dice.happens(self.faults.truncated_requests);
        let count = self.dice.up_to(batches.len().saturating_sub(1) as u64);
        if late {
            self.late.push_back(Late { due: self.calls.saturating_add(by), batches: batches.to_vec() });
            self.injected.late_copies += 1;
        }
        let truncated = truncated && arrives && batches.len() > 1;
        self.injected.truncated_requests += u64::from(truncated);
        truncated.then(|| usize::try_from(count).unwrap_or(usize::MAX))
    }
}
