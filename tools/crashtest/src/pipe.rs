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

use crate::client::Sink;
use crate::copies::Copy;
use crate::desk::first_tick;
use crate::doom::{Fatal, Visits};
use crate::history::Outcome;
use crate::interrupt;
use crate::ledger::{Answer, Entry, Ledger};
use crate::mutex::note::{Notary, Note};
use crate::restores::Restores;

/// How often to look whether something was heard.
const POLL: Duration = Duration::from_millis(1);
/// Until all threads of a process stand still.
const STOPS: Duration = Duration::from_millis(2);

/// What a process says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// The store is open.
    Ready,
    /// See [`Sink::asked`].
    Asked(u64, Box<Entry>),
    /// See [`Sink::answered`].
    Answered(u64, Answer),
    /// Everything at or below survives a power cut.
    Durable(u64),
    /// How many commits were streamed so far.
    Streamed(u64),
    /// A copy is about to be made.
    Copying(u64),
    /// It is made.
    Copied(u64),
    /// A dump is about to be restored.
    Restoring(u64),
    /// It is restored.
    Restored(u64),
    /// A client met an error that is no conflict.
    Failed(Call),
    /// A call was made after that.
    Called(Call),
    /// The notes of faults had this length when all clients were through; a durable commit came after that.
    Noted(usize),
    /// All that was to be done is done.
    Done,
    /// The store is closed; what was visited.
    Closed(Visits),
    /// Something that happened to a lock.
    Lock(Note),
    /// The last words: where, and what was visited.
    Dying(Fatal, Visits),
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
pub struct PipeSink {
    ticks: AtomicU64,
    acknowledged: AtomicU64,
}

impl PipeSink {
    /// The only one of this process.
    pub fn new(life: u32) -> Self {
        Self { ticks: AtomicU64::new(first_tick(life)), acknowledged: AtomicU64::new(0) }
    }

    /// Says something. Where nobody listens any more the process has no reason to go on.
    pub fn say(&self, event: &Event) {
        tell(&mut io::stdout().lock(), event);
    }

    /// Says something and dies. What keeps lines apart is not given back: nothing comes behind it.
    pub fn die(&self, last_words: impl FnOnce() -> Event) -> ! {
        let mut out = io::stdout().lock();
        tell(&mut out, &last_words());
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

impl Sink for PipeSink {
    fn now(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn number(&self) -> u64 {
        self.now()
    }

    fn asked(&self, number: u64, entry: Entry) {
        self.say(&Event::Asked(number, Box::new(entry)));
    }

    fn answered(&self, number: u64, answer: Answer) {
        self.say(&Event::Answered(number, answer));
        self.acknowledged.fetch_add(u64::from(commits(&answer)), Ordering::SeqCst);
    }
}

impl Notary for PipeSink {
    fn tick(&self) -> u64 {
        Sink::now(self)
    }

    fn note(&self, note: Note) {
        self.say(&Event::Lock(note));
    }
}

/// A line in one write.
fn tell(out: &mut io::StdoutLock<'_>, event: &Event) {
    let said = serde_json::to_vec(event).map_err(io::Error::from).and_then(|mut line| {
        line.push(b'\n');
        out.write_all(&line)?;
        out.flush()
    });
    if said.is_err() {
        std::process::exit(3);
    }
}

fn commits(answer: &Answer) -> bool {
    answer.outcome == Outcome::Committed && answer.commit_ts.is_some()
}

/// What was heard from a process.
#[derive(Debug, Default)]
pub struct Heard {
    /// The ledger of all lives.
    pub ledger: Ledger,
    /// Whether the store was open.
    pub ready: bool,
    /// The newest word on what is durable.
    pub durable_ts: u64,
    /// How many commits were streamed.
    pub streamed: u64,
    /// Copies that were begun.
    pub copies: Vec<Copy>,
    /// Dumps that were restored.
    pub restores: Restores,
    /// Errors that clients met.
    pub failed: Vec<Call>,
    /// What was answered after an error.
    pub called: Vec<Call>,
    /// What was noted of locks.
    pub notes: Vec<Note>,
    /// How long the notes of faults were before the last commit was asked for.
    pub noted: usize,
    /// Whether all was done.
    pub done: bool,
    /// How many commits it said that clients were told of.
    pub acknowledged: u64,
    /// Where it said that it was about to die.
    pub dying: Option<Fatal>,
    /// What it visited.
    pub visits: Visits,
    /// Whether what it says about commits no longer counts.
    pub deaf: bool,
    /// When something was heard last.
    last: Option<Instant>,
}

impl Heard {
    fn hear(&mut self, event: Event) {
        match event {
            Event::Ready => self.ready = true,
            Event::Asked(number, entry) => {
                self.copies.iter_mut().for_each(|copy| copy.ledger.asked(number, (*entry).clone()));
                self.ledger.asked(number, *entry);
            }
            Event::Answered(_, Answer { outcome: Outcome::Committed, .. }) | Event::Durable(_) | Event::Restored(_)
                if self.deaf => {}
            Event::Answered(number, answer) => {
                self.acknowledged += u64::from(commits(&answer));
                // What was committed since may be in a copy or not; what was not is in none.
                let is_over = answer.outcome == Outcome::Aborted;
                self.copies.iter_mut().filter(|_| is_over).for_each(|copy| copy.ledger.answered(number, answer));
                self.ledger.answered(number, answer);
            }
            Event::Streamed(count) => self.streamed = self.streamed.max(count),
            Event::Copying(number) => {
                self.copies.push(Copy { number, ledger: self.ledger.clone(), done: false });
            }
            Event::Copied(number) => {
                self.copies.iter_mut().filter(|copy| copy.number == number).for_each(|copy| copy.done = true);
            }
            Event::Restoring(number) => self.restores.begins(number),
            Event::Restored(number) => self.restores.is_done(number),
            Event::Durable(ts) => self.durable_ts = self.durable_ts.max(ts),
            // Nothing that is said from here on counts, nor that a store without a disk has lost its locks; what is about to be done does.
            Event::Lock(
                Note::Returned { .. }
                | Note::Renewed { .. }
                | Note::Over { .. }
                | Note::Released { .. }
                | Note::NotThere { .. }
                | Note::Committed { .. },
            ) if self.deaf => {}
            Event::Lock(note) => self.notes.push(note),
            Event::Failed(call) => self.failed.push(call),
            Event::Called(call) => self.called.push(call),
            Event::Noted(length) => self.noted = length,
            Event::Done => self.done = true,
            Event::Closed(visits) => self.visits = visits,
            Event::Dying(at, visits) => (self.dying, self.visits) = (Some(at), visits),
        }
        self.last = Some(Instant::now());
    }
}

/// A process that is listened to. It is killed when this is dropped.
#[derive(Debug)]
pub struct CrashHook {
    child: Child,
    heard: Arc<Mutex<Heard>>,
    ear: Option<JoinHandle<()>>,
}

impl CrashHook {
    /// Starts a process and listens; what it says goes into `ledger`.
    ///
    /// # Errors
    /// Those of starting it.
    pub fn start(mut command: Command, ledger: Ledger) -> io::Result<Self> {
        // A Ctrl-C is for the harness, which ends the process; one that died of it would be a finding.
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let heard = Arc::new(Mutex::new(Heard { ledger, last: Some(Instant::now()), ..Heard::default() }));
        let pipe = child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let hears = Arc::clone(&heard);
        let ear = std::thread::spawn(move || {
            let mut pipe = BufReader::with_capacity(1 << 16, pipe);
            let mut line = Vec::new();
            // A line that was cut short by the process's end says nothing.
            while pipe.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
                let event = serde_json::from_slice(&line).unwrap_or_else(|why| {
                    let (call, kind) = ("the pipe".into(), "Garbled".into());
                    Event::Failed(Call { call, kind, text: why.to_string() })
                });
                hears.lock().hear(event);
                line.clear();
            }
        });
        Ok(Self { child, heard, ear: Some(ear) })
    }

    /// What was heard so far.
    pub fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock()
    }

    /// Waits until something holds or the process has ended; false if it was silent for so long, or at an
    /// [interrupt].
    pub fn wait(&mut self, silence: Duration, holds: impl Fn(&Heard) -> bool) -> bool {
        loop {
            {
                let heard = self.heard();
                if holds(&heard) {
                    return true;
                }
                if heard.last.is_some_and(|last| last.elapsed() > silence) || interrupt::came() {
                    return false;
                }
            }
            if self.child.try_wait().ok().flatten().is_some() {
                return true;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Kills the process, if it still lives, and gives all that was heard, to the last line.
    pub fn end(mut self) -> (Heard, Option<ExitStatus>) {
        let status = self.kill();
        let heard = std::mem::take(&mut *self.heard.lock());
        (heard, status)
    }

    /// Has the process stand still until its end.
    ///
    /// # Errors
    /// Where there is no such process any more.
    pub fn stop(&self) -> io::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::STOP)?;
        std::thread::sleep(STOPS);
        Ok(())
    }

    fn kill(&mut self) -> Option<ExitStatus> {
        let _ = self.child.kill();
        let status = self.child.wait().ok();
        if let Some(ear) = self.ear.take() {
            let _ = ear.join();
        }
        status
    }
}

impl Drop for CrashHook {
    fn drop(&mut self) {
        self.kill();
    }
}
