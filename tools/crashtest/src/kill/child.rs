//! The process that dies: clients on a store over RocksDB, until a point is reached.
//!
//! It kills itself, because only it knows where it is. The last line that it writes says where that was, and the lock that
//! keeps lines apart is not given back: nothing comes behind it.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use parking_lot::Mutex;
use percolite::Store;
use percolite::crashtest::{Mutant, Point, listen, mutate};
use rustix::process::{Signal, getpid, kill_process};

use super::clock::{Clock, Fast};
use super::life::{Event, Fatal, Life, Visits};
use crate::client::{BESIDE, Client, Habits, ROWS, Sink, Who};
use crate::dice::Dice;
use crate::history::Outcome;
use crate::ledger::{Answer, Entry};
use crate::workload;

/// A life ends here even if its point was not reached: a point that is not reached in this time is not reached.
const LIFE_MAX: Duration = Duration::from_secs(8);

/// `percolite-crashtest kill-child`: one life. For the parent only.
#[derive(Debug, clap::Args)]
pub struct ChildArgs {
    /// The life, as JSON.
    life: String,
}

impl ChildArgs {
    /// Lives.
    ///
    /// # Errors
    /// The argument is no life.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let life: Life = serde_json::from_str(&self.life).context("this is for the parent to call")?;
        let voice = Arc::new(Voice::new(&life)?);
        let hears = Arc::clone(&voice);
        listen(Box::new(move |point| hears.reached(point)));
        mutate(life.mutant.as_deref().and_then(Mutant::named));
        match live(&life, &voice) {
            Ok(()) => voice.say(&Event::Closed { visits: voice.visits() }),
            Err(why) => voice.say(&Event::Broken(format!("{why:#}"))),
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn live(life: &Life, voice: &Voice) -> anyhow::Result<()> {
    let mut dice = Dice::new(life.seed);
    let mut builder = Store::builder()
        .runtime(Arc::new(Fast::new(life.speed)))
        .protocol(life.protocol.into())
        .durability(life.durability.into())
        .conflict_slots(life.conflict_slots)
        .sweep(life.sweep)
        .cache_bytes(4 << 20);
    if let Some(bytes) = life.write_buffer_bytes {
        builder = builder.write_buffer_bytes(bytes);
    }
    let engine = builder.rocks(&life.folder).context("it does not open")?;
    let store = builder.open_engine(Arc::clone(&engine)).context("it does not open")?;
    let beside = store.keyspace(BESIDE).context("its keyspaces do not open")?;
    let rows = store.keyspace(ROWS).context("its keyspaces do not open")?;
    let habits =
        Habits { protocol: life.protocol.into(), durability: life.durability.into(), long_values: life.long_values };
    std::thread::scope(|scope| {
        for index in 0..life.clients {
            let mut dice = dice.split();
            let who = Who { session: u64::from(life.number) * 100 + index + 1, life: life.number, habits };
            let keyspaces = (rows.clone(), Some(beside.clone()));
            let client = Client::new((&store, &*engine), keyspaces, voice, who, dice.split());
            scope.spawn(move || {
                if let Err(why) = serve(life, voice, client, index == 0, dice) {
                    voice.say(&Event::Broken(format!("client {index}: {why}")));
                }
            });
        }
    });
    store.resolve_orphans().context("orphans are not resolved")?;
    store.close().context("it does not close")
}

/// One client; the first fills the store.
fn serve(life: &Life, voice: &Voice, mut client: Client<'_>, loads: bool, mut dice: Dice) -> percolite::Result<()> {
    let Some(workload) = workload::named(&life.workload) else { return Ok(()) };
    if loads {
        client.attempt(|txn| workload.load(txn))?;
    }
    for _ in 0..life.transactions {
        if life.drops > 0 && dice.one_in(life.drops) {
            client.drop_beside()?;
            client.create_beside()?;
        }
        client.run(workload)?;
        if voice.began.elapsed() > LIFE_MAX {
            break;
        }
    }
    Ok(())
}

/// What the process says, and how it ends.
struct Voice {
    began: Instant,
    clock: Clock,
    numbers: AtomicU64,
    output: Mutex<io::Stdout>,
    fatal: Vec<(Point, u64)>,
    after: u64,
    acknowledged: AtomicU64,
    /// All visits, and those that count, by point.
    visits: Vec<AtomicU64>,
    counted: Vec<AtomicU64>,
}

impl Voice {
    fn new(life: &Life) -> anyhow::Result<Self> {
        let point = |fatal: &Fatal| Some((Point::named(&fatal.point)?, fatal.visit));
        let zeros = || Point::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            began: Instant::now(),
            clock: Clock::default(),
            numbers: AtomicU64::new(u64::from(life.number) << 32),
            output: Mutex::new(io::stdout()),
            fatal: life.fatal.iter().map(point).collect::<Option<_>>().context("no such point")?,
            after: life.after,
            acknowledged: AtomicU64::new(0),
            visits: zeros(),
            counted: zeros(),
        })
    }

    fn reached(&self, point: Point) {
        self.visits[point as usize].fetch_add(1, Ordering::SeqCst);
        if self.acknowledged.load(Ordering::SeqCst) < self.after {
            return;
        }
        let visit = 1 + self.counted[point as usize].fetch_add(1, Ordering::SeqCst);
        if self.fatal.contains(&(point, visit)) {
            self.die(Fatal { point: point.name().into(), visit });
        }
    }

    fn visits(&self) -> Visits {
        let visits = Point::ALL.iter().zip(&self.visits);
        let counts = visits.map(|(point, count)| (point.name().to_owned(), count.load(Ordering::SeqCst)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    fn say(&self, event: &Event) {
        let output = self.output.lock();
        tell(output, event);
    }

    fn die(&self, at: Fatal) {
        // Kept until the end.
        let output = self.output.lock();
        tell(&*output, &Event::Dying { at, visits: self.visits() });
        kill();
    }
}

/// A line in one write.
fn tell(output: impl std::ops::Deref<Target = io::Stdout>, event: &Event) {
    let told = serde_json::to_vec(event).map_err(io::Error::from).and_then(|mut line| {
        line.push(b'\n');
        let mut output = output.lock();
        output.write_all(&line)?;
        output.flush()
    });
    if told.is_err() {
        // Nobody listens any more.
        kill();
    }
}

fn kill() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        std::thread::park();
    }
}

impl Sink for Voice {
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    fn asked(&self, number: u64, entry: Entry) {
        self.say(&Event::Asked { number, entry });
    }

    fn answered(&self, number: u64, answer: Answer) {
        let commits = answer.outcome == Outcome::Committed && answer.commit_ts.is_some();
        self.say(&Event::Answered { number, answer });
        if commits {
            self.acknowledged.fetch_add(1, Ordering::SeqCst);
        }
    }
}
