//! Opens a store that something was done to, and judges what is there against what its clients were told.
//!
//! Everything that a crash left is resolved; what became of open transactions is looked up; the workload's promise, the
//! structure below the store, and progress are judged; opening once more must change nothing; and the history of all lives
//! together must be one of snapshot isolation.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use percolite::engine::Compression;
use percolite::engine::folder::{FolderEngine, FolderOptions, FolderStorage};
use percolite::engine::storage::{CellReader as _, Column};
use percolite::engine::{Engine, EngineError, RowRange};
use percolite::runtime::{Env, SystemEnv};
use percolite::{Builder, Durability, Error, Store};

use crate::checker::check;
use crate::client::{BESIDE, Client, Ended, Habits, ROWS, Who};
use crate::counter::miscounted;
use crate::desk::{Desk, first_tick};
use crate::dice::Dice;
use crate::fast::Fast;
use crate::fenced::{self, fold};
use crate::invariants::{digest, keyspaces, structure};
use crate::ledger::Ledger;
use crate::mutex::after::{self, moment};
use crate::mutex::note::{Moment, Notary, Note};
use crate::mutex::{Common, LOCKED, Pen, World};
use crate::restores::{MANY, Restores, left_behind, nameless};
use crate::violation::Broken;
use crate::workload::Workload;

/// A small store: the harness opens thousands.
pub const MEMORY: FolderOptions = FolderOptions {
    block_cache_bytes: 1 << 20,
    write_buffer_bytes: 4 << 20,
    compression: Compression::Lz4,
    accept_data_loss: None,
};

/// What is left of a restore is erased well within this time, by a store whose clock runs so fast.
const ERASED_WITHIN: Duration = Duration::from_secs(20);
const SPEED: u32 = 50;

/// A process that is being started has become another program in less than that.
const STARTING_MAX: Duration = Duration::from_secs(1);

/// What is examined.
pub struct Subject<'a> {
    /// Where it is; it is changed by being opened.
    pub folder: &'a Path,
    /// What its clients did.
    pub workload: &'static dyn Workload,
    /// In what way.
    pub habits: Habits,
    /// The life that examining is, above all others.
    pub life: u32,
    /// What clients were told of buffered commits before a crash took the promise back.
    pub told: &'a BTreeMap<u64, u64>,
    /// What was noted of locks.
    pub notes: &'a [Note],
    /// Whether to open it a second time.
    pub again: bool,
    /// The loss with which it is to open all the same.
    pub accepts: Option<u64>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Examined {
    /// The ledger with everything looked up, and without what the examiner did itself.
    pub settled: Ledger,
    /// The whole of it.
    pub ledger: Ledger,
    /// Commits that nobody was told of and that were there.
    pub unanswered: u64,
    /// How many locks were left.
    pub locks: u64,
    /// How long it took to open and to resolve them.
    pub recovery: Duration,
    /// What is broken.
    pub broken: Vec<Broken>,
    /// Whether the store lists a loss that was accepted.
    pub told_lost: bool,
    /// Why it did not open, if so.
    pub refused: Option<Error>,
}

/// A folder, as the engine of a store and for looking below it.
///
/// # Errors
/// Those of opening.
pub fn engine(folder: &Path, memory: FolderOptions) -> Result<Arc<FolderEngine>, EngineError> {
    Ok(Arc::new(FolderEngine::new(FolderStorage::open(folder, memory)?, true)))
}

/// Judges a store. The ledger has everything that was promised, and no more.
pub fn examine(subject: &Subject<'_>, ledger: Ledger) -> Examined {
    let mut found = Examined::default();
    let desk = Desk::new(ledger, subject.life);
    match resolve_and_judge(subject, &desk, &mut found) {
        Ok(before) if subject.again => match open_and_digest(subject) {
            Ok(after) if after == before => {}
            Ok(_) => breaks(&mut found, "I11 recovery is idempotent", "opening again has changed what is stored"),
            Err(why) => breaks(&mut found, "opens again", format!("not the second time: {why}")),
        },
        Ok(_) => {}
        Err(why) => found.refused = Some(why),
    }
    found.ledger = desk.into_ledger();
    if found.refused.is_none() {
        found.broken.extend(miscounted(&found.ledger));
        match found.ledger.history() {
            Ok(history) => found.broken.extend(Broken::found_by_checker(&check(&history))),
            Err(why) => breaks(&mut found, "harness", why.to_string()),
        }
    }
    found
}

/// An error is one of opening or of the first look: the store refuses.
fn resolve_and_judge(subject: &Subject<'_>, desk: &Desk, found: &mut Examined) -> Result<u64, Error> {
    let began = Instant::now();
    let engine = engine(subject.folder, FolderOptions { accept_data_loss: subject.accepts, ..MEMORY })?;
    found.told_lost = !engine.data_losses().is_empty();
    found.locks = locks(&engine)?;
    let book = Book::new(subject);
    let before = book.now();
    let store =
        builder(subject).runtime(Arc::clone(&book.runtime)).open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    judge_locks(subject, &book, before, (&store, &*engine), found)?;
    let (beside, rows) = (store.keyspace(BESIDE)?, store.keyspace(ROWS)?);
    store.resolve_orphan_locks()?;
    found.recovery = began.elapsed();
    {
        let mut ledger = desk.ledger();
        let settled = ledger.settle(&*engine, &rows)?;
        found.unanswered = settled.committed as u64;
        found.broken.extend(settled.lost);
        if let Some(hole) = ledger.lost_in_the_middle(subject.told) {
            breaks(found, "I2 a prefix survives", hole);
        }
        found.settled = ledger.clone();
    }
    let who = Who {
        session: u64::from(subject.life) * 1000,
        life: subject.life,
        habits: Habits { durability: Durability::Sync, ..subject.habits },
    };
    let (both, dice) = ((rows, Some(beside)), Dice::new(u64::from(subject.life)));
    let mut client = Client::new((&store, &*engine), both, desk, who, dice);
    let judged = client.observe(subject.workload);
    let progress = client.touch_every_row();
    drop(client);
    if let Err(why) = judged {
        breaks(found, "I8 workload", why.to_string());
    }
    match progress {
        Ok(Ended::Committed) => {}
        other => breaks(found, "I12 progress", format!("a transaction on every row: {other:?}")),
    }
    store.resolve_orphan_locks()?;
    let there = keyspaces(&store)?;
    if let Err(why) = store.close() {
        breaks(found, "closes", why.to_string());
    }
    found.broken.extend(structure(engine.storage())?);
    Ok(digest(engine.storage(), &there)?)
}

/// The notes of a store that is examined.
struct Book {
    runtime: Arc<dyn Env>,
    notes: Mutex<Vec<Note>>,
    ticks: AtomicU64,
    life: u32,
}

impl Book {
    fn new(subject: &Subject<'_>) -> Self {
        let ticks = AtomicU64::new(first_tick(subject.life));
        Self {
            runtime: Arc::new(SystemEnv::default()),
            notes: Mutex::new(subject.notes.to_vec()),
            ticks,
            life: subject.life,
        }
    }

    fn now(&self) -> (Moment, u64) {
        (moment(self.life, self.runtime.elapsed(), self.tick()), self.runtime.unix_millis())
    }
}

impl Notary for Book {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn note(&self, note: Note) {
        self.notes.lock().push(note);
    }
}

/// Asks for the leases that were left, looks up what was committed under locks, and judges what was noted of them. In the end no
/// lock is held.
fn judge_locks(
    subject: &Subject<'_>,
    book: &Book,
    (before, wall): (Moment, u64),
    (store, engine): (&Store, &FolderEngine),
    found: &mut Examined,
) -> Result<(), Error> {
    if !subject.notes.iter().any(|note| matches!(note, Note::Asked { .. })) {
        return Ok(());
    }
    let (now, wall_now) = book.now();
    book.note(Note::Opened(before, now, (wall, wall_now)));
    let (rows, common) = (store.keyspace(LOCKED)?, Common::default());
    let world = World { store, engine, rows: &rows, runtime: &*book.runtime, notary: book, common: &common };
    let notes = book.notes.lock().clone();
    let mut dice = Dice::new(u64::from(subject.life));
    found.broken.extend(after::ask_for_leases(&Pen { world, life: book.life }, &notes, &mut dice)?);
    store.resolve_orphan_locks()?;
    let open = fold(&*book.notes.lock()).open;
    book.notes.lock().extend(after::settle(&open, engine, &rows));
    found.broken.extend(fenced::check(&fold(&*book.notes.lock())));
    found.broken.extend(after::nothing_left(store)?);
    found.broken.extend(after::no_rows(engine.storage())?);
    Ok(())
}

/// Judges the restored keyspaces of a store that was killed, of dumps with [`MANY`] rows, and that nothing is left of those
/// that went before.
///
/// # Errors
/// Those of opening and reading it.
pub fn examine_restored(folder: &Path, restores: &Restores) -> Result<Vec<Broken>, Error> {
    let engine = engine(folder, MEMORY)?;
    let store = Store::builder()
        .disable_history()
        .runtime(Arc::new(Fast::new(SPEED)))
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    let mut broken: Vec<Broken> = restores.judge(&store, MANY)?.into_iter().collect();
    let began = Instant::now();
    loop {
        let left = nameless(&store, engine.storage())?;
        if left.is_empty() {
            break;
        }
        if began.elapsed() > ERASED_WITHIN {
            broken.push(left_behind(&left));
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    store.close()?;
    Ok(broken)
}

fn locks(engine: &FolderEngine) -> Result<u64, EngineError> {
    let mut count = 0;
    engine.storage().scan(Column::Lock, &RowRange::all(), false, |_, _| {
        count += 1;
        true
    })?;
    Ok(count)
}

fn open_and_digest(subject: &Subject<'_>) -> Result<u64, Error> {
    let engine = reopen(subject.folder)?;
    let store: Store = builder(subject).open_engine(Arc::clone(&engine) as Arc<dyn Engine>)?;
    store.resolve_orphan_locks()?;
    let there = keyspaces(&store)?;
    store.close()?;
    Ok(digest(engine.storage(), &there)?)
}

/// Opens what this process has just closed. A process that another case is starting may still hold what this one had open,
/// locks included, until it has become the other program. Nothing of the kind excuses a lock that is held when the store is
/// opened first: whoever had it is gone by then.
fn reopen(folder: &Path) -> Result<Arc<FolderEngine>, EngineError> {
    let began = Instant::now();
    loop {
        match engine(folder, MEMORY) {
            Err(EngineError::AlreadyOpen(_)) if began.elapsed() < STARTING_MAX => {
                std::thread::sleep(Duration::from_millis(1))
            }
            opened => return opened,
        }
    }
}

fn builder(subject: &Subject<'_>) -> Builder {
    Store::builder().commit_protocol(subject.habits.protocol).durability(Durability::Sync).conflict_cache_rows(64)
}

fn breaks(found: &mut Examined, promise: &'static str, how: impl Into<String>) {
    found.broken.push(Broken::new(promise, how));
}

#[cfg(test)]
mod tests {
    use percolite::{CommitProtocol, ErrorKind};

    use super::*;
    use crate::workload;

    #[test]
    fn a_store_that_is_let_go_too_late_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let held = engine(folder.path(), MEMORY).unwrap();
        let lets_go = std::thread::spawn(move || {
            std::thread::sleep(STARTING_MAX / 4);
            drop(held);
        });
        let subject = Subject {
            folder: folder.path(),
            workload: workload::ALL[0],
            habits: Habits { protocol: CommitProtocol::Auto, durability: Durability::Sync, long_values: 0 },
            life: 1,
            told: &BTreeMap::new(),
            notes: &[],
            again: true,
            accepts: None,
        };
        let why = examine(&subject, Ledger::default()).refused.unwrap();
        assert!(matches!(why.kind(), ErrorKind::AlreadyOpen(_)), "{why:?}");
        lets_go.join().unwrap();
        assert!(examine(&subject, Ledger::default()).refused.is_none());
    }
}
