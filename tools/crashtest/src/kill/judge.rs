//! Opens a store that was killed, and judges it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use percolite::engine::local::LocalEngine;
use percolite::engine::rocks::{RocksEngine, RocksMemory, RocksStorage};
use percolite::engine::storage::{Column, Reader as _};
use percolite::engine::{EngineError, RowRange};
use percolite::{KeyspaceId, Store};

use super::case::Case;
use super::clock::Clock;
use crate::checker::check;
use crate::client::{BESIDE, Client, Ended, Habits, ROWS, Sink, Who};
use crate::dice::Dice;
use crate::invariants::{History, digest, structure};
use crate::ledger::{Answer, Entry, Ledger};
use crate::violation::Broken;
use crate::workload::Workload;

/// Judging takes well under a second.
const JUDGE_MAX: Duration = Duration::from_secs(120);
/// For so many milliseconds a store may be open elsewhere.
const BUSY_MAX: usize = 1000;

/// What was found.
#[derive(Debug, Default)]
pub struct Judged {
    /// What is wrong.
    pub broken: Vec<Broken>,
    /// Commits that nobody was told of.
    pub unanswered: u64,
    /// How many locks were left.
    pub locks: u64,
    /// How long it took to open and to resolve them, in milliseconds.
    pub recovery_ms: f64,
    /// The ledger, as it was settled.
    pub ledger: Ledger,
}

/// Judges the store in `folder`, in a bounded time: a store that hangs is a broken one.
pub fn judge(folder: PathBuf, case: Case, workload: &'static dyn Workload, ledger: Ledger, life: u32) -> Judged {
    let (tell, told) = channel();
    let as_it_was = ledger.clone();
    std::thread::spawn(move || {
        let judge = Judge { folder: &folder, case, workload, life, book: Book::new(ledger, life) };
        let mut judged = Judged::default();
        if let Err(how) = judge.run(&mut judged) {
            judged.broken.push(Broken::new("opens again", how));
        }
        judged.ledger = judge.book.ledger().clone();
        match judged.ledger.history() {
            Ok(history) => judged.broken.extend(Broken::found_by_checker(&check(&history))),
            Err(why) => judged.broken.push(Broken::new("harness", why.to_string())),
        }
        let _ = tell.send(judged);
    });
    told.recv_timeout(JUDGE_MAX).unwrap_or_else(|why| {
        let broken = vec![Broken::new("I12 progress", format!("judging came to no end within {JUDGE_MAX:?}: {why}"))];
        Judged { broken, ledger: as_it_was, ..Judged::default() }
    })
}

struct Judge<'a> {
    folder: &'a Path,
    case: Case,
    workload: &'static dyn Workload,
    life: u32,
    book: Book,
}

impl Judge<'_> {
    fn run(&self, judged: &mut Judged) -> Result<(), String> {
        let (before, rows) = self.resolve_and_judge(judged)?;
        let (engine, store) = self.open()?;
        store.resolve_orphans().map_err(|why| why.to_string())?;
        store.close().map_err(|why| why.to_string())?;
        let after = digest(engine.storage(), rows).map_err(|why| why.to_string())?;
        if before != after {
            let how = "opening again has changed what is stored";
            judged.broken.push(Broken::new("I11 recovery is idempotent", how));
        }
        Ok(())
    }

    fn resolve_and_judge(&self, judged: &mut Judged) -> Result<(u64, KeyspaceId), String> {
        let began = Instant::now();
        let engine = self.engine()?;
        judged.locks = locks(&engine).map_err(|why| why.to_string())?;
        let store = self.store(&engine)?;
        store.resolve_orphans().map_err(|why| format!("orphans are not resolved: {why}"))?;
        judged.recovery_ms = began.elapsed().as_secs_f64() * 1000.0;
        let keyspace = |name| store.keyspace(name).map_err(|why| format!("its keyspaces do not open: {why}"));
        let (beside, rows) = (keyspace(BESIDE)?, keyspace(ROWS)?);

        let settled = self.book.ledger().settle(&*engine, &rows).map_err(|why| why.to_string())?;
        judged.unanswered = settled.committed as u64;
        judged.broken.extend(settled.lost);

        let (protocol, durability) = (self.case.protocol.into(), self.case.durability.into());
        let habits = Habits { protocol, durability, long_values: 8 };
        let who = Who { session: u64::from(self.life) * 100, life: self.life, habits };
        let keyspaces = (rows.clone(), Some(beside));
        let mut client = Client::new((&store, &*engine), keyspaces, &self.book, who, Dice::new(self.case.seed));
        if let Err(why) = client.observe(self.workload) {
            judged.broken.push(Broken::new("I8 workload", why.to_string()));
        }
        match client.touch_every_row() {
            Ok(Ended::Committed) => {}
            other => judged.broken.push(Broken::new("I12 progress", format!("a transaction on every row: {other:?}"))),
        }
        drop(client);
        store.resolve_orphans().map_err(|why| why.to_string())?;
        store.close().map_err(|why| format!("it does not close: {why}"))?;
        judged.broken.extend(structure(engine.storage(), History::None).map_err(|why| why.to_string())?);
        let before = digest(engine.storage(), rows.id()).map_err(|why| why.to_string())?;
        Ok((before, rows.id()))
    }

    fn open(&self) -> Result<(Arc<RocksEngine>, Store), String> {
        let engine = self.engine()?;
        let store = self.store(&engine)?;
        Ok((engine, store))
    }

    fn engine(&self) -> Result<Arc<RocksEngine>, String> {
        let memory = RocksMemory { cache: 4 << 20, write_buffers: 16 << 20 };
        let mut waited = 0;
        loop {
            match RocksStorage::open(self.folder, memory) {
                Ok(storage) => return Ok(Arc::new(LocalEngine::new(storage, true))),
                // A child that another case is starting holds the files of this process, locks included, until it has
                // become the other program.
                Err(EngineError::Busy(_)) if waited < BUSY_MAX => {
                    waited += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(why) => return Err(format!("it does not open: {why}")),
            }
        }
    }

    fn store(&self, engine: &Arc<RocksEngine>) -> Result<Store, String> {
        Store::builder()
            .protocol(self.case.protocol.into())
            .durability(self.case.durability.into())
            .open_engine(Arc::<RocksEngine>::clone(engine))
            .map_err(|why| format!("it does not open: {why}"))
    }
}

fn locks(engine: &RocksEngine) -> Result<u64, EngineError> {
    let mut count = 0;
    engine.storage().scan(Column::Lock, &RowRange::all(), false, |_, _| {
        count += 1;
        true
    })?;
    Ok(count)
}

/// The ledger, for a client of this process.
struct Book {
    ledger: Mutex<Ledger>,
    clock: Clock,
    numbers: AtomicU64,
}

impl Book {
    fn new(ledger: Ledger, life: u32) -> Self {
        Self { ledger: Mutex::new(ledger), clock: Clock::default(), numbers: AtomicU64::new(u64::from(life) << 32) }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }
}

impl Sink for Book {
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    fn asked(&self, number: u64, entry: Entry) {
        self.ledger().asked(number, entry);
    }

    fn answered(&self, number: u64, answer: Answer) {
        self.ledger().answered(number, answer);
    }
}
