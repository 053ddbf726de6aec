//! A disk in memory, in which a crash is an operation.
//!
//! It has the freedoms of a real disk. A crash keeps, for each sector, any one of the contents that
//! the sector has had since the last sync, so writes are torn and reordered. The length of a file
//! is treated in the same way. Each change to the directory since its last sync is kept or lost
//! independently.
//!
//! A call can be made to fail. A write that fails may have been applied in part. A sync that fails
//! makes nothing durable, and a later sync succeeds, but does not cover the writes that the failed
//! sync was to cover.
//!
//! All choices come from seeds that the caller passes. A handle belongs to an incarnation: after a
//! crash or a kill, earlier handles fail, and [`SimDisk::handle`] returns one of the new
//! incarnation. A kill ends the process, but loses no data.

use std::collections::BTreeMap;
use std::io::{self, Error, ErrorKind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::sim_file::SimContent;
use super::{Disk, DiskFile};
use crate::split_mix64::SplitMix64;

/// A handle to the disk, of one incarnation.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    incarnation: u64,
}

/// An open file, of one incarnation.
#[derive(Debug)]
pub struct SimFile {
    disk: SimDisk,
    inode: u64,
    is_writable: bool,
}

/// A kind of call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Reading, opening, listing, getting a length.
    Read,
    /// [`DiskFile::write_at`].
    Write,
    /// [`DiskFile::sync`].
    Sync,
    /// [`Disk::create`].
    Create,
    /// [`Disk::remove`].
    Remove,
    /// [`Disk::rename`].
    Rename,
    /// [`Disk::sync_directory`].
    SyncDirectory,
}

#[derive(Clone, Debug, Default)]
struct State {
    life: u64,
    calls: u64,
    fault: Option<InjectedFault>,
    has_failed: bool,
    fails_all: bool,
    is_full: bool,
    choices: SplitMix64,
    inodes: BTreeMap<u64, SimContent>,
    names: BTreeMap<String, u64>,
    /// The names that a crash leaves if it keeps none of the `changes`.
    durable_names: BTreeMap<String, u64>,
    changes: Vec<(DirOp, SyncState)>,
}

#[derive(Clone, Copy, Debug)]
struct InjectedFault {
    /// The kind of call that fails; `None`: any kind.
    call: Option<CallKind>,
    calls_left: u64,
    /// Whether the failure lasts: all later calls fail, too.
    stops: bool,
}

#[derive(Clone, Debug)]
enum DirOp {
    Create(String, u64),
    Remove(String),
    Rename(String, String, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncState {
    /// The next sync makes the change durable.
    Unsynced,
    /// A sync of the change failed, and no later sync covers the change.
    SyncFailed,
    /// Durable, but still in the list, because a change before it is not durable.
    Durable,
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self { state: Arc::default(), incarnation: 0 }
    }

    /// An independent disk that begins with the content of this one.
    pub fn fork(&self) -> Self {
        let state = self.state.lock().clone();
        Self { incarnation: state.life, state: Arc::new(Mutex::new(state)) }
    }

    /// A handle of the current incarnation.
    pub fn handle(&self) -> Self {
        Self { incarnation: self.state.lock().life, state: Arc::clone(&self.state) }
    }

    /// A power cut. The seed chooses one of five ways: all, nearly all, hardly any or none of what
    /// was not synced is kept, or each sector, length and name keeps a random one of its states.
    pub fn crash(&self, seed: u64) {
        let mut choices = SplitMix64::new(seed);
        let newest = choices.next_below(5);
        self.crash_with(&mut |possible| match newest {
            0 => 0,
            1 => possible - 1,
            2 if choices.next_below(8) > 0 => possible - 1,
            3 if choices.next_below(8) > 0 => 0,
            _ => choices.index(possible),
        });
    }

    /// A power cut like [`crash`](Self::crash), with each choice made by the caller: `choose` gets
    /// the number of possibilities and returns the index of one. The first is the oldest state of
    /// the sector, the length or the name in question; the last is the newest.
    pub fn crash_with(&self, choose: &mut dyn FnMut(usize) -> usize) {
        let mut state = self.state.lock();
        state.end_incarnation();
        let changes = std::mem::take(&mut state.changes);
        let mut names = std::mem::take(&mut state.durable_names);
        for (change, sync_state) in changes {
            if sync_state == SyncState::Durable || choose(2) > 0 {
                change.make(&mut names);
            }
        }
        state.durable_names.clone_from(&names);
        state.inodes.retain(|inode, _| names.values().any(|kept| kept == inode));
        state.names = names;
        for content in state.inodes.values_mut() {
            content.crash(choose);
        }
    }

    /// Sets whether the disk counts as full in the openings from now on.
    #[cfg(test)]
    pub fn set_full(&self, is_full: bool) {
        self.state.lock().is_full = is_full;
    }

    /// Ends the process only: what was written stays written, synced or not.
    pub fn kill(&self) {
        self.state.lock().end_incarnation();
    }

    /// Drops from the kernel's memory the sectors that failed syncs were to cover. Reads then
    /// return what the medium has: one of the versions of each sector, which the seed chooses.
    pub fn evict(&self, seed: u64) {
        let mut choices = SplitMix64::new(seed);
        for content in self.state.lock().inodes.values_mut() {
            content.evict(&mut |possible| choices.index(possible));
        }
    }

    /// Makes the `nth` call of this kind (`None`: of any kind) from now fail; 1 is the next. The
    /// seed decides which part of the call is applied.
    pub fn fail_nth(&self, call: Option<CallKind>, nth: u64, seed: u64) {
        let mut state = self.state.lock();
        state.fault = Some(InjectedFault { call, calls_left: nth, stops: false });
        state.choices = SplitMix64::new(seed);
    }

    /// Makes the `nth` call of any kind from now fail, and all later calls until a crash or a kill.
    /// The seed decides which part of the `nth` call is applied.
    pub fn fail_from(&self, nth: u64, seed: u64) {
        let mut state = self.state.lock();
        state.fault = Some(InjectedFault { call: None, calls_left: nth, stops: true });
        state.choices = SplitMix64::new(seed);
    }

    /// Cancels a [`fail_nth`](Self::fail_nth) or [`fail_from`](Self::fail_from) that has not made a
    /// call fail yet.
    pub fn clear_fault(&self) {
        self.state.lock().fault = None;
    }

    /// Whether a call has failed since the last crash or kill.
    #[cfg(feature = "crashtest")]
    pub fn has_failed(&self) -> bool {
        self.state.lock().has_failed
    }

    /// How many calls were made, in all incarnations.
    pub fn call_count(&self) -> u64 {
        self.state.lock().calls
    }

    /// Damages a file's current content: inverts the bits of `mask` in one byte. If the sector of
    /// this byte is unsynced, a crash may keep an undamaged version.
    pub fn flip_bits(&self, name: &str, offset: usize, mask: u8) {
        self.damage(name, |content| content.flip(offset, mask));
    }

    /// Damages a file: sets its length, durably.
    pub fn set_len(&self, name: &str, length: usize) {
        self.damage(name, |content| content.set_len(length));
    }

    fn damage(&self, name: &str, damage: impl FnOnce(&mut SimContent)) {
        let state = &mut *self.state.lock();
        if let Some(content) = state.names.get(name).and_then(|inode| state.inodes.get_mut(inode)) {
            damage(content);
        }
    }

    /// Runs a call. The second argument of `done` is whether the call is to fail.
    fn call<T>(&self, call: CallKind, done: impl FnOnce(&mut State, bool) -> io::Result<T>) -> io::Result<T> {
        let state = &mut *self.state.lock();
        if self.incarnation != state.life || state.fails_all {
            return Err(Error::other("the simulated machine has crashed"));
        }
        state.calls += 1;
        let fails = state.fails(call);
        let answer = done(state, fails)?;
        if fails { Err(Error::other(format!("simulated failure of {call:?}"))) } else { Ok(answer) }
    }

    fn file(&self, name: &str, is_writable: bool) -> io::Result<SimFile> {
        self.call(CallKind::Read, |state, _| {
            let inode = *state.names.get(name).ok_or(ErrorKind::NotFound)?;
            Ok(SimFile { disk: self.clone(), inode, is_writable })
        })
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn end_incarnation(&mut self) {
        self.life += 1;
        (self.fault, self.has_failed, self.fails_all) = (None, false, false);
    }

    fn fails(&mut self, call: CallKind) -> bool {
        let Some(fault) = self.fault.as_mut().filter(|fault| fault.call.is_none_or(|kind| kind == call)) else {
            return false;
        };
        fault.calls_left = fault.calls_left.saturating_sub(1);
        if fault.calls_left > 0 {
            return false;
        }
        (self.has_failed, self.fails_all) = (true, fault.stops);
        self.fault = None;
        true
    }

    /// Changes the directory. A change that fails is applied or not, by chance.
    fn change(&mut self, change: DirOp, fails: bool) {
        if !fails || self.choices.next_below(2) > 0 {
            change.make(&mut self.names);
            self.changes.push((change, SyncState::Unsynced));
        }
    }

    fn content(&mut self, inode: u64) -> io::Result<&mut SimContent> {
        self.inodes.get_mut(&inode).ok_or_else(|| ErrorKind::NotFound.into())
    }
}

impl DirOp {
    fn make(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Create(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            Self::Remove(name) => {
                names.remove(name);
            }
            Self::Rename(from, to, inode) => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
        }
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn create(&self, name: &str) -> io::Result<SimFile> {
        self.call(CallKind::Create, |state, fails| {
            if state.names.contains_key(name) {
                return Err(ErrorKind::AlreadyExists.into());
            }
            let inode = state.inodes.keys().next_back().map_or(0, |last| last + 1);
            state.inodes.insert(inode, SimContent::new());
            state.change(DirOp::Create(name.to_owned(), inode), fails);
            Ok(SimFile { disk: self.clone(), inode, is_writable: true })
        })
    }

    fn open(&self, name: &str) -> io::Result<SimFile> {
        self.file(name, false)
    }

    fn open_writable(&self, name: &str) -> io::Result<SimFile> {
        self.file(name, true)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.call(CallKind::Read, |state, _| Ok(state.names.keys().cloned().collect()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.call(CallKind::Remove, |state, fails| {
            state.names.get(name).ok_or(ErrorKind::NotFound)?;
            state.change(DirOp::Remove(name.to_owned()), fails);
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.call(CallKind::Rename, |state, fails| {
            let inode = *state.names.get(from).ok_or(ErrorKind::NotFound)?;
            state.change(DirOp::Rename(from.to_owned(), to.to_owned(), inode), fails);
            Ok(())
        })
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.call(CallKind::SyncDirectory, |state, fails| {
            for (_, sync_state) in &mut state.changes {
                if *sync_state == SyncState::Unsynced {
                    *sync_state = if fails { SyncState::SyncFailed } else { SyncState::Durable };
                }
            }
            while state.changes.first().is_some_and(|(_, sync_state)| *sync_state == SyncState::Durable) {
                state.changes.remove(0).0.make(&mut state.durable_names);
            }
            Ok(())
        })
    }

    fn is_full(&self) -> bool {
        self.state.lock().is_full
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.call(CallKind::Write, |state, fails| {
            if !self.is_writable {
                return Err(ErrorKind::PermissionDenied.into());
            }
            let made = if fails { state.choices.index(bytes.len() + 1) } else { bytes.len() };
            let offset = usize::try_from(offset).map_err(Error::other)?;
            state.content(self.inode)?.write(offset, &bytes[..made]);
            Ok(())
        })
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.disk.call(CallKind::Read, |state, _| {
            let offset = usize::try_from(offset).map_err(Error::other)?;
            Ok(state.content(self.inode)?.read(offset, into))
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.call(CallKind::Read, |state, _| Ok(state.content(self.inode)?.len() as u64))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call(CallKind::Sync, |state, fails| {
            let content = state.content(self.inode)?;
            if fails {
                content.fail_sync();
            } else {
                content.sync();
            }
            Ok(())
        })
    }
}
