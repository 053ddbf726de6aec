//! The transaction clients of a simulation, one thread each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use percolite::{Durability, Error, Keyspace, Store};

use super::super::Mode;
use super::super::clock_offset_ms;
use super::super::engine::{ProcessDead, is_dead};
use super::super::plan::{CLIENT, Focus, READER, SimPlan};
use super::super::recorder::SimRecorder;
use super::super::scheduler::{Scheduler, ThreadId};
use super::backup_client::BackupClient;
use super::{Embedded, Process};
use crate::client::{Client, ClientId, Recorder as _, SharedDigests, ignore_too_old};
use crate::rng::SeededRng;
use crate::think_time::ThinkTime;
use crate::violation::Violation;

/// The longest think time, in milliseconds: longer than a round of the background work.
const THINK_MAX_MS: usize = 2500;

/// What the clients of one incarnation have in common.
#[derive(Clone)]
pub struct Incarnation {
    pub number: u32,
    pub store: Store,
    pub engine: Process,
    pub dead: ProcessDead,
    pub keyspaces: (Keyspace, Keyspace),
    /// Whether errors are expected, because the disk fails.
    pub may_fail: bool,
    /// Within how many yields the crash comes once it is due; `None`: no deadline.
    pub deadline_yields: Option<u64>,
}

/// One client.
struct TxnClient {
    incarnation: Incarnation,
    plan: SimPlan,
    scheduler: Arc<Scheduler>,
    recorder: SimRecorder,
    history_digests: SharedDigests,
    keeps_all_history: bool,
    backup: BackupClient,
    id: ClientId,
    rng: SeededRng,
    is_first: bool,
    is_reader: bool,
    /// The number of transactions that this client runs.
    share: u64,
    /// When the clients together have attempted this many transactions in the whole history, the
    /// crash is due.
    enough: u64,
}

impl Embedded<'_> {
    /// Starts the threads.
    pub(super) fn spawn_txn_clients(&mut self, incarnation: &Incarnation) -> Vec<ThreadId> {
        let share = self.plan.transactions_per_client(incarnation.number, self.recorder.attempted());
        let enough = self.recorder.attempted() + share * self.plan.clients as u64 * 3 / 4;
        let mut threads = Vec::new();
        for number in 0..self.plan.clients {
            self.sessions += 1;
            let session = self.sessions;
            let mut rng = self.rng.split();
            let config = self.plan.random_client_config(&mut rng);
            let client = TxnClient {
                incarnation: incarnation.clone(),
                plan: self.plan.clone(),
                scheduler: Arc::clone(self.scheduler),
                recorder: self.recorder.clone(),
                history_digests: Arc::clone(&self.history_digests),
                keeps_all_history: self.keeps_all_history,
                backup: self.backup_client(incarnation),
                id: ClientId { session, incarnation: incarnation.number, config },
                rng,
                is_first: number == 0,
                is_reader: self.plan.has_reader && number == 1,
                share,
                enough,
            };
            let name = if client.is_reader { READER } else { CLIENT };
            let (violations, skewed) = (Arc::clone(&self.violations), Arc::clone(&self.stats.write_skews));
            let work = move || {
                let (dead, may_fail) = (Arc::clone(&client.incarnation.dead), client.incarnation.may_fail);
                match client.run() {
                    Ok(write_skews) => _ = skewed.fetch_add(write_skews, Ordering::SeqCst),
                    Err(error) if !is_dead(&dead) && !may_fail => {
                        violations.lock().push(Violation::new("workload, or an unexpected error", error.to_string()));
                    }
                    Err(_) => {}
                }
            };
            match self.scheduler.spawn(&format!("{name} {session}"), Box::new(work)) {
                Ok(thread) => threads.push(thread),
                Err(error) => self.report("harness", error.to_string()),
            }
        }
        threads
    }

    fn backup_client(&self, incarnation: &Incarnation) -> BackupClient {
        BackupClient {
            store: incarnation.store.clone(),
            scheduler: Arc::clone(self.scheduler),
            dead: Arc::clone(&incarnation.dead),
            protocol: self.plan.protocol,
            restores: Arc::clone(&self.restores),
        }
    }
}

impl TxnClient {
    /// Runs all transactions; returns the number of write skews.
    fn run(mut self) -> Result<u64, Error> {
        let (plan, focus) = (&self.plan, self.plan.focus);
        let Incarnation { store, engine, dead, keyspaces: (rows, second), deadline_yields, .. } = &self.incarnation;
        let recorder = self.recorder.for_process(dead);
        let keyspaces = (rows.clone(), Some(second.clone()));
        let mut client = Client::new((store, &**engine), keyspaces, &recorder, self.id, self.rng.split())
            .with_second_every(plan.second_every())
            .with_second_first(focus == Some(Focus::DeleteDuringLarge))
            .with_history_digests(&self.history_digests)
            .with_renames(plan.renames)
            .with_durable_snapshots(plan.durability == Durability::Sync)
            .with_full_history(self.keeps_all_history);
        let sleep = |time| self.scheduler.sleep(time);
        let thinking = ThinkTime { workload: plan.workload, every: plan.think_every, most_ms: THINK_MAX_MS, sleep };
        if self.is_first && plan.drops_keyspaces && self.rng.one_in(2) {
            // The drop comes first, while orphan locks with their primary in the keyspace may still
            // be there.
            ignore_too_old(client.drop_second())?;
        }
        if self.is_first {
            client.attempt(|txn| plan.workload.load(txn))?;
        }
        for _ in 0..self.share {
            match self.rng.below(40) {
                0 => self.scheduler.sleep(Duration::from_millis(self.rng.below(3000) as u64)),
                1 if plan.clock_steps && plan.mode != Mode::Locks => {
                    self.scheduler.step_clock(clock_offset_ms(&mut self.rng));
                }
                2 if plan.drops_keyspaces => client.replace_second(false)?,
                3..=5 if plan.restores && self.is_first => ignore_too_old(self.backup.restore(recorder.number()))?,
                6..=8 if plan.renames => client.replace_second(true)?,
                _ => {}
            }
            if self.is_reader && focus == Some(Focus::ShortHistory) {
                client.read_history(plan.workload)?;
            } else if self.is_reader && self.rng.one_in(2) {
                client.check_snapshot(plan.workload)?;
            } else {
                client.run(&thinking)?;
            }
            if focus == Some(Focus::DeleteDuringLarge) && client.has_written_second() {
                client.replace_second(false)?;
            }
            if is_dead(dead) {
                break;
            }
            if let Some(yields) = deadline_yields.filter(|_| self.recorder.attempted() >= self.enough) {
                self.scheduler.expire_within(yields);
            }
        }
        Ok(client.write_skews())
    }
}
