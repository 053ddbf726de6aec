//! The pipe from a child process to its parent: one JSON line an event.
//!
//! A line is passed to the kernel before the child continues. So the parent gets every event,
//! whenever the child is killed. A commit is recorded before its request, and an answer before the
//! client does anything else.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use crate::checkpoints::Checkpoint;
use crate::client::Recorder;
use crate::client_log::{Answer, ClientLog, Entry};
use crate::history::Outcome;
use crate::interrupt;
use crate::lock_workload::event::{EventRecorder, LockEvent};
use crate::memory_recorder::first_tick;
use crate::restores::Restores;
use crate::self_kill::{KillAt, Visits};

/// The interval between two checks for new events.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// All threads of a process have stopped within this time after SIGSTOP.
const STOP_DELAY: Duration = Duration::from_millis(2);

/// An event of the child process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// The store is open.
    Ready,
    /// A commit is about to be requested: the number and the entry of its transaction.
    CommitRequested(u64, Box<Entry>),
    /// A client got the answer to the commit request of the transaction with this number.
    CommitAnswered(u64, Answer),
    /// Everything at or below this timestamp is durable.
    Durable(u64),
    /// The number of commits of large transactions so far.
    LargeCommits(u64),
    /// A checkpoint is about to be made.
    CheckpointStarted(u64),
    /// The checkpoint is complete.
    CheckpointDone(u64),
    /// A dump is about to be restored.
    RestoreStarted(u64),
    /// The dump is restored.
    RestoreDone(u64),
    /// A call of a client, or the opening or closing of the store, failed with an error that is not
    /// a conflict.
    Failed(Call),
    /// A call that was made after a `Failed`, with its result.
    CallAfterFailure(Call),
    /// The length of the log of `strace` when all clients have ended, before a last durable commit.
    /// A fault that is logged later need not make a call fail.
    FaultLogLength(usize),
    /// All work is done.
    Done,
    /// The store is closed; with the visits of crash points.
    Closed(Visits),
    /// An event of a named lock.
    Lock(LockEvent),
    /// The process is about to kill itself at this point; with the visits of crash points.
    SelfKill(KillAt, Visits),
}

/// A call and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The name of the call.
    pub call: String,
    /// The kind of error, or `Ok`.
    pub kind: String,
    /// The error text.
    pub text: String,
}

/// Writes the events of this process into the pipe.
#[derive(Debug)]
pub struct PipeRecorder {
    ticks: AtomicU64,
    acknowledged: AtomicU64,
}

impl PipeRecorder {
    /// The recorder of this process; there must be only one.
    pub fn new(incarnation: u32) -> Self {
        Self { ticks: AtomicU64::new(first_tick(incarnation)), acknowledged: AtomicU64::new(0) }
    }

    /// Sends an event. Exits if the parent has closed the pipe.
    pub fn send(&self, event: &Event) {
        write_line(&mut io::stdout().lock(), event);
    }

    /// Sends an event and kills the process. The lock of the pipe is not released, so no thread can
    /// send another event.
    pub fn send_and_exit(&self, event: impl FnOnce() -> Event) -> ! {
        let mut out = io::stdout().lock();
        write_line(&mut out, &event());
        let _ = kill_process(getpid(), Signal::KILL);
        loop {
            std::thread::park();
        }
    }

    /// How many commits were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }
}

impl Recorder for PipeRecorder {
    fn now(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn number(&self) -> u64 {
        self.now()
    }

    fn record_commit(&self, number: u64, entry: Entry) {
        self.send(&Event::CommitRequested(number, Box::new(entry)));
    }

    fn record_answer(&self, number: u64, answer: Answer) {
        self.send(&Event::CommitAnswered(number, answer));
        self.acknowledged.fetch_add(u64::from(is_commit(&answer)), Ordering::SeqCst);
    }
}

impl EventRecorder for PipeRecorder {
    fn tick(&self) -> u64 {
        Recorder::now(self)
    }

    fn record(&self, event: LockEvent) {
        self.send(&Event::Lock(event));
    }
}

/// Writes an event as one line. Exits if this fails.
fn write_line(out: &mut io::StdoutLock<'_>, event: &Event) {
    let written = serde_json::to_vec(event).map_err(io::Error::from).and_then(|mut line| {
        line.push(b'\n');
        out.write_all(&line)?;
        out.flush()
    });
    if written.is_err() {
        std::process::exit(3);
    }
}

fn is_commit(answer: &Answer) -> bool {
    answer.outcome == Outcome::Committed && answer.commit_ts.is_some()
}

/// What the parent has received from a child process.
#[derive(Debug, Default)]
pub struct Received {
    /// The client log of all incarnations.
    pub client_log: ClientLog,
    /// Whether the store is open.
    pub ready: bool,
    /// The newest durable timestamp.
    pub durable_ts: u64,
    /// The number of commits of large transactions.
    pub large_commits: u64,
    /// Checkpoints that were started.
    pub checkpoints: Vec<Checkpoint>,
    /// Dumps that were restored.
    pub restores: Restores,
    /// Calls that failed with an error that is not a conflict.
    pub failed: Vec<Call>,
    /// Calls that were made after an error, with their results.
    pub calls_after_failure: Vec<Call>,
    /// Events of named locks.
    pub lock_events: Vec<LockEvent>,
    /// See [`Event::FaultLogLength`].
    pub fault_log_length: usize,
    /// Whether all work is done.
    pub done: bool,
    /// How many commits were acknowledged to clients.
    pub acknowledged: u64,
    /// Where the process was about to kill itself.
    pub killed_at: Option<KillAt>,
    /// Visits of crash points.
    pub visits: Visits,
    /// Whether later events that acknowledge something are ignored. Set just before a power cut.
    pub ignore_answers: bool,
    /// When the last event arrived.
    last: Option<Instant>,
}

impl Received {
    fn apply(&mut self, event: Event) {
        match event {
            Event::Ready => self.ready = true,
            Event::CommitRequested(number, entry) => {
                self.checkpoints
                    .iter_mut()
                    .for_each(|checkpoint| checkpoint.client_log.record_commit(number, (*entry).clone()));
                self.client_log.record_commit(number, *entry);
            }
            Event::CommitAnswered(_, Answer { outcome: Outcome::Committed, .. })
            | Event::Durable(_)
            | Event::RestoreDone(_)
                if self.ignore_answers => {}
            Event::CommitAnswered(number, answer) => {
                self.acknowledged += u64::from(is_commit(&answer));
                // Of the answers, checkpoints record only aborts: a commit that is acknowledged
                // after the start of a checkpoint may be in the checkpoint or not.
                let is_over = answer.outcome == Outcome::Aborted;
                self.checkpoints
                    .iter_mut()
                    .filter(|_| is_over)
                    .for_each(|checkpoint| checkpoint.client_log.record_answer(number, answer));
                self.client_log.record_answer(number, answer);
            }
            Event::LargeCommits(count) => self.large_commits = self.large_commits.max(count),
            Event::CheckpointStarted(number) => {
                self.checkpoints.push(Checkpoint { number, client_log: self.client_log.clone(), done: false });
            }
            Event::CheckpointDone(number) => {
                self.checkpoints
                    .iter_mut()
                    .filter(|checkpoint| checkpoint.number == number)
                    .for_each(|checkpoint| checkpoint.done = true);
            }
            Event::RestoreStarted(number) => self.restores.start(number),
            Event::RestoreDone(number) => self.restores.acknowledge(number),
            Event::Durable(ts) => self.durable_ts = self.durable_ts.max(ts),
            // With `ignore_answers` the store's answers about locks are ignored, also that a grant
            // was lost. Requests and attempts are still recorded.
            Event::Lock(
                LockEvent::Granted { .. }
                | LockEvent::Renewed { .. }
                | LockEvent::EndedDurably { .. }
                | LockEvent::Released { .. }
                | LockEvent::NotHeld { .. }
                | LockEvent::Committed { .. },
            ) if self.ignore_answers => {}
            Event::Lock(event) => self.lock_events.push(event),
            Event::Failed(call) => self.failed.push(call),
            Event::CallAfterFailure(call) => self.calls_after_failure.push(call),
            Event::FaultLogLength(length) => self.fault_log_length = length,
            Event::Done => self.done = true,
            Event::Closed(visits) => self.visits = visits,
            Event::SelfKill(at, visits) => (self.killed_at, self.visits) = (Some(at), visits),
        }
        self.last = Some(Instant::now());
    }
}

/// Watches a child process. Dropping it kills the process.
#[derive(Debug)]
pub struct ChildMonitor {
    child: Child,
    received: Arc<Mutex<Received>>,
    reader_thread: Option<JoinHandle<()>>,
}

impl ChildMonitor {
    /// Starts a process, and a thread that receives its events. Its transactions are added to
    /// `client_log`.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(mut command: Command, client_log: ClientLog) -> io::Result<Self> {
        // Without its own process group the child would be killed by a Ctrl-C that is meant for the
        // harness.
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let received = Arc::new(Mutex::new(Received { client_log, last: Some(Instant::now()), ..Received::default() }));
        let pipe = child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let shared = Arc::clone(&received);
        let reader_thread = std::thread::spawn(move || {
            let mut pipe = BufReader::with_capacity(1 << 16, pipe);
            let mut line = Vec::new();
            // A line without its newline was cut off by the end of the process, and is ignored.
            while pipe.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
                let event = serde_json::from_slice(&line).unwrap_or_else(|error| {
                    let (call, kind) = ("the pipe".into(), "Garbled".into());
                    Event::Failed(Call { call, kind, text: error.to_string() })
                });
                shared.lock().apply(event);
                line.clear();
            }
        });
        Ok(Self { child, received, reader_thread: Some(reader_thread) })
    }

    /// What was received so far.
    pub fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock()
    }

    /// Waits until `condition` holds or the process has ended. Returns false if no event arrived
    /// within `timeout`, or at an [interrupt].
    pub fn wait(&mut self, timeout: Duration, condition: impl Fn(&Received) -> bool) -> bool {
        loop {
            {
                let received = self.received();
                if condition(&received) {
                    return true;
                }
                if received.last.is_some_and(|last| last.elapsed() > timeout) || interrupt::is_requested() {
                    return false;
                }
            }
            if self.child.try_wait().ok().flatten().is_some() {
                return true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Kills the process if it still runs, and returns everything that it sent.
    pub fn end(mut self) -> (Received, Option<ExitStatus>) {
        let status = self.kill();
        let received = std::mem::take(&mut *self.received.lock());
        (received, status)
    }

    /// Stops the process with SIGSTOP until it is killed.
    ///
    /// # Errors
    /// The process has ended.
    pub fn stop(&self) -> io::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::STOP)?;
        std::thread::sleep(STOP_DELAY);
        Ok(())
    }

    fn kill(&mut self) -> Option<ExitStatus> {
        let _ = self.child.kill();
        let status = self.child.wait().ok();
        if let Some(reader_thread) = self.reader_thread.take() {
            let _ = reader_thread.join();
        }
        status
    }
}

impl Drop for ChildMonitor {
    fn drop(&mut self) {
        self.kill();
    }
}
