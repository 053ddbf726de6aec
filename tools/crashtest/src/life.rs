//! One life of a store in a process of its own. Clients run until all is done, or until nothing works any more; then the
//! store is asked a few more things, for it must go on refusing. Somebody else ends the process, or it does so itself: at a
//! point that was chosen for it, or by closing the store.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use percolite::crashtest::{Mutant, enable_mutant};
use percolite::engine::Engine;
use percolite::engine::folder::{FolderEngine, FolderOptions};
use percolite::runtime::Env;
use percolite::{CommitProtocol, Durability, Error, HistoryRetention, Keyspace, Store, TxnOptions};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::client::{BESIDE, Client, Habits, ROWS, Who, keeping};
use crate::copies;
use crate::dice::Dice;
use crate::doom::{Doom, Fatal};
use crate::examine::{MEMORY, engine};
use crate::fast::Fast;
use crate::keys::stored;
use crate::mutex::after::moment;
use crate::mutex::note::{Notary as _, Note};
use crate::mutex::{Common, LOCKED, Locker, Pen, World};
use crate::outcome::Outcome;
use crate::pipe::{Call, Event, PipeSink};
use crate::recorder::Recorded;
use crate::restores::{MANY, restore};
use crate::violation::Broken;
use crate::workload::{self, State, Workload};

/// A life whose commits ask for no sync syncs after each so many transactions on average.
pub const SYNCS: usize = 24;
/// The longest pause under a lock, in milliseconds.
const PAUSES_MS: usize = 20;
/// Sessions of a life.
const SESSIONS: u64 = 1000;
/// A call that fails has returned to its caller well within this time after it was noted.
const NOTED_EARLIER: Duration = Duration::from_millis(100);
/// A life that ends itself ends after this time: what was not reached until then is not reached.
const LIFE_MAX: Duration = Duration::from_secs(8);

/// What a layer calls the number of commits that were streamed, and of lives that were to stream.
pub const STREAMED: &str = "streamed commits";
/// See [`STREAMED`].
pub const STREAMING: &str = "lives that stream";
/// Lives enough for one of them to stream something.
const STREAMING_ENOUGH: f64 = 8.0;

/// The workload of a seed, and from how many bytes on its transactions stream: those of every third one do, large ones by the
/// page or small ones row by row.
pub fn load_of(seed: u64, dice: &mut Dice) -> (&'static str, usize) {
    let small = dice.pick(workload::ALL).map_or("bank", |workload| workload.name());
    match seed % 6 {
        0 => (workload::LARGE.name(), 4000),
        3 => (small, 100),
        _ => (small, 16 << 20),
    }
}

/// Counts what one life has streamed.
pub fn count_streamed(outcome: &mut Outcome, life: &Life, streamed: u64) {
    outcome.count(STREAMING, u64::from(life.stream_at_bytes < 16 << 20));
    outcome.count(STREAMED, streamed);
}

/// Lives that were to stream and did not show nothing of it.
pub fn none_streamed(outcome: &Outcome) -> Option<Broken> {
    let sum = |name: &str| outcome.figures.get(name).into_iter().flatten().sum::<f64>();
    let missing = sum(STREAMING) >= STREAMING_ENOUGH && sum(STREAMED) <= 0.0;
    missing.then(|| Broken::new("harness", format!("{} lives were to stream, and none did", sum(STREAMING))))
}

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
    /// Memory for writes, in bytes; little of it has generations handed down.
    pub write_buffers: usize,
    /// Bytes of an extra row that every transaction is followed by; they fill disks and buffers.
    pub filler: usize,
    /// A life whose commits ask for no sync syncs after each so many transactions on average; 0: never.
    pub syncs: usize,
    /// Up to so many milliseconds pass between what a transaction does and its commit, in every other one.
    pub thinks_ms: usize,
    /// How many rows' last commits the store remembers.
    pub conflict_slots: usize,
    /// From how many bytes on transactions stream.
    pub stream_at_bytes: usize,
    /// For how many milliseconds the store keeps history; as before if nothing is said.
    pub history_ms: Option<u64>,
    /// One step in so many drops and creates the keyspace beside; 0: none does.
    pub drops: usize,
    /// One step of the first client in so many makes a copy of the store; 0: none does.
    pub copies: usize,
    /// One step of the first client in so many restores a dump; 0: none does.
    pub restores: usize,
    /// How many threads take locks beside the clients.
    #[serde(default)]
    pub lockers: usize,
    /// How many times faster than the world's its clock runs.
    pub speed: u32,
    /// Where faults are noted as they happen to it, if one is to.
    #[serde(default)]
    pub notes: Option<PathBuf>,
    /// Whether it sweeps in the background.
    pub sweep: bool,
    /// Their choices.
    pub seed: u64,
    /// Whether the process stays when all is done, with the store open, until somebody ends it. Otherwise it closes it.
    pub lingers: bool,
    /// Where a process that does not linger dies: at the first of these that comes.
    pub fatal: Vec<Fatal>,
    /// How many acknowledged commits come first; visits before do not count.
    pub after: u64,
    /// A mistake that is switched on.
    pub mutant: Option<String>,
}

impl Default for Life {
    fn default() -> Self {
        Self {
            folder: PathBuf::new(),
            number: 0,
            workload: String::new(),
            two_phase: false,
            promise: Promise::Sync,
            clients: 0,
            transactions: 0,
            long_values: 0,
            write_buffers: 4 << 20,
            filler: 0,
            syncs: SYNCS,
            thinks_ms: 0,
            conflict_slots: 64,
            stream_at_bytes: 16 << 20,
            history_ms: None,
            drops: 0,
            copies: 0,
            restores: 0,
            lockers: 0,
            speed: 1,
            notes: None,
            sweep: true,
            seed: 0,
            lingers: true,
            fatal: Vec::new(),
            after: 0,
            mutant: None,
        }
    }
}

impl Life {
    /// This program, living this life.
    ///
    /// # Errors
    /// Where this program cannot be found.
    pub fn arguments(&self) -> anyhow::Result<Vec<String>> {
        self.arguments_of(&std::env::current_exe().context("where this program is")?)
    }

    /// A program that has the command `life`, living this life.
    ///
    /// # Errors
    /// None that a caller could do anything about.
    pub fn arguments_of(&self, program: &Path) -> anyhow::Result<Vec<String>> {
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
        Habits { protocol: self.protocol(), durability, long_values: self.long_values }
    }

    fn protocol(&self) -> CommitProtocol {
        if self.two_phase { CommitProtocol::TwoPhase } else { CommitProtocol::Auto }
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
    enable_mutant(life.mutant.as_deref().and_then(Mutant::from_name));
    let sink = Arc::new(PipeSink::new(life.number));
    let doom = (!life.lingers).then(|| Doom::of(&life, &sink)).transpose()?;
    match open(&life, &sink) {
        Ok(opened) => {
            sink.say(&Event::Ready);
            if run(&life, workload, &opened, &sink) || ask_last(&life, &opened, &sink) {
                ask_on(&opened, &sink);
            }
            if let Some(doom) = doom {
                close(opened, &sink);
                sink.say(&Event::Closed(doom.visits()));
                return Ok(());
            }
            sink.say(&Event::Done);
            loop {
                std::thread::park();
            }
        }
        Err(why) => {
            sink.say(&Event::Failed(answer("open", Err(why))));
            sink.say(&Event::Done);
        }
    }
    Ok(())
}

fn close(opened: Opened, sink: &PipeSink) {
    let closed = opened.store.resolve_orphan_locks().and_then(|_| opened.store.close());
    if closed.is_err() {
        sink.say(&Event::Failed(answer("close", closed)));
    }
}

struct Opened {
    runtime: Arc<Fast>,
    locked: Option<Keyspace>,
    common: Common,
    store: Store,
    engine: Arc<FolderEngine>,
    rows: Keyspace,
    beside: Keyspace,
}

fn open(life: &Life, sink: &PipeSink) -> Result<Opened, Error> {
    let setup = FolderOptions { write_buffer_bytes: life.write_buffers, ..MEMORY };
    let engine = engine(&life.folder, setup)?;
    let runtime = Arc::new(Fast::new(life.speed));
    let (before, wall) = (moment(life.number, runtime.elapsed(), sink.tick()), runtime.unix_millis());
    let keep =
        life.history_ms.map_or(HistoryRetention::Unchanged, |ms| HistoryRetention::For(Duration::from_millis(ms)));
    let store = keeping(Store::builder(), keep)
        .commit_protocol(life.protocol())
        .durability(life.durability())
        .runtime(Arc::clone(&runtime) as Arc<dyn Env>)
        .conflict_cache_rows(life.conflict_slots)
        .large_transaction_bytes(life.stream_at_bytes)
        .background_resolve(life.sweep)
        .admission_limit(4)
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let (beside, rows) = (store.keyspace(BESIDE)?, store.keyspace(ROWS)?);
    let locked = if life.lockers > 0 { Some(store.keyspace(LOCKED)?) } else { None };
    let now = moment(life.number, runtime.elapsed(), sink.tick());
    sink.note(Note::Opened(before, now, (wall, runtime.unix_millis())));
    Ok(Opened { store, engine, rows, beside, runtime, locked, common: Common::default() })
}

/// Runs all clients; whether the store failed.
fn run(life: &Life, workload: &'static dyn Workload, opened: &Opened, sink: &PipeSink) -> bool {
    let mut dice = Dice::new(life.seed);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for locker in 0..life.lockers as u64 {
            let (dice, failed) = (dice.split(), &failed);
            scope.spawn(move || {
                if let Err(why) = run_locker(life, opened, sink, locker, dice) {
                    failed.store(true, Ordering::SeqCst);
                    sink.say(&Event::Failed(answer("a lock", Err(why))));
                }
            });
        }
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
    let (mut done, began) = (0, Instant::now());
    while life.transactions == 0 || done < life.transactions {
        if life.drops > 0 && dice.one_in(life.drops) {
            client.drop_beside()?;
            client.create_beside()?;
        }
        if number == 0 {
            keep(life, opened, sink, done as u64, &mut dice)?;
        }
        client.run(&Thoughtful { workload, thinks_ms: life.thinks_ms })?;
        done += 1;
        if life.filler > 0 {
            let key = stored(&format!("f{number}.{done}"));
            opened.store.transact(|txn| txn.put(&opened.beside, &key, vec![7; life.filler]))?;
        }
        if life.promise == Promise::Buffered && life.syncs > 0 && dice.one_in(life.syncs) {
            opened.store.sync()?;
        }
        let stats = opened.store.stats();
        sink.say(&Event::Durable(stats.durable_ts.to_u64()));
        if life.stream_at_bytes < 16 << 20 {
            sink.say(&Event::Streamed(stats.commits_large));
        }
        if !life.lingers && began.elapsed() > LIFE_MAX {
            break;
        }
    }
    Ok(())
}

/// Takes locks for as long as the clients have time, or so often.
fn run_locker(life: &Life, opened: &Opened, sink: &PipeSink, number: u64, dice: Dice) -> Result<(), Error> {
    let Some(rows) = &opened.locked else { return Ok(()) };
    let habits = life.habits(life.of_client(number));
    let who = Who { session: u64::from(life.number) * SESSIONS + SESSIONS / 2 + number, life: life.number, habits };
    let Opened { store, engine, runtime, common, .. } = opened;
    let world = World { store, engine: &**engine, rows, runtime: &**runtime, notary: sink, common };
    let (mut locker, began) = (Locker::new(world, who, dice, PAUSES_MS), Instant::now());
    let mut done = 0;
    while (life.transactions == 0 || done < life.transactions) && (life.lingers || began.elapsed() < LIFE_MAX) {
        locker.turn()?;
        done += 1;
    }
    common.clear(&Pen { world, life: life.number });
    Ok(())
}

/// What the first client does beside its transactions.
fn keep(life: &Life, opened: &Opened, sink: &PipeSink, done: u64, dice: &mut Dice) -> Result<(), Error> {
    let number = u64::from(life.number) * SESSIONS + done;
    if life.copies > 0 && dice.one_in(life.copies) {
        sink.say(&Event::Copying(number));
        opened.store.checkpoint(copies::copy_of(&life.folder, number))?;
        sink.say(&Event::Copied(number));
    }
    if life.restores > 0 && dice.one_in(life.restores) {
        sink.say(&Event::Restoring(number));
        restore(&opened.store, Store::builder().commit_protocol(life.protocol()), number, MANY)?;
        sink.say(&Event::Restored(number));
    }
    Ok(())
}

/// A workload whose transactions take their time.
struct Thoughtful {
    workload: &'static dyn Workload,
    thinks_ms: usize,
}

impl Workload for Thoughtful {
    fn name(&self) -> &'static str {
        self.workload.name()
    }

    fn load(&self, txn: &mut Recorded<'_>) -> Result<(), Error> {
        self.workload.load(txn)
    }

    fn transaction(&self, txn: &mut Recorded<'_>) -> Result<(), Error> {
        self.workload.transaction(txn)?;
        if self.thinks_ms > 0 && txn.dice().one_in(2) {
            std::thread::sleep(Duration::from_millis(txn.dice().below(self.thinks_ms) as u64));
        }
        Ok(())
    }

    fn judge(&self, state: &State) -> Result<(), String> {
        self.workload.judge(state)
    }
}

/// Asks for a last durable commit, which a fault before must refuse: one in the background may have had no caller to return an
/// error to. The answer is whether the store failed.
fn ask_last(life: &Life, opened: &Opened, sink: &PipeSink) -> bool {
    let Some(notes) = &life.notes else { return false };
    let noted = std::fs::read(notes).unwrap_or_default().len();
    // A fault is noted before the call returns to the store.
    std::thread::sleep(NOTED_EARLIER);
    let options = TxnOptions { durability: Some(Durability::Sync), ..TxnOptions::default() };
    let outcome = opened.store.transact_with(options, |txn| txn.put(&opened.beside, stored("last"), ""));
    sink.say(&Event::Noted(noted));
    let has_failed = outcome.is_err();
    if has_failed {
        sink.say(&Event::Failed(answer("a last commit", outcome)));
    }
    has_failed
}

/// Asks a store that has failed for everything there is.
fn ask_on(opened: &Opened, sink: &PipeSink) {
    let Opened { store, rows, .. } = opened;
    let ask = |call: &str, outcome: Result<(), Error>| sink.say(&Event::Called(answer(call, outcome)));
    for _ in 0..2 {
        ask(
            "begin and commit",
            store.begin().and_then(|mut txn| {
                txn.put(rows, stored("after"), "failing")?;
                txn.commit().map(drop)
            }),
        );
        ask("transact", store.transact(|txn| txn.put(rows, stored("after"), "failing")));
        ask("snapshot", store.snapshot().and_then(|snapshot| snapshot.get(rows, stored("after")).map(drop)));
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
