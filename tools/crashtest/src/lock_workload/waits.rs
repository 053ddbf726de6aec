//! How waits end: granted, refused, cancelled, or because the lock is lost.

use std::time::Duration;

use percolite::{CancelToken, Error, ErrorKind, LockEntry, LockState, LockWaitPolicy};

use super::client::{HeldLock, LockClient, LockRequest};
use super::event::{LogicalTime, nanos};

/// A wait must end within this time after its timeout, its cancellation, or the loss of the lock.
const LATE_WAIT: Duration = Duration::from_secs(60);
/// The longest wait for the loss of a lock: longer than [`LATE_WAIT`], so that a loss that was not
/// noticed is.
const WAIT_LOST_MAX: Duration = Duration::from_secs(100);

/// How often, and for how long each time, a holder waits for a request that it cancels.
const MOMENTS: usize = 200;
const MOMENT: Duration = Duration::from_micros(50);

/// The reason that a request states, by which its entry in the lock table is recognized.
pub fn reason_of(requested: LogicalTime) -> String {
    format!("{}.{}", requested.incarnation, requested.tick)
}

impl LockClient<'_> {
    /// Checks the error of a request that got no grant: a wait that timed out must have ended
    /// neither before its timeout nor long after, and a request without a grant leaves nothing.
    /// Returns all errors but an expected refusal.
    pub(super) fn check_refusal(
        &self,
        request: &LockRequest,
        requested: LogicalTime,
        error: Error,
    ) -> Result<(), Error> {
        let took = Duration::from_nanos(self.events.now().time.saturating_sub(requested.time));
        let is_refused = matches!(error.kind(), ErrorKind::LockNotAvailable(_) | ErrorKind::Cancelled(_));
        if let Some(entry) = self.entry_of(&reason_of(requested)).filter(|_| is_refused) {
            let what = format!("lock: cleanup: a request was refused, {error}, and left {entry:?}");
            return Err(ErrorKind::Corruption(what).into());
        }
        match (error.kind(), request.wait) {
            (ErrorKind::LockNotAvailable(_), LockWaitPolicy::NoWait) => return Ok(()),
            (ErrorKind::LockNotAvailable(_), LockWaitPolicy::Timeout(time))
                if took >= time && took < time + LATE_WAIT =>
            {
                self.env.shared.counts.lock().timed_out += 1;
                return Ok(());
            }
            (ErrorKind::LockNotAvailable(held), wait) => {
                let what = format!("lock: waits end: refused after {took:?} instead of {wait:?}: {held}");
                return Err(ErrorKind::Corruption(what).into());
            }
            (ErrorKind::Cancelled(_), _) => self.env.shared.counts.lock().cancelled += 1,
            _ => {}
        }
        Err(error)
    }

    /// Cancels the wait of another client, for this name or any. The wait must end, also if the
    /// lock does not become free: as by a caller that holds the lock.
    pub(super) fn cancel_a_wait(&mut self, name: Option<&str>) -> Result<(), Error> {
        let mut found = self.take_cancel(name);
        // A holder waits for a request that has just begun: so some cancellations come while the
        // wait registers.
        for _ in 0..if name.is_some() { MOMENTS } else { 0 } {
            if found.is_some() {
                break;
            }
            self.env.runtime.sleep(MOMENT);
            found = self.take_cancel(name);
        }
        let Some((name, reason, cancel)) = found else { return Ok(()) };
        cancel.cancel();
        let cancelled = self.env.runtime.elapsed();
        let mut pause = Duration::from_millis(1);
        while let Some(entry) = self.entry_of(&reason).filter(|entry| matches!(entry.state, LockState::Waiting)) {
            let took = self.env.runtime.elapsed().saturating_sub(cancelled);
            if took > LATE_WAIT {
                let what =
                    format!("lock: waits end: {name:?} is waited for {took:?} after the cancellation: {entry:?}");
                return Err(ErrorKind::Corruption(what).into());
            }
            self.env.runtime.sleep(pause);
            pause *= 2;
        }
        Ok(())
    }

    fn take_cancel(&self, name: Option<&str>) -> Option<(String, String, CancelToken)> {
        let mut cancels = self.env.shared.cancels.lock();
        let at = cancels.iter().rposition(|(of, ..)| name.is_none_or(|name| of == name));
        at.map(|at| cancels.swap_remove(at))
    }

    fn entry_of(&self, reason: &str) -> Option<LockEntry> {
        let table = self.env.store.lock_table().ok()?;
        table.entries.into_iter().find(|entry| entry.reason.as_deref() == Some(reason))
    }

    /// Waits until the lock is lost. Once another client's call has ended the grant, the wait must
    /// not go on.
    pub(super) fn wait_lost(&mut self, held: &mut HeldLock<'_>) -> Result<(), Error> {
        let time = if self.env.is_simulated {
            WAIT_LOST_MAX
        } else {
            Duration::from_millis(self.rng.below(self.pause_max_ms.max(1)) as u64)
        };
        let is_lost = held.guard()?.wait_lost(time);
        let (now, ended) = (self.events.now(), self.env.shared.end_times.lock().get(&held.token).copied());
        if let Some(late) = ended.and_then(|ended| now.time.checked_sub(ended)).filter(|late| *late > nanos(LATE_WAIT))
        {
            let late = Duration::from_nanos(late);
            let what = format!("lock: waits end: wait_lost returned {late:?} after the end of grant {}", held.token);
            return Err(ErrorKind::Corruption(what).into());
        }
        if is_lost && held.is_held() {
            let what = format!("lock: ownership: wait_lost says that grant {} is lost, and it is held", held.token);
            return Err(ErrorKind::Corruption(what).into());
        }
        Ok(())
    }
}
