//! One client thread: repeats its operation, counts, and measures latencies.
//!
//! All clients start together. Operations of the warm-up are not counted, but its commits and bytes
//! are: the verification compares all commits with the rows, and the write amplification includes
//! all bytes. Each write is timed, but only every 32nd read, because reading the clock twice takes
//! longer than a read in some stores.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::generator::Rng;
use crate::peer::{Session, Write};
use crate::process_usage;

const READS_PER_SAMPLE: u64 = 32;
const SIGNIFICANT_DIGITS: u8 = 3;

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const STOPPED: u8 = 2;

/// The phases of a run, shared by all clients: warm-up, measurement, end.
pub struct Phases {
    phase: AtomicU8,
    start: Barrier,
    /// If this is set, each client runs this number of operations, instead of running for a given
    /// time.
    operations: Option<u64>,
}

impl Phases {
    /// With `operations` each client stops after that number, without a warm-up.
    pub fn new(clients: usize, operations: Option<u64>) -> Self {
        let phase = if operations.is_some() { MEASURING } else { WARMING_UP };
        Self { phase: AtomicU8::new(phase), start: Barrier::new(clients + 1), operations }
    }

    /// Starts all clients when they are ready. Returns the start of the measurement. Without
    /// `operations` the call also waits for the end of the measurement, and returns the elapsed
    /// time.
    pub fn run(&self, warm: Duration, measured: Duration) -> (Stopwatch, Option<Elapsed>) {
        self.start.wait();
        if self.operations.is_some() {
            return (Stopwatch::now(), None);
        }
        std::thread::sleep(warm);
        // The exchange fails if a client has failed and has stopped the run.
        let _ = self.phase.compare_exchange(WARMING_UP, MEASURING, Ordering::Relaxed, Ordering::Relaxed);
        let started = Stopwatch::now();
        std::thread::sleep(measured);
        self.phase.store(STOPPED, Ordering::Relaxed);
        (started, Some(started.elapsed()))
    }
}

/// The start of a measurement: wall clock and processor time.
#[derive(Clone, Copy)]
pub struct Stopwatch {
    at: Instant,
    cpu: Duration,
}

/// The duration of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Elapsed {
    pub time: Duration,
    /// Processor time of all threads.
    pub cpu: Duration,
}

impl Stopwatch {
    pub fn now() -> Self {
        Self { at: Instant::now(), cpu: process_usage::cpu_time() }
    }

    pub fn elapsed(self) -> Elapsed {
        Elapsed { time: self.at.elapsed(), cpu: process_usage::cpu_time().saturating_sub(self.cpu) }
    }
}

/// The counts and latencies of one client, or the sum of all.
pub struct Total {
    /// Measured operations.
    pub operations: u64,
    /// Aborted attempts of measured commits.
    pub aborts: u64,
    /// Measured commits.
    pub measured_commits: u64,
    /// Acknowledged commits, including the warm-up.
    pub commits: u64,
    /// Loaded rows.
    pub loaded: u64,
    /// Rows that background clients have loaded during the measurement. `None` without such
    /// clients.
    pub concurrent_load: Option<u64>,
    /// Bytes of keys and values in all acknowledged commits.
    pub bytes: u64,
    /// Latencies in nanoseconds.
    pub latencies: Histogram<u64>,
    /// Attempts of each measured commit.
    pub attempts: Histogram<u64>,
    /// The measured operations of each client.
    pub by_client: Vec<u64>,
}

impl Total {
    pub fn new() -> Result<Self> {
        Ok(Self {
            operations: 0,
            aborts: 0,
            measured_commits: 0,
            commits: 0,
            loaded: 0,
            concurrent_load: None,
            bytes: 0,
            latencies: Histogram::new(SIGNIFICANT_DIGITS)?,
            attempts: Histogram::new(SIGNIFICANT_DIGITS)?,
            by_client: Vec::new(),
        })
    }

    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.operations += other.operations;
        self.aborts += other.aborts;
        self.measured_commits += other.measured_commits;
        self.commits += other.commits;
        self.loaded += other.loaded;
        self.concurrent_load = sum(self.concurrent_load, other.concurrent_load);
        self.bytes += other.bytes;
        self.latencies.add(&other.latencies)?;
        self.attempts.add(&other.attempts)?;
        self.by_client.extend(&other.by_client);
        Ok(())
    }
}

fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).reduce(|one, other| one + other)
}

/// One client.
pub struct Client<'a> {
    pub number: u64,
    /// Whether this client does background work, which is not measured.
    pub is_background: bool,
    pub seed: u64,
    pub rng: Rng,
    pub value_bytes: usize,
    phases: &'a Phases,
    has_started: bool,
    done: u64,
    total: Total,
}

impl<'a> Client<'a> {
    pub fn new(number: u64, is_background: bool, seed: u64, value_bytes: usize, phases: &'a Phases) -> Result<Self> {
        Ok(Self {
            number,
            is_background,
            seed,
            rng: Rng::new(seed, number),
            value_bytes,
            phases,
            has_started: false,
            done: 0,
            total: Total::new()?,
        })
    }

    /// Waits until all clients are ready.
    pub fn wait_start(&mut self) {
        if !self.has_started {
            self.has_started = true;
            self.phases.start.wait();
        }
    }

    /// Whether to run another operation.
    pub fn should_continue(&mut self) -> bool {
        self.wait_start();
        self.phases.operations.is_none_or(|all| self.done < all) && self.phases.phase.load(Ordering::Relaxed) != STOPPED
    }

    /// Runs a transaction that writes `rows` rows of `row_bytes` bytes each.
    pub fn transact(
        &mut self,
        session: &mut impl Session,
        row_bytes: usize,
        rows: usize,
        mut work: impl FnMut(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let is_measured = self.is_measured();
        let started = Instant::now();
        let mut attempts = 0;
        session.transact(&mut |txn| {
            attempts += 1;
            work(txn)
        })?;
        if is_measured {
            self.time(started)?;
            self.total.operations += 1;
            self.total.measured_commits += 1;
            self.total.aborts += attempts - 1;
            self.total.attempts.record(attempts)?;
        }
        self.done += 1;
        self.total.commits += 1;
        self.total.bytes += (row_bytes * rows) as u64;
        Ok(())
    }

    /// Runs a read-only operation.
    pub fn read(&mut self, read: impl FnOnce() -> Result<()>) -> Result<()> {
        let is_measured = self.is_measured();
        let is_sample = self.done.is_multiple_of(READS_PER_SAMPLE);
        let started = (is_measured && is_sample).then(Instant::now);
        read()?;
        if let Some(started) = started {
            self.time(started)?;
        }
        self.total.operations += u64::from(is_measured);
        self.done += 1;
        Ok(())
    }

    /// Runs a load. Each row counts as one operation.
    pub fn load(&mut self, rows: u64, bytes: u64, load: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        load()?;
        self.time(started)?;
        self.total.operations += rows;
        self.note_load(rows, bytes);
        Ok(())
    }

    /// Counts the rows and bytes of a load, but no operations.
    pub fn note_load(&mut self, rows: u64, bytes: u64) {
        self.done += 1;
        self.total.loaded += rows;
        if self.is_background {
            let measured = if self.is_measuring() { rows } else { 0 };
            self.total.concurrent_load = sum(self.total.concurrent_load, Some(measured));
        }
        self.total.bytes += bytes;
    }

    /// Ends the client and returns its counts. After a failure, stops the other clients as well.
    pub fn end(mut self, outcome: Result<()>) -> Result<Total> {
        if outcome.is_err() {
            self.phases.phase.store(STOPPED, Ordering::Relaxed);
        }
        self.wait_start();
        if !self.is_background {
            self.total.by_client.push(self.total.operations);
        }
        outcome.map(|()| self.total)
    }

    fn is_measured(&self) -> bool {
        !self.is_background && self.is_measuring()
    }

    fn is_measuring(&self) -> bool {
        self.phases.phase.load(Ordering::Relaxed) == MEASURING
    }

    fn time(&mut self, started: Instant) -> Result<()> {
        Ok(self.total.latencies.record(u64::try_from(started.elapsed().as_nanos())?.max(1))?)
    }
}
