//! The life of a commit: queue, leader, log, window, and the sync that it waits for.
//!
//! A client hands its rows in. If there is no leader it becomes one, and decides for all that have come meanwhile, until none is left;
//! otherwise it parks. What is decided is in the log before it is visible. One thread syncs, and wakes those that waited for that; one
//! hands generations down.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};

use anyhow::{Context as _, Result, anyhow};
use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex};
use rapidhash::v3::RapidSecrets;
use rocksdb::{DB, Options};

use super::super::{BUFFERED_FOR, Setup};
use super::below::{self, Below};
use super::layers::{Layers, ROWS};
use super::log::{HEADER, Segment};
use super::readers::{Readers, Slot};
use super::memtable::{Change, Generation, HEADER_MAX_BYTES, Record, Writer};
use super::{Row, View};

const SECRETS: RapidSecrets = RapidSecrets::seed(1);

const WAITS: u8 = 0;
const COMMITTED: u8 = 1;
const CONFLICT: u8 = 2;

/// What a client hands in.
pub struct Pending {
    read: u64,
    rows: Mutex<Vec<Row>>,
    record: Vec<u8>,
    is_durable: bool,
    outcome: AtomicU8,
    client: Thread,
}

impl Pending {
    pub fn new(read: u64, rows: Vec<Row>, is_durable: bool) -> Arc<Self> {
        let mut record = Vec::with_capacity(
            rows.iter().map(|(key, value)| key.len() + value.len() + HEADER_MAX_BYTES).sum::<usize>(),
        );
        for (key, value) in &rows {
            Record { column: ROWS, key, change: Change::Put(value) }.encode(&mut record);
        }
        let (rows, outcome, client) = (Mutex::new(rows), AtomicU8::new(WAITS), std::thread::current());
        Arc::new(Self { read, rows, record, is_durable, outcome, client })
    }

    fn answer(&self, outcome: u8) {
        self.outcome.store(outcome, Ordering::Release);
        self.client.unpark();
    }
}

/// A generation on its way down.
struct Frozen {
    generation: Arc<Generation>,
    end: u64,
    /// The last of its log.
    file: Arc<File>,
    segments: Vec<PathBuf>,
}

/// What only the leader touches.
struct Leader {
    segment: Segment,
    window: Writer,
    /// Those of the life before, whose rows the generation has, too.
    earlier: Vec<PathBuf>,
    frame: Vec<u8>,
    /// The keys of the batch.
    written: HashSet<Vec<u8>, rapidhash::fast::RandomState>,
    last: u64,
    /// Generations that are below, as long as a transaction may have begun before their end.
    past: VecDeque<(u64, Arc<Generation>)>,
}

/// What the syncing thread goes by.
#[derive(Default)]
struct ToSync {
    file: Option<Arc<File>>,
    /// Those of segments that were ended.
    before: Vec<Arc<File>>,
    written: u64,
    waiting: VecDeque<(u64, Arc<Pending>)>,
    is_over: bool,
}

/// What the thread that hands down goes by.
#[derive(Default)]
struct ToHandDown {
    frozen: Option<Frozen>,
    /// Made ahead.
    spare: Option<Segment>,
    is_over: bool,
}

/// What all threads have in common.
pub struct Shared {
    pub readers: Readers,
    pub writers: Readers,
    pub durable_commits: bool,
    layers: ArcSwap<Layers>,
    queue: Mutex<Vec<Arc<Pending>>>,
    leader: Mutex<Leader>,
    visible: AtomicU64,
    durable: AtomicU64,
    failure: OnceLock<String>,
    to_sync: Mutex<ToSync>,
    sync: Condvar,
    to_hand_down: Mutex<ToHandDown>,
    hand_down: Condvar,
    handed_down: Condvar,
    folder: PathBuf,
    generation_bytes: usize,
    number: AtomicU64,
    db: Arc<DB>,
    options: Options,
}

/// See the [module](self).
pub struct Core {
    pub shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Core {
    pub fn open(setup: &Setup) -> Result<Self> {
        std::fs::create_dir_all(&setup.folder)?;
        let (db, position, options) = below::open(setup)?;
        let (window, last, segments) = replay(&setup.folder, position)?;
        let first = segments.iter().map(|(number, _)| number + 1).max().unwrap_or(1);
        let earlier = segments.into_iter().map(|(_, path)| path).collect();
        let segment = Segment::new(&setup.folder, first)?;
        let to_sync = ToSync { file: Some(Arc::clone(&segment.file)), written: last, ..ToSync::default() };
        let layers = Layers { active: Arc::clone(window.generation()), frozen: None, below: Below::of(&db) };
        let leader = Leader {
            segment,
            window,
            earlier,
            frame: Vec::new(),
            written: HashSet::default(),
            last,
            past: VecDeque::new(),
        };
        let shared = Arc::new(Shared {
            readers: Readers::new(),
            writers: Readers::new(),
            durable_commits: setup.durable,
            layers: ArcSwap::from_pointee(layers),
            queue: Mutex::default(),
            leader: Mutex::new(leader),
            visible: AtomicU64::new(last),
            durable: AtomicU64::new(last),
            failure: OnceLock::new(),
            to_sync: Mutex::new(to_sync),
            sync: Condvar::new(),
            to_hand_down: Mutex::default(),
            hand_down: Condvar::new(),
            handed_down: Condvar::new(),
            folder: setup.folder.clone(),
            generation_bytes: setup.write_buffer_bytes / 4,
            number: AtomicU64::new(first),
            db,
            options,
        });
        let (syncing, handing) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            std::thread::spawn(move || syncing.sync_on_and_on()),
            std::thread::spawn(move || handing.hand_down_on_and_on()),
        ];
        Ok(Self { shared, threads })
    }

    pub fn close(self) -> Result<()> {
        let shared = &self.shared;
        shared.to_sync.lock().is_over = true;
        shared.sync.notify_all();
        shared.to_hand_down.lock().is_over = true;
        shared.hand_down.notify_all();
        for thread in self.threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(())
    }
}

/// By number.
type Segments = Vec<(u64, PathBuf)>;

/// What the log has that is not below.
fn replay(folder: &Path, position: u64) -> Result<(Writer, u64, Segments)> {
    let number = |path: &Path| path.file_stem()?.to_str()?.parse().ok();
    let mut segments = Segments::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|kind| kind == "segment") {
            segments.push((number(&path).context("a segment without a number")?, path));
        }
    }
    segments.sort();
    let (mut window, mut last) = (Writer::new(position, SECRETS), position);
    for (_, path) in &segments {
        Segment::replay(path, |sequence, frame| {
            if sequence > last {
                last = sequence;
                window.add(frame[HEADER..].into(), sequence, &[]).map_err(|_| anyhow!("a frame without records"))?;
            }
            Ok(())
        })?;
    }
    Ok((window, last, segments))
}

impl Shared {
    /// What is visible now.
    pub fn view<'a>(&'a self, slot: &'a Slot<'_>) -> View<'a> {
        loop {
            let layers = self.layers.load_full();
            let (sequence, entered) = slot.enter(&self.visible);
            // Otherwise the window may have been frozen in between, and something that is visible be in none of them.
            if Arc::ptr_eq(&layers, &self.layers.load()) {
                return View { layers, sequence, _slot: entered };
            }
        }
    }

    /// Commits; `false` after a conflict.
    pub fn commit(&self, pending: &Arc<Pending>) -> Result<bool> {
        self.queue.lock().push(Arc::clone(pending));
        loop {
            if let Some(mut leader) = self.leader.try_lock() {
                self.lead(&mut leader).inspect_err(|why| self.fail(why))?;
                drop(leader);
                // Another one may have come since, and found a leader.
                if !self.queue.lock().is_empty() {
                    continue;
                }
            }
            loop {
                match pending.outcome.load(Ordering::Acquire) {
                    WAITS => {}
                    outcome => return Ok(outcome == COMMITTED),
                }
                self.check()?;
                std::thread::park();
            }
        }
    }

    fn lead(&self, leader: &mut Leader) -> Result<()> {
        loop {
            let batch = std::mem::take(&mut *self.queue.lock());
            if batch.is_empty() {
                return Ok(());
            }
            self.decide(leader, batch)?;
            self.freeze_when_full(leader)?;
        }
    }

    fn decide(&self, leader: &mut Leader, batch: Vec<Arc<Pending>>) -> Result<()> {
        let layers = self.layers.load();
        let visible = leader.last;
        let mut views = self.readers.all();
        views.extend(self.writers.all());
        views.push(visible);
        views.sort_unstable();
        views.dedup();
        leader.frame.clear();
        leader.frame.resize(HEADER, 0);
        leader.written.clear();
        let is_alone = batch.len() == 1;
        leader.frame.reserve(batch.iter().map(|pending| pending.record.len()).sum());
        let mut committed = Vec::with_capacity(batch.len());
        for pending in batch {
            let rows = std::mem::take(&mut *pending.rows.lock());
            let changed = |generation: &Generation, key: &[u8]| {
                generation.newest(ROWS, key).is_some_and(|newest| newest > pending.read)
            };
            let is_changed = |key: &[u8]| {
                changed(&layers.active, key)
                    || layers.frozen.as_ref().is_some_and(|frozen| changed(frozen, key))
                    || leader.past.iter().filter(|(end, _)| *end > pending.read).any(|(_, past)| changed(past, key))
            };
            if rows.iter().any(|(key, _)| leader.written.contains(key) || is_changed(key)) {
                pending.answer(CONFLICT);
                continue;
            }
            leader.frame.extend_from_slice(&pending.record);
            // A load comes alone, and its keys are not asked for again.
            if !is_alone {
                leader.written.extend(rows.into_iter().map(|(key, _)| key));
            }
            committed.push((visible + 1, pending));
        }
        if committed.is_empty() {
            return Ok(());
        }
        leader.segment.append(&mut leader.frame, visible + 1, self.durable.load(Ordering::Relaxed))?;
        let payload = leader.frame[HEADER..].into();
        leader.frame.clear();
        leader.window.add(payload, visible + 1, &views).map_err(|_| anyhow!("a frame without records"))?;
        leader.last = visible + 1;
        self.visible.store(leader.last, Ordering::SeqCst);
        let mut to_sync = self.to_sync.lock();
        to_sync.written = leader.last;
        let (durable, buffered): (Vec<_>, Vec<_>) = committed.into_iter().partition(|(_, pending)| pending.is_durable);
        let is_waited_for = !durable.is_empty();
        to_sync.waiting.extend(durable);
        drop(to_sync);
        if is_waited_for {
            self.sync.notify_one();
        }
        buffered.iter().for_each(|(_, pending)| pending.answer(COMMITTED));
        Ok(())
    }

    fn freeze_when_full(&self, leader: &mut Leader) -> Result<()> {
        let layers = self.layers.load_full();
        if layers.active.bytes() < self.generation_bytes {
            return Ok(());
        }
        let mut to_hand_down = self.to_hand_down.lock();
        if to_hand_down.frozen.is_some() {
            if layers.active.bytes() < 2 * self.generation_bytes {
                return Ok(());
            }
            self.handed_down.wait_while(&mut to_hand_down, |to| to.frozen.is_some() && self.failure.get().is_none());
            self.check()?;
        }
        // The tables of this moment, not those that were there before it was waited for.
        let layers = self.layers.load_full();
        let segment = to_hand_down.spare.take().map_or_else(|| self.segment(), Ok)?;
        let ended = std::mem::replace(&mut leader.segment, segment);
        {
            let mut to_sync = self.to_sync.lock();
            to_sync.file = Some(Arc::clone(&leader.segment.file));
            to_sync.before.push(Arc::clone(&ended.file));
        }
        let oldest = self.writers.oldest(leader.last);
        leader.past.retain(|(end, _)| *end > oldest);
        leader.past.push_back((leader.last, Arc::clone(&layers.active)));
        let (generation, below) = (Arc::clone(&layers.active), Arc::clone(&layers.below));
        let mut segments = std::mem::take(&mut leader.earlier);
        segments.push(ended.path);
        to_hand_down.frozen =
            Some(Frozen { generation: Arc::clone(&generation), end: leader.last, file: ended.file, segments });
        leader.window = Writer::new(leader.last, SECRETS);
        let active = Arc::clone(leader.window.generation());
        self.layers.store(Arc::new(Layers { active, frozen: Some(generation), below }));
        drop(to_hand_down);
        self.hand_down.notify_one();
        Ok(())
    }

    fn sync_on_and_on(&self) -> Result<()> {
        loop {
            let (files, target) = {
                let mut to_sync = self.to_sync.lock();
                let durable = self.durable.load(Ordering::Relaxed);
                self.sync.wait_while_for(&mut to_sync, |to| to.waiting.is_empty() && !to.is_over, BUFFERED_FOR);
                if to_sync.written == durable {
                    if to_sync.is_over {
                        return Ok(());
                    }
                    continue;
                }
                let mut files = std::mem::take(&mut to_sync.before);
                files.extend(to_sync.file.clone());
                (files, to_sync.written)
            };
            let synced = files.iter().try_for_each(|file| file.sync_data());
            synced.context("the log").inspect_err(|why| self.fail(why))?;
            self.durable.store(target, Ordering::SeqCst);
            let done: Vec<_> = {
                let mut to_sync = self.to_sync.lock();
                let count = to_sync.waiting.partition_point(|(sequence, _)| *sequence <= target);
                to_sync.waiting.drain(..count).collect()
            };
            done.iter().for_each(|(_, pending)| pending.answer(COMMITTED));
        }
    }

    fn check(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |why| Err(anyhow!("the store has failed: {why}")))
    }

    fn fail(&self, why: &anyhow::Error) {
        let _ = self.failure.set(format!("{why:#}"));
        self.handed_down.notify_all();
        self.to_sync.lock().waiting.drain(..).for_each(|(_, pending)| pending.client.unpark());
        self.queue.lock().drain(..).for_each(|pending| pending.client.unpark());
    }

    /// The next one, with room.
    fn segment(&self) -> Result<Segment> {
        Segment::new(&self.folder, self.number.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn hand_down_on_and_on(&self) -> Result<()> {
        loop {
            let spare = self.segment()?;
            let (generation, end, file, segments) = {
                let mut to = self.to_hand_down.lock();
                to.spare = Some(spare);
                self.hand_down.wait_while(&mut to, |to| to.frozen.is_none() && !to.is_over);
                match &to.frozen {
                    _ if to.is_over => return Ok(()),
                    Some(Frozen { generation, end, file, segments }) => {
                        (Arc::clone(generation), *end, Arc::clone(file), segments.clone())
                    }
                    None => continue,
                }
            };
            let down = file
                .sync_data()
                .map_err(Into::into)
                .and_then(|()| below::hand_down(&self.db, &self.options, &self.folder, &generation, end));
            down.inspect_err(|why| self.fail(why))?;
            // The leader freezes only under this mutex.
            let mut to = self.to_hand_down.lock();
            let active = Arc::clone(&self.layers.load().active);
            self.layers.store(Arc::new(Layers { active, frozen: None, below: Below::of(&self.db) }));
            to.frozen = None;
            drop(to);
            self.handed_down.notify_all();
            segments.iter().try_for_each(std::fs::remove_file)?;
        }
    }
}
