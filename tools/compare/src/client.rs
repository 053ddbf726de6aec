//! One client: repeats its work, counts, and takes times.
//!
//! All clients begin together. What happens while the store warms up is not counted among the operations, but its commits
//! and bytes are known, since the sums at the end include them. Writes are timed one by one; of reads, which take less than
//! looking at the clock twice in some stores, every 32nd.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::dice::Dice;
use crate::peer::{Session, Write};
use crate::usage;

const READS_A_SAMPLE: u64 = 32;
const SIGNIFICANT_DIGITS: u8 = 3;

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const OVER: u8 = 2;

/// What all clients go by.
pub struct Course {
    phase: AtomicU8,
    start: Barrier,
    /// How many operations each client does, if it is not for a time.
    operations: Option<u64>,
}

impl Course {
    /// `operations` of each client, or until it is over.
    pub fn new(clients: usize, operations: Option<u64>) -> Self {
        let phase = if operations.is_some() { MEASURING } else { WARMING_UP };
        Self { phase: AtomicU8::new(phase), start: Barrier::new(clients + 1), operations }
    }

    /// Waits for all clients and lets them run. Returns when they began to be measured and, if they run for a time, what it took.
    pub fn direct(&self, warm: Duration, measured: Duration) -> (Moment, Option<Took>) {
        self.start.wait();
        if self.operations.is_some() {
            return (Moment::now(), None);
        }
        std::thread::sleep(warm);
        // Not if a client has failed meanwhile.
        let _ = self.phase.compare_exchange(WARMING_UP, MEASURING, Ordering::Relaxed, Ordering::Relaxed);
        let began = Moment::now();
        std::thread::sleep(measured);
        self.phase.store(OVER, Ordering::Relaxed);
        (began, Some(began.took()))
    }
}

/// When something began.
#[derive(Clone, Copy)]
pub struct Moment {
    at: Instant,
    processor: Duration,
}

/// What it took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub time: Duration,
    /// Of the processor, for all threads.
    pub processor: Duration,
}

impl Moment {
    pub fn now() -> Self {
        Self { at: Instant::now(), processor: usage::processor() }
    }

    pub fn took(self) -> Took {
        Took { time: self.at.elapsed(), processor: usage::processor().saturating_sub(self.processor) }
    }
}

/// What the clients did.
pub struct Total {
    /// Of what was measured.
    pub operations: u64,
    /// Attempts that came to nothing, of what was measured.
    pub aborts: u64,
    /// Commits that were measured.
    pub measured_commits: u64,
    /// All that were acknowledged.
    pub commits: u64,
    /// Rows that were loaded.
    pub loaded: u64,
    /// Those of them that were while others were measured. `None` where nobody loads beside others.
    pub loaded_beside: Option<u64>,
    /// Of keys and values in all acknowledged commits.
    pub bytes: u64,
    /// In nanoseconds.
    pub latencies: Histogram<u64>,
    /// Of each measured commit.
    pub attempts: Histogram<u64>,
    /// What was measured, client by client.
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
            loaded_beside: None,
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
        self.loaded_beside = sum(self.loaded_beside, other.loaded_beside);
        self.bytes += other.bytes;
        self.latencies.add(&other.latencies)?;
        self.attempts.add(&other.attempts)?;
        self.by_client.extend(&other.by_client);
        Ok(())
    }
}

/// Of those that there are.
fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).reduce(|one, other| one + other)
}

/// One of them.
pub struct Client<'a> {
    pub number: u64,
    /// Whether it does other work beside the clients that are counted.
    pub is_extra: bool,
    pub seed: u64,
    pub dice: Dice,
    pub value_bytes: usize,
    course: &'a Course,
    has_started: bool,
    done: u64,
    total: Total,
}

impl<'a> Client<'a> {
    pub fn new(number: u64, is_extra: bool, seed: u64, value_bytes: usize, course: &'a Course) -> Result<Self> {
        Ok(Self {
            number,
            is_extra,
            seed,
            dice: Dice::new(seed, number),
            value_bytes,
            course,
            has_started: false,
            done: 0,
            total: Total::new()?,
        })
    }

    /// Waits until all are.
    pub fn is_ready(&mut self) {
        if !self.has_started {
            self.has_started = true;
            self.course.start.wait();
        }
    }

    /// Whether there is another operation to do.
    pub fn goes_on(&mut self) -> bool {
        self.is_ready();
        self.course.operations.is_none_or(|all| self.done < all) && self.course.phase.load(Ordering::Relaxed) != OVER
    }

    /// A transaction that writes so many rows of so many bytes each.
    pub fn commits(
        &mut self,
        session: &mut impl Session,
        row_bytes: usize,
        rows: usize,
        mut work: impl FnMut(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let is_measured = self.is_measured();
        let began = Instant::now();
        let mut attempts = 0;
        session.transact(&mut |txn| {
            attempts += 1;
            work(txn)
        })?;
        if is_measured {
            self.time(began)?;
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

    /// Something that only reads.
    pub fn reads(&mut self, read: impl FnOnce() -> Result<()>) -> Result<()> {
        let is_measured = self.is_measured();
        let is_sample = self.done.is_multiple_of(READS_A_SAMPLE);
        let began = (is_measured && is_sample).then(Instant::now);
        read()?;
        if let Some(began) = began {
            self.time(began)?;
        }
        self.total.operations += u64::from(is_measured);
        self.done += 1;
        Ok(())
    }

    /// A load of so many rows and bytes, which counts as that many operations.
    pub fn loads(&mut self, rows: u64, bytes: u64, load: impl FnOnce() -> Result<()>) -> Result<()> {
        let began = Instant::now();
        load()?;
        self.time(began)?;
        self.total.operations += rows;
        self.loaded(rows, bytes);
        Ok(())
    }

    /// Notes a load that is not what is measured.
    pub fn loaded(&mut self, rows: u64, bytes: u64) {
        self.done += 1;
        self.total.loaded += rows;
        if self.is_extra {
            let measured = if self.is_measuring() { rows } else { 0 };
            self.total.loaded_beside = sum(self.total.loaded_beside, Some(measured));
        }
        self.total.bytes += bytes;
    }

    /// What it did; the others end, too, if it has failed.
    pub fn end(mut self, outcome: Result<()>) -> Result<Total> {
        if outcome.is_err() {
            self.course.phase.store(OVER, Ordering::Relaxed);
        }
        self.is_ready();
        if !self.is_extra {
            self.total.by_client.push(self.total.operations);
        }
        outcome.map(|()| self.total)
    }

    fn is_measured(&self) -> bool {
        !self.is_extra && self.is_measuring()
    }

    fn is_measuring(&self) -> bool {
        self.course.phase.load(Ordering::Relaxed) == MEASURING
    }

    fn time(&mut self, began: Instant) -> Result<()> {
        Ok(self.total.latencies.record(u64::try_from(began.elapsed().as_nanos())?.max(1))?)
    }
}
