//! The lock queue against an executable specification, in every history of up to six requests.

use std::collections::HashSet;

use super::*;
use LockMode::{Exclusive, Semaphore, Shared};

const DEFINITION: &str = "
a new request is granted immediately if it is compatible with every grant, the waiting
   conversion and every waiting request
when a grant changes:
   1. the waiting conversion, at most one: granted if compatible with every other grant
   2. if the front of the queue is compatible with grants and conversion: it is granted, and
      then, in order, each request after it that is compatible with all grants by then
the queue is in order of arrival
semaphore requests are compatible while fewer than n are granted; on such a name rule 2 stops at
   the first request that is not granted: nothing passes";

const REQUESTS: u64 = 6;
const MODES: [LockMode; 3] = [Exclusive, Shared, Semaphore(2)];

/// Number of a request, its mode, and its value, which a conversion changes.
type Known = (u64, LockMode, u64);

/// The specification over plain lists: without counters, with every rule evaluated in full.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Definition {
    grants: Vec<Known>,
    conversions: Vec<u64>,
    queue: Vec<Known>,
    /// Number of requests made.
    asked: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(LockMode),
    Leave(u64),
    Upgrade(u64),
    CancelUpgrade(u64),
    Downgrade(u64),
}

/// What a step returns, and the requests that it grants, the grants that it converts (up or down),
/// and the upgrades that it aborts.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    said: &'static str,
    granted: Vec<u64>,
    converted: Vec<u64>,
    orphaned: Vec<u64>,
}

fn says(said: &'static str) -> Answer {
    Answer { said, granted: Vec::new(), converted: Vec::new(), orphaned: Vec::new() }
}

fn upgraded(id: u64) -> u64 {
    id + 10
}

fn downgraded(id: u64) -> u64 {
    id + 20
}

impl Definition {
    fn goes_beside(&self, mode: LockMode, other: LockMode) -> bool {
        match (mode, other) {
            (Shared, Shared) => true,
            (Semaphore(most), Semaphore(_)) => {
                self.grants.iter().filter(|(_, granted, _)| matches!(granted, Semaphore(_))).count() < most as usize
            }
            _ => false,
        }
    }

    fn goes_beside_grants(&self, mode: LockMode) -> bool {
        self.grants.iter().all(|(_, granted, _)| self.goes_beside(mode, *granted))
    }

    fn goes_beside_conversions(&self, mode: LockMode) -> bool {
        self.conversions.iter().all(|_| self.goes_beside(mode, Exclusive))
    }

    fn is_granted_at_once(&self, mode: LockMode) -> bool {
        let beside_queue = self.queue.iter().all(|(_, waiting, _)| self.goes_beside(mode, *waiting));
        beside_queue && self.goes_beside_grants(mode) && self.goes_beside_conversions(mode)
    }

    fn is_semaphore(&self) -> bool {
        self.grants.iter().chain(&self.queue).any(|(_, mode, _)| matches!(mode, Semaphore(_)))
    }

    fn is_shared(&self) -> bool {
        self.grants.iter().chain(&self.queue).any(|(_, mode, _)| *mode == Shared)
    }

    fn is_refused(&self, mode: LockMode) -> bool {
        match mode {
            Shared => self.is_semaphore(),
            Semaphore(most) => self.is_shared() || self.is_semaphore() && most != 2,
            Exclusive => false,
        }
    }

    fn changed(&mut self) -> Answer {
        let mut answer = says("done");
        for id in self.conversions.clone() {
            let others = self.grants.iter().filter(|(other, ..)| *other != id);
            if others.map(|(_, mode, _)| *mode).all(|other| self.goes_beside(Exclusive, other)) {
                self.conversions.retain(|other| *other != id);
                for (grant, mode, value) in self.grants.iter_mut().filter(|(other, ..)| *other == id) {
                    answer.converted.push(*value);
                    (*mode, *value) = (Exclusive, upgraded(*grant));
                    answer.granted.push(*value);
                }
            }
        }
        let stops = self.is_semaphore();
        let queue = std::mem::take(&mut self.queue);
        let front = queue.first().map(|(_, mode, _)| *mode);
        let begins = front.is_some_and(|mode| self.goes_beside_grants(mode) && self.goes_beside_conversions(mode));
        for waiting in queue {
            let stopped = stops && !self.queue.is_empty();
            if begins && !stopped && self.goes_beside_grants(waiting.1) {
                answer.granted.push(waiting.2);
                self.grants.push(waiting);
            } else {
                self.queue.push(waiting);
            }
        }
        answer
    }

    fn take(&mut self, step: Step) -> Answer {
        let is_held =
            |definition: &Self, id, mode| definition.grants.iter().any(|grant| (grant.0, grant.1) == (id, mode));
        match step {
            Step::Ask(mode) if self.is_refused(mode) => says("refused"),
            Step::Ask(mode) => {
                let id = self.next_id();
                let (list, said) = if self.is_granted_at_once(mode) {
                    (&mut self.grants, "granted")
                } else {
                    (&mut self.queue, "waits")
                };
                list.push((id, mode, id));
                says(said)
            }
            Step::Leave(id) => {
                self.grants.retain(|(other, ..)| *other != id);
                self.queue.retain(|(other, ..)| *other != id);
                let orphaned = self.conversions.iter().filter(|other| **other == id).map(|id| upgraded(*id)).collect();
                self.conversions.retain(|other| *other != id);
                Answer { orphaned, ..self.changed() }
            }
            Step::Upgrade(id) if !is_held(self, id, Shared) => says("unknown"),
            Step::Upgrade(id) if self.conversions.is_empty() => {
                self.conversions.push(id);
                let answer = self.changed();
                if answer.converted.is_empty() { says("waits") } else { answer }
            }
            Step::Upgrade(_) => says("deadlock"),
            Step::CancelUpgrade(id) if !self.conversions.contains(&id) => says("unknown"),
            Step::CancelUpgrade(id) => {
                self.conversions.retain(|other| *other != id);
                self.changed()
            }
            Step::Downgrade(id) if !is_held(self, id, Exclusive) => says("unknown"),
            Step::Downgrade(_) if self.is_refused(Shared) => says("refused"),
            Step::Downgrade(id) => {
                let mut before = Vec::new();
                for (_, mode, value) in self.grants.iter_mut().filter(|(other, ..)| *other == id) {
                    before.push(*value);
                    (*mode, *value) = (Shared, downgraded(id));
                }
                Answer { converted: before, ..self.changed() }
            }
        }
    }

    fn next_id(&self) -> u64 {
        self.asked + 1
    }
}

/// Takes the step on the lock queue, as `Definition::take` does on the specification.
fn take(queue: &mut LockQueue<u64>, next: u64, step: Step) -> Answer {
    let mut changes = QueueChanges::default();
    let said = match step {
        Step::Ask(mode) if queue.check_mode(mode).is_err() => "refused",
        Step::Ask(mode) if queue.request(next, mode, next) => "granted",
        Step::Ask(_) => "waits",
        Step::Leave(id) => queue.remove(id, &mut changes).map_or("unknown", |_| "done"),
        Step::Upgrade(id) => match queue.upgrade(id, upgraded(id)) {
            UpgradeResult::Granted(before) => {
                changes =
                    QueueChanges { granted: vec![upgraded(id)], replaced: vec![before], aborted_upgrades: Vec::new() };
                "done"
            }
            UpgradeResult::Waiting => "waits",
            UpgradeResult::Deadlock => "deadlock",
            UpgradeResult::NoSuchGrant => "unknown",
        },
        Step::CancelUpgrade(id) if queue.cancel_upgrade(id, &mut changes) => "done",
        Step::CancelUpgrade(_) => "unknown",
        Step::Downgrade(id) => match queue.downgrade(id, downgraded(id), &mut changes) {
            Ok(Some(before)) => {
                changes.replaced.push(before);
                "done"
            }
            Ok(None) => "unknown",
            Err(_) => "refused",
        },
    };
    Answer { said, granted: changes.granted, converted: changes.replaced, orphaned: changes.aborted_upgrades }
}

/// Compares everything that the queue reports and keeps.
fn compare(queue: &LockQueue<u64>, definition: &Definition, history: &[Step]) {
    let context = || format!("after {history:?}, by the specification:{DEFINITION}\n");
    let known = |asked: &QueuedRequest<u64>| (asked.id, asked.mode, asked.value);
    let granted: Vec<Known> = queue.granted().iter().map(known).collect();
    assert_eq!(granted, definition.grants, "granted {}", context());
    assert_eq!(queue.waiting().map(known).collect::<Vec<_>>(), definition.queue, "waiting {}", context());
    let converting: Vec<_> = queue.converting().into_iter().copied().collect();
    let conversions: Vec<_> = definition.conversions.iter().map(|id| (*id, upgraded(*id))).collect();
    assert_eq!(converting, conversions, "converting {}", context());
    let waits = !(definition.queue.is_empty() && definition.conversions.is_empty());
    assert_eq!(queue.has_waiting(), waits, "{}", context());
    assert_eq!(queue.is_empty(), definition.grants.is_empty() && definition.queue.is_empty(), "{}", context());
    for mode in MODES.into_iter().chain([Semaphore(3)]) {
        assert_eq!(queue.check_mode(mode).is_err(), definition.is_refused(mode), "{mode} {}", context());
        if !definition.is_refused(mode) {
            assert_eq!(queue.would_grant(mode), definition.is_granted_at_once(mode), "{mode} {}", context());
        }
    }
    let shared = definition.queue.iter().take_while(|waiting| waiting.1 == Shared).count();
    assert_eq!(queue.front_count(), shared.max(definition.queue.len().min(1)), "at the front {}", context());
    for id in 1..=REQUESTS {
        let before = definition.queue.iter().filter(|waiting| waiting.0 < id).count();
        assert_eq!(queue.waiting_before(id), before, "before request {id} {}", context());
        let there = definition.grants.iter().chain(&definition.queue).find(|known| known.0 == id);
        assert_eq!(queue.find(id).map(known), there.copied(), "request {id} {}", context());
    }
}

fn steps(definition: &Definition) -> Vec<Step> {
    let mut steps = Vec::new();
    if definition.asked < REQUESTS {
        steps.extend(MODES.map(Step::Ask));
    }
    for (id, ..) in definition.grants.iter().chain(&definition.queue) {
        let id = *id;
        steps.extend([Step::Leave(id), Step::Upgrade(id), Step::CancelUpgrade(id), Step::Downgrade(id)]);
    }
    steps
}

/// Every history of any length with at most six requests. A state that was reached before has the
/// same future, and is not explored again.
#[test]
fn every_history_of_six_requests_matches_the_spec() {
    let mut met = HashSet::new();
    let mut open = vec![(Definition::default(), LockQueue::default(), Vec::new())];
    let (mut taken, mut waited, mut deadlocks) = (0_u32, 0_u32, 0_u32);
    while let Some((definition, queue, history)) = open.pop() {
        for step in steps(&definition) {
            let (mut definition, mut queue, mut history) = (definition.clone(), queue.clone(), history.clone());
            history.push(step);
            let by_head = take(&mut queue, definition.next_id(), step);
            let answer = definition.take(step);
            assert_eq!(by_head, answer, "after {history:?}, by the specification:{DEFINITION}\n");
            compare(&queue, &definition, &history);
            taken += 1;
            waited += u32::from(answer.said == "waits");
            deadlocks += u32::from(answer.said == "deadlock");
            if matches!(step, Step::Ask(_)) && answer.said != "refused" {
                definition.asked += 1;
            }
            if met.insert(definition.clone()) {
                open.push((definition, queue, history));
            }
        }
    }
    assert!(met.len() > 5000 && taken > 100_000 && waited > 1000 && deadlocks > 1000, "{} {taken}", met.len());
}

#[test]
#[should_panic(expected = "invariant: a Shared request that leaves its queue was counted when it came")]
fn a_request_that_was_not_counted_breaks_an_invariant() {
    let mut queue = LockQueue::default();
    queue.request(1, Shared, ());
    queue.shared_requests = 0;
    queue.remove(1, &mut QueueChanges::default());
}

#[test]
#[should_panic(expected = "invariant: a conversion waits only while request 9 has its shared grant")]
fn a_conversion_without_its_grant_breaks_an_invariant() {
    let mut queue = LockQueue::default();
    queue.request(1, Shared, ());
    queue.wait_queue.get_or_insert_default().converting = Some((9, ()));
    queue.remove(1, &mut QueueChanges::default());
}
