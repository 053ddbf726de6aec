//! One life of a store in a process of its own, which somebody else will end: clients run until they are told to stop, or
//! until nothing works any more. Then the store is asked a few more things, for it must go on refusing.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use percolite::crashtest::{Mutant, mutate};
use percolite::engine::Engine;
use percolite::engine::rocks::{RocksEngine, RocksMemory};
use percolite::{CommitProtocol, Durability, Error, Keyspace, Store};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::client::{BESIDE, Client, Habits, ROWS, Who};
use crate::dice::Dice;
use crate::examine::engine;
use crate::pipe::{Call, Event, PipeSink};
use crate::workload::{self, Workload};

/// One sync in so many transactions where nothing else asks for one.
const SYNCS: usize = 24;
/// Sessions of a life.
const SESSIONS: u64 = 1000;

/// When commits are acknowledged in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Promise {
    /// When they are durable.
    Sync,
    /// When they are visible.
    Buffered,
    /// As each client likes, in a store that shows snapshots only of what is durable.
    Mixed,
}

/// See the [module](self).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    /// Where the store is.
    pub folder: PathBuf,
    /// Which life this is.
    pub number: u32,
    /// What its clients do.
    pub workload: String,
    /// Whether they commit in two phases.
    pub two_phase: bool,
    /// What they are promised.
    pub promise: Promise,
    /// How many they are.
    pub clients: usize,
    /// How many transactions each of them runs; 0: until the end.
    pub transactions: usize,
    /// One value in so many is long; 0: none is.
    pub long_values: usize,
    /// Memory for writes, in bytes; little of it has RocksDB switch logs.
    pub write_buffers: usize,
    /// Bytes of an extra row that every transaction is followed by; they fill disks and buffers.
    pub filler: usize,
    /// Their choices.
    pub seed: u64,
    /// Whether the process stays when all is done, with the store open, until somebody ends it.
    pub lingers: bool,
    /// A mistake that is switched on.
    pub mutant: Option<String>,
}

impl Life {
    /// This program, living this life.
    ///
    /// # Errors
    /// Where this program cannot be found.
    pub fn arguments(&self) -> anyhow::Result<Vec<String>> {
        let program = std::env::current_exe().context("where this program is")?;
        Ok(vec![program.to_string_lossy().into_owned(), "life".into(), serde_json::to_string(self)?])
    }

    /// The same as a command.
    ///
    /// # Errors
    /// Where this program cannot be found.
    pub fn command(&self) -> anyhow::Result<Command> {
        let arguments = self.arguments()?;
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]);
        Ok(command)
    }

    /// How the clients of this life commit.
    pub fn habits(&self, durability: Durability) -> Habits {
        let protocol = if self.two_phase { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
        Habits { protocol, durability, long_values: self.long_values }
    }

    fn durability(&self) -> Durability {
        if self.promise == Promise::Buffered { Durability::Buffered } else { Durability::Sync }
    }

    fn of_client(&self, client: u64) -> Durability {
        match self.promise {
            Promise::Mixed if client % 2 == 1 => Durability::Buffered,
            _ => self.durability(),
        }
    }
}

/// Lives it.
///
/// # Errors
/// Where it makes no sense; what the store does is said through the pipe.
pub fn live(life: &str) -> anyhow::Result<()> {
    let life: Life = serde_json::from_str(life)?;
    let workload = workload::named(&life.workload).with_context(|| format!("no workload {:?}", life.workload))?;
    // A process that hangs must not outlive the one that listens.
    set_parent_process_death_signal(Some(Signal::KILL)).context("a signal at the parent's end")?;
    mutate(life.mutant.as_deref().and_then(Mutant::named));
    let sink = PipeSink::new(life.number);
    match open(&life) {
        Ok(opened) => {
            sink.say(&Event::Ready);
            if run(&life, workload, &opened, &sink) {
                ask_on(&opened, &sink);
            }
            sink.say(&Event::Done);
            if life.lingers {
                loop {
                    std::thread::park();
                }
            }
        }
        Err(why) => {
            sink.say(&Event::Failed(answer("open", Err(why))));
            sink.say(&Event::Done);
        }
    }
    Ok(())
}

struct Opened {
    store: Store,
    engine: Arc<RocksEngine>,
    rows: Keyspace,
    beside: Keyspace,
}

fn open(life: &Life) -> Result<Opened, Error> {
    let engine = engine(&life.folder, RocksMemory { cache: 1 << 20, write_buffers: life.write_buffers })?;
    let store = Store::builder()
        .durability(life.durability())
        .conflict_slots(64)
        .admission(4)
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let (beside, rows) = (store.keyspace(BESIDE)?, store.keyspace(ROWS)?);
    Ok(Opened { store, engine, rows, beside })
}

/// Runs all clients; whether the store failed.
fn run(life: &Life, workload: &'static dyn Workload, opened: &Opened, sink: &PipeSink) -> bool {
    let mut dice = Dice::new(life.seed);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..life.clients as u64 {
            let (dice, failed) = (dice.split(), &failed);
            scope.spawn(move || {
                if let Err(why) = run_client(life, workload, opened, sink, client, dice) {
                    failed.store(true, Ordering::SeqCst);
                    sink.say(&Event::Failed(answer("a transaction", Err(why))));
                }
            });
        }
    });
    failed.load(Ordering::SeqCst)
}

fn run_client(
    life: &Life,
    workload: &'static dyn Workload,
    opened: &Opened,
    sink: &PipeSink,
    number: u64,
    mut dice: Dice,
) -> Result<(), Error> {
    let who = Who {
        session: u64::from(life.number) * SESSIONS + number,
        life: life.number,
        habits: life.habits(life.of_client(number)),
    };
    let keyspaces = (opened.rows.clone(), Some(opened.beside.clone()));
    let mut client = Client::new((&opened.store, &*opened.engine), keyspaces, sink, who, dice.split());
    if number == 0 {
        client.attempt(|txn| workload.load(txn))?;
    }
    let mut done = 0;
    while life.transactions == 0 || done < life.transactions {
        client.run(workload)?;
        done += 1;
        if life.filler > 0 {
            opened.store.transact(|txn| txn.put(&opened.beside, format!("f{number}.{done}"), vec![7; life.filler]))?;
        }
        if life.promise == Promise::Buffered && dice.one_in(SYNCS) {
            opened.store.sync()?;
        }
        sink.say(&Event::Durable(opened.store.stats().durable_ts.to_u64()));
    }
    Ok(())
}

/// Asks a store that has failed for everything there is.
fn ask_on(opened: &Opened, sink: &PipeSink) {
    let Opened { store, rows, .. } = opened;
    let ask = |call: &str, outcome: Result<(), Error>| sink.say(&Event::Called(answer(call, outcome)));
    for _ in 0..2 {
        ask(
            "begin and commit",
            store.begin().and_then(|mut txn| {
                txn.put(rows, "after", "failing")?;
                txn.commit().map(drop)
            }),
        );
        ask("transact", store.transact(|txn| txn.put(rows, "after", "failing")));
        ask("snapshot", store.snapshot().and_then(|snapshot| snapshot.get(rows, "after").map(drop)));
        ask("sync", store.sync());
        ask("keyspace", store.keyspace("after").map(drop));
    }
}

fn answer(call: &str, outcome: Result<(), Error>) -> Call {
    let (kind, text) = match outcome {
        Ok(()) => ("Ok".into(), String::new()),
        Err(why) => {
            let kind = format!("{:?}", why.kind());
            let name = kind.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_owned();
            (name, why.to_string())
        }
    };
    Call { call: call.into(), kind, text }
}
