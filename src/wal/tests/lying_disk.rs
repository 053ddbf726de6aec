//! Media that lie: a write is confirmed and lost, partly lost, or at another place; a read returns
//! an older content, or fails.
//!
//! A log that was closed reports each loss, or has lost nothing. While it was busy, the last frame
//! has no proof yet: only the loss of its write is not reported.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::disk::{CallKind, DiskFile};

const FRAMES: u64 = 14;
const SECTOR: usize = 512;

/// What the medium does although the call returns no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Nothing of the write happens.
    Dropped,
    /// All of the write happens but the sector with this number in it.
    SectorDropped(usize),
    /// The write is this many bytes away from its place.
    Misdirected(isize),
    /// The write is at its offset in the file that was opened before.
    InFileBefore,
    /// A read returns what was there before the last write to its file.
    StaleRead,
}

const LOST_WRITES: [Lie; 10] = [
    Lie::Dropped,
    Lie::SectorDropped(0),
    Lie::SectorDropped(1),
    Lie::SectorDropped(4),
    Lie::Misdirected(8),
    Lie::Misdirected(512),
    Lie::Misdirected(4096),
    Lie::Misdirected(-64),
    Lie::Misdirected(-4096),
    Lie::InFileBefore,
];

/// A disk that lies once.
#[derive(Clone)]
struct LyingDisk {
    disk: SimDisk,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The lie, and how many calls of its kind come first.
    lie: Option<(Lie, u64)>,
    /// The names of files, in the order of their creation.
    created: Vec<String>,
    /// Of each file: the place of the last write, and what was there before.
    replaced: BTreeMap<String, (u64, Vec<u8>)>,
}

struct LyingFile {
    disk: LyingDisk,
    name: String,
    file: <SimDisk as Disk>::File,
}

impl LyingDisk {
    fn new(disk: SimDisk, lie: Lie, nth: u64) -> Self {
        let state = State { lie: Some((lie, nth - 1)), ..State::default() };
        Self { disk, state: Arc::new(Mutex::new(state)) }
    }

    fn has_lied(&self) -> bool {
        self.state.lock().lie.is_none()
    }

    fn file(&self, name: &str, file: <SimDisk as Disk>::File) -> LyingFile {
        LyingFile { disk: self.clone(), name: name.to_owned(), file }
    }
}

impl State {
    fn lies(&mut self, is_read: bool) -> Option<Lie> {
        match &mut self.lie {
            Some((lie, _)) if (*lie == Lie::StaleRead) != is_read => None,
            Some((_, before @ 1..)) => {
                *before -= 1;
                None
            }
            lie => lie.take().map(|(lie, _)| lie),
        }
    }
}

impl Disk for LyingDisk {
    type File = LyingFile;

    fn create(&self, name: &str) -> io::Result<LyingFile> {
        let file = self.disk.create(name)?;
        self.state.lock().created.push(name.to_owned());
        Ok(self.file(name, file))
    }

    fn open(&self, name: &str) -> io::Result<LyingFile> {
        Ok(self.file(name, self.disk.open(name)?))
    }

    fn open_writable(&self, name: &str) -> io::Result<LyingFile> {
        Ok(self.file(name, self.disk.open_writable(name)?))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }
}

impl DiskFile for LyingFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let mut before = vec![0; bytes.len()];
        self.file.read_at(offset, &mut before)?;
        state.replaced.insert(self.name.clone(), (offset, before.clone()));
        let Some(lie) = state.lies(false) else {
            return self.file.write_at(offset, bytes);
        };
        if let Lie::SectorDropped(number) = lie {
            let sector = (offset as usize / SECTOR + number) * SECTOR;
            for (at, byte) in bytes.iter().enumerate() {
                if !(sector..sector + SECTOR).contains(&(offset as usize + at)) {
                    before[at] = *byte;
                }
            }
        }
        // The length of a file is the file system's, and grows in any case.
        self.file.write_at(offset, &before)?;
        match lie {
            Lie::Misdirected(by) => match offset.checked_add_signed(by as i64) {
                Some(place) => self.file.write_at(place, bytes),
                None => Ok(()),
            },
            Lie::InFileBefore => match state.created.iter().take_while(|name| **name != self.name).last() {
                Some(other) => self.disk.disk.open_writable(other)?.write_at(offset, bytes),
                None => Ok(()),
            },
            Lie::Dropped | Lie::SectorDropped(_) | Lie::StaleRead => Ok(()),
        }
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(offset, into)?;
        let mut state = self.disk.state.lock();
        if state.lies(true).is_some()
            && let Some((place, before)) = state.replaced.get(&self.name)
        {
            for (at, byte) in before.iter().enumerate() {
                let at = (*place as usize + at).wrapping_sub(offset as usize);
                if at < read {
                    into[at] = *byte;
                }
            }
        }
        Ok(read)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// Frames with these tags, each of them synced, and a segment for every four.
fn fill(log: &mut WalWriter<LyingDisk>, tags: RangeInclusive<u64>) -> Result<(), WalError> {
    for tag in tags {
        append(log, &payload(tag, [40, 700, 3000][tag as usize % 3]))?;
        log.handle().sync()?;
        if tag % 4 == 0 {
            log.handle().preallocate_segment()?;
            log.rotate(tag)?;
            log.handle().sync()?;
            log.handle().write_sync_record(false)?;
        }
    }
    Ok(())
}

/// Two incarnations. At last the log is closed, or not.
fn write(disk: &LyingDisk, is_closed: bool) -> Result<(), WalError> {
    let mut log = create(disk.clone(), IDENTITY, 0, 1)?;
    fill(&mut log, 1..=6)?;
    close(log)?;
    let recovered = recover_frames(disk, 0)?.0;
    let mut log = resume(disk.clone(), &recovered, 9, None)?;
    fill(&mut log, 7..=FRAMES)?;
    if is_closed { close(log) } else { Ok(()) }
}

fn written() -> (SimDisk, Vec<Frame>) {
    let disk = SimDisk::new();
    write(&LyingDisk::new(disk.clone(), Lie::Dropped, u64::MAX), true).expect("a disk without faults");
    let (recovered, frames) = recover_frames(&disk, 0).expect("a log without damage");
    assert_eq!((recovered.data_loss(), frames.len() as u64), (None, FRAMES));
    (disk, frames)
}

/// Lets each call tell this lie in turn. Where fewer frames than all were left without an error,
/// counts how many were left.
fn silent_losses(lie: Lie, is_closed: bool) -> BTreeMap<u64, u64> {
    let all = written().1;
    let (mut silent, mut reported, mut harmless) = (BTreeMap::new(), 0, 0);
    for nth in 1.. {
        let disk = LyingDisk::new(SimDisk::new(), lie, nth);
        let written = write(&disk, is_closed);
        // The second incarnation may have found the lie of the first.
        let found = written.and_then(|()| recover_frames(&disk, 0));
        if !disk.has_lied() {
            break;
        }
        let Ok((recovered, frames)) = found else {
            reported += 1;
            continue;
        };
        assert!(frames == all[..frames.len()], "{lie:?} of call {nth} leaves no prefix");
        match (recovered.data_loss(), frames.len() as u64) {
            (Some(_), _) => reported += 1,
            (None, FRAMES) => harmless += 1,
            (None, left) => *silent.entry(left).or_insert(0) += 1,
        }
    }
    println!("{lie:?}, closed {is_closed}: {harmless} harmless, {reported} reported, silent: {silent:?}");
    assert!(harmless > 0 && reported > 0, "{lie:?}: {harmless} harmless, {reported} reported");
    silent
}

#[test]
fn a_closed_log_reports_each_lost_write_and_stale_read() {
    for lie in LOST_WRITES.into_iter().chain([Lie::StaleRead]) {
        assert_eq!(silent_losses(lie, true), BTreeMap::new(), "{lie:?}");
    }
}

#[test]
fn a_busy_log_misses_only_the_lost_write_of_its_last_frame() {
    for lie in LOST_WRITES.into_iter().chain([Lie::StaleRead]) {
        let silent = silent_losses(lie, false);
        // A last frame that is written too early also takes the frame that it overwrites.
        let first_lost = if lie == Lie::Misdirected(-64) { FRAMES - 1 } else { FRAMES };
        let left: Vec<u64> = silent.keys().copied().collect();
        assert!(left.is_empty() || left == [first_lost - 1], "{lie:?}: {silent:?}");
    }
}

#[test]
fn a_read_that_fails_is_an_error_and_never_a_torn_tail() {
    let written = written().0;
    for nth in 1.. {
        let disk = written.fork();
        disk.fail_nth(Some(CallKind::Read), nth, nth);
        let found = recover_frames(&disk, 0).and_then(|(recovered, _)| resume(disk.clone(), &recovered, 10, None));
        if let Err(error) = found {
            assert!(matches!(error, WalError::Io(_)), "read {nth}: {error}");
        } else {
            assert!(nth > 20, "the log was read with {nth} calls");
            break;
        }
    }
}
