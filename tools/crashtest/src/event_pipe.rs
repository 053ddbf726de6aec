//! The pipe from a process that will be killed to the one that judges: one JSON line for each thing that happened.
//!
//! A line is handed to the kernel before the thing goes on, so that whatever the process did, the judge has heard of it
//! first: a commit is entered before it is asked for, an answer before the client does anything else.

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

/// How often to look whether something was heard.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Until all threads of a process stand still.
const STOP_DELAY: Duration = Duration::from_millis(2);

/// What a process says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// The store is open.
    Ready,
    /// See [`Sink::asked`].
    CommitRequested(u64, Box<Entry>),
    /// See [`Sink::answered`].
    CommitAnswered(u64, Answer),
    /// Everything at or below survives a power cut.
    Durable(u64),
    /// How many commits were streamed so far.
    LargeCommits(u64),
    /// A copy is about to be made.
    CheckpointStarted(u64),
    /// It is made.
    CheckpointDone(u64),
    /// A dump is about to be restored.
    RestoreStarted(u64),
    /// It is restored.
    RestoreDone(u64),
    /// A client met an error that is no conflict.
    Failed(Call),
    /// A call was made after that.
    CallAfterFailure(Call),
    /// The notes of faults had this length when all clients were through; a durable commit came after that.
    FaultLogLength(usize),
    /// All that was to be done is done.
    Done,
    /// The store is closed; what was visited.
    Closed(Visits),
    /// Something that happened to a lock.
    Lock(LockEvent),
    /// The last words: where, and what was visited.
    SelfKill(KillAt, Visits),
}

/// A call and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Which call.
    pub call: String,
    /// The kind of error, or `Ok`.
    pub kind: String,
    /// What it says.
    pub text: String,
}

/// The end of the pipe that clients write into.
#[derive(Debug)]
pub struct PipeRecorder {
    ticks: AtomicU64,
    acknowledged: AtomicU64,
}

impl PipeRecorder {
    /// The only one of this process.
    pub fn new(incarnation: u32) -> Self {
        Self { ticks: AtomicU64::new(first_tick(incarnation)), acknowledged: AtomicU64::new(0) }
    }

    /// Says something. Where nobody listens any more the process has no reason to go on.
    pub fn send(&self, event: &Event) {
        write_line(&mut io::stdout().lock(), event);
    }

    /// Says something and dies. What keeps lines apart is not given back: nothing comes behind it.
    pub fn send_and_exit(&self, event: impl FnOnce() -> Event) -> ! {
        let mut out = io::stdout().lock();
        write_line(&mut out, &event());
        let _ = kill_process(getpid(), Signal::KILL);
        loop {
            std::thread::park();
        }
    }

    /// How many commits clients were told of.
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

/// A line in one write.
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

/// What was heard from a process.
#[derive(Debug, Default)]
pub struct Received {
    /// The ledger of all lives.
    pub client_log: ClientLog,
    /// Whether the store was open.
    pub ready: bool,
    /// The newest word on what is durable.
    pub durable_ts: u64,
    /// How many commits were streamed.
    pub large_commits: u64,
    /// Copies that were begun.
    pub checkpoints: Vec<Checkpoint>,
    /// Dumps that were restored.
    pub restores: Restores,
    /// Errors that clients met.
    pub failed: Vec<Call>,
    /// What was answered after an error.
    pub calls_after_failure: Vec<Call>,
    /// What was noted of locks.
    pub lock_events: Vec<LockEvent>,
    /// How long the notes of faults were before the last commit was asked for.
    pub fault_log_length: usize,
    /// Whether all was done.
    pub done: bool,
    /// How many commits it said that clients were told of.
    pub acknowledged: u64,
    /// Where it said that it was about to die.
    pub killed_at: Option<KillAt>,
    /// What it visited.
    pub visits: Visits,
    /// Whether what it says about commits no longer counts.
    pub ignore_answers: bool,
    /// When something was heard last.
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
                // What was committed since may be in a copy or not; what was not is in none.
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
            // Nothing that is said from here on counts, nor that a store without a disk has lost its locks; what is about to be done does.
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

/// A process that is listened to. It is killed when this is dropped.
#[derive(Debug)]
pub struct ChildMonitor {
    child: Child,
    received: Arc<Mutex<Received>>,
    reader_thread: Option<JoinHandle<()>>,
}

impl ChildMonitor {
    /// Starts a process and listens; what it says goes into `ledger`.
    ///
    /// # Errors
    /// Those of starting it.
    pub fn start(mut command: Command, client_log: ClientLog) -> io::Result<Self> {
        // A Ctrl-C is for the harness, which ends the process; one that died of it would be a finding.
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let received = Arc::new(Mutex::new(Received { client_log, last: Some(Instant::now()), ..Received::default() }));
        let pipe = child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let shared = Arc::clone(&received);
        let reader_thread = std::thread::spawn(move || {
            let mut pipe = BufReader::with_capacity(1 << 16, pipe);
            let mut line = Vec::new();
            // A line that was cut short by the process's end says nothing.
            while pipe.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
                let event = serde_json::from_slice(&line).unwrap_or_else(|why| {
                    let (call, kind) = ("the pipe".into(), "Garbled".into());
                    Event::Failed(Call { call, kind, text: why.to_string() })
                });
                shared.lock().apply(event);
                line.clear();
            }
        });
        Ok(Self { child, received, reader_thread: Some(reader_thread) })
    }

    /// What was heard so far.
    pub fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock()
    }

    /// Waits until something holds or the process has ended; false if it was silent for so long, or at an
    /// [interrupt].
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

    /// Kills the process, if it still lives, and gives all that was heard, to the last line.
    pub fn end(mut self) -> (Received, Option<ExitStatus>) {
        let status = self.kill();
        let received = std::mem::take(&mut *self.received.lock());
        (received, status)
    }

    /// Has the process stand still until its end.
    ///
    /// # Errors
    /// Where there is no such process any more.
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
