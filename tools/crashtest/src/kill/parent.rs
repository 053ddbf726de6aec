//! Starts a child and hears it out.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use rustix::process::Signal;

use super::life::{Event, Fatal, Life, Visits};
use crate::history::Outcome;
use crate::ledger::Ledger;
use crate::violation::Broken;

/// A child that says nothing about its end for so long hangs.
const CHILD_MAX: Duration = Duration::from_secs(60);

/// What there was to hear.
#[derive(Debug, Default)]
pub struct Heard {
    /// Where it died, by its own hand and by no other.
    pub died: Option<Fatal>,
    /// How many commits it acknowledged.
    pub acknowledged: u64,
    /// What it visited.
    pub visits: Visits,
    /// What went wrong.
    pub broken: Vec<Broken>,
}

/// Runs a life and enters what it says in the ledger; what it writes as errors goes to the file `log`.
///
/// # Errors
/// No process could be started, or it is not one of ours.
pub fn live(program: &Path, life: &Life, ledger: &mut Ledger, log: &Path) -> anyhow::Result<Heard> {
    let log = OpenOptions::new().create(true).append(true).open(log).context("the log")?;
    let mut child = Command::new(program)
        .arg("kill-child")
        .arg(serde_json::to_string(life)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .with_context(|| program.display().to_string())?;
    let output = child.stdout.take().context("no pipe")?;
    let child = Mutex::new(child);
    let mut heard = Heard::default();
    let mut dying = None;
    let (done, ended) = channel::<()>();
    let status = std::thread::scope(|scope| {
        let child = &child;
        let watch = scope.spawn(move || {
            let hangs = ended.recv_timeout(CHILD_MAX) == Err(RecvTimeoutError::Timeout);
            if hangs {
                let _ = child.lock().kill();
            }
            hangs
        });
        let read = hear(output, ledger, &mut heard, &mut dying);
        let _ = done.send(());
        let hangs = watch.join().unwrap_or_default();
        let status = child.lock().wait();
        if hangs {
            heard.broken.push(Broken::new("I12 progress", format!("a life did not end within {CHILD_MAX:?}")));
        }
        read.and(status.context("the child's end"))
    })?;
    let killed = status.signal() == Some(Signal::KILL.as_raw());
    match dying {
        Some(at) if killed => heard.died = Some(at),
        None if status.success() => {}
        at => heard.broken.push(Broken::new("stays alive", format!("the process ended with {status}, saying {at:?}"))),
    }
    Ok(heard)
}

fn hear(
    output: impl std::io::Read,
    ledger: &mut Ledger,
    heard: &mut Heard,
    dying: &mut Option<Fatal>,
) -> anyhow::Result<()> {
    let mut output = BufReader::with_capacity(1 << 16, output);
    let mut line = Vec::new();
    loop {
        line.clear();
        output.read_until(b'\n', &mut line).context("the pipe")?;
        // A line without its end was cut off by a death that the child did not choose, and nothing followed from it.
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
        match serde_json::from_slice(&line).context("what a child said")? {
            Event::Asked { number, entry } => ledger.asked(number, entry),
            Event::Answered { number, answer } => {
                let commits = answer.outcome == Outcome::Committed && answer.commit_ts.is_some();
                heard.acknowledged += u64::from(commits);
                ledger.answered(number, answer);
            }
            Event::Broken(how) => heard.broken.push(Broken::new("I8 workload, or an error for no reason", how)),
            Event::Dying { at, visits } => {
                heard.visits = visits;
                *dying = Some(at);
            }
            Event::Closed { visits } => heard.visits = visits,
        }
    }
}
