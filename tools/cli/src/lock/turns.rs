//! Turns of the processes that use one lock. Two files of the store's directory are locked with
//! `flock`, which the kernel releases at the end of a process, however it ends:
//!
//! - `locks/X.queue`: held by the first waiting process, which alone looks into the store. The
//!   others block in the kernel, which wakes them one by one, in the order of their arrival.
//! - `locks/X.running`: held by `lock run` and by all that its command has started, which inherit
//!   it. So the next holder of the lock runs only when nothing of the last one does, even if the
//!   lease has ended or `lock run` was killed. Shared for a shared lock.
//!
//! `X` is a hash of the lock's name. The files are empty but for [`Turn::ask_to_look`]. They are
//! removed when they are not in use. Only the lease says who holds the lock. A third file is the
//! mark of a command, for what closes the second one: see [`leftovers`](super::leftovers).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use anyhow::{Context as _, Result};
use rustix::fs::OFlags;

use super::signals::Event;
use crate::advice;

/// The directory of the files, in that of the store.
const DIR: &str = "locks";
const QUEUE: &str = "queue";
const RUNNING: &str = "running";

/// The files of one lock.
#[derive(Clone)]
pub struct TurnFiles {
    dir: PathBuf,
    stem: String,
}

/// The right of the first waiting process to look into the store, until it is dropped.
pub struct Turn {
    _queue: File,
    running: File,
    is_running: bool,
}

/// What `lock run` holds while its command runs.
pub struct Running {
    file: File,
    asked: u64,
}

impl TurnFiles {
    pub fn of(store: &Path, name: &str) -> Self {
        // FNV-1a. The names of two locks with one hash would wait for each other, without harm.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self { dir: store.join(DIR), stem: format!("{hash:016x}") }
    }

    /// The turn, if no other process waits for the lock.
    pub fn try_turn(&self) -> Result<Option<Turn>> {
        self.turn(|queue| match queue.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(err)) => Err(err),
        })
    }

    /// Waits for the turn in a thread, which then sends it.
    pub fn send_turn(&self, to: Sender<Event>) {
        let files = self.clone();
        std::thread::spawn(move || {
            let turn = files.turn(|queue| {
                loop {
                    match queue.lock() {
                        Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                        locked => return locked.map(|()| true),
                    }
                }
            });
            // Sending fails if this process has stopped to wait.
            let _ = to.send(Event::Turn(turn.transpose().unwrap_or_else(|| unreachable!("the lock was waited for"))));
        });
    }

    fn turn(&self, lock: impl Fn(&File) -> io::Result<bool>) -> Result<Option<Turn>> {
        loop {
            let queue = self.open(QUEUE)?;
            if !lock(&queue).with_context(|| format!("cannot lock {}", self.path(QUEUE).display()))? {
                return Ok(None);
            }
            if is_at(&queue, &self.path(QUEUE)) {
                return Ok(Some(Turn { _queue: queue, running: self.open(RUNNING)?, is_running: false }));
            }
            // Another process has removed the file since it was opened.
        }
    }

    fn open(&self, kind: &str) -> Result<File> {
        let path = self.path(kind);
        let open = || match open_regular(&path, OpenOptions::new().append(true).create(true)) {
            // Reading suffices to lock a file of another user.
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
                open_regular(&path, OpenOptions::new().read(true)).map_err(|_| err)
            }
            opened => opened,
        };
        let opened = match open() {
            Err(err) if err.kind() == io::ErrorKind::NotFound => match fs::create_dir(&self.dir) {
                Err(err) if err.kind() != io::ErrorKind::AlreadyExists => Err(err),
                _ => open(),
            },
            opened => opened,
        };
        opened.map_err(|err| self.cannot_write("open", &path, &err))
    }

    pub fn path(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", self.stem))
    }

    /// The file that is held while a command runs.
    pub fn running_path(&self) -> PathBuf {
        self.path(RUNNING)
    }

    /// A new file with this name, which begins with that of the lock.
    pub fn create_mark(&self, kind: &str) -> Result<PathBuf> {
        let path = self.path(kind);
        File::create_new(&path).map_err(|err| self.cannot_write("create", &path, &err))?;
        Ok(path)
    }

    fn cannot_write(&self, call: &str, path: &Path, err: &io::Error) -> anyhow::Error {
        let store = self.dir.parent().unwrap_or(&self.dir);
        advice::cannot_write(store, &format!("cannot {call} {}", path.display()), err)
    }

    /// The files that [`Self::create_mark`] has made and no process has removed.
    pub fn marks(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let is_mark = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let kind = name.strip_prefix(&self.stem).and_then(|rest| rest.strip_prefix('.'));
            kind.is_some_and(|kind| kind != QUEUE && kind != RUNNING)
        };
        entries.map(|entry| entry.path()).filter(is_mark).collect()
    }

    /// Removes the files of all locks for which no command waits or runs. `is_unused` is asked
    /// about each mark of a command that no `lock run` has.
    pub fn remove_unused(&self, is_unused: impl Fn(&Path) -> bool) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|kind| kind == QUEUE) {
                // What cannot be removed now is removed after another command.
                let _ = remove_if_unused(&path, &is_unused);
            }
        }
    }
}

/// Opens a file that `lock` has made. Something else may have its name: a pipe would block, and a
/// symlink leads to a foreign file.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.custom_flags(i32::try_from(flags.bits()).map_err(io::Error::other)?).open(path);
    match path.symlink_metadata() {
        Ok(found) if !found.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file; remove it"))
        }
        _ => opened,
    }
}

fn remove_if_unused(path: &Path, is_unused: impl Fn(&Path) -> bool) -> io::Result<()> {
    let queue = open_regular(path, OpenOptions::new().read(true))?;
    if queue.try_lock().is_err() || !is_at(&queue, path) {
        return Ok(());
    }
    // From here on no process can begin to use the second file.
    let running = path.with_extension(RUNNING);
    if let Ok(file) = open_regular(&running, OpenOptions::new().read(true)) {
        if file.try_lock().is_err() {
            return Ok(());
        }
        fs::remove_file(&running)?;
    }
    if let (Some(dir), Some(stem)) = (path.parent(), path.file_stem()) {
        let files = TurnFiles { dir: dir.into(), stem: stem.to_string_lossy().into() };
        files.marks().iter().filter(|mark| is_unused(mark)).try_for_each(fs::remove_file)?;
    }
    fs::remove_file(path)
}

/// Whether the file is the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
    id(file.metadata()).is_some_and(|opened| id(fs::metadata(path)) == Some(opened))
}

impl Turn {
    /// Whether nothing runs under the lock that excludes a command of this mode.
    pub fn try_run(&mut self, shared: bool) -> Result<bool> {
        if !self.is_running {
            let locked = if shared { self.running.try_lock_shared() } else { self.running.try_lock() };
            self.is_running = match locked {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(err)) => return Err(err).context("cannot lock a file in `locks`"),
            };
        }
        Ok(self.is_running)
    }

    /// Asks the process that runs a command to look whether it still holds the lease.
    pub fn ask_to_look(&self) {
        // If this fails, the process looks when it renews the lease.
        let _ = (&self.running).write_all(b"\n");
    }

    /// Ends the turn, so that the next process gets its own.
    pub fn into_running(self) -> Running {
        let asked = self.running.metadata().map_or(0, |found| found.len());
        Running { file: self.running, asked }
    }
}

impl Running {
    /// Lets the processes that are started from here on inherit the file.
    pub fn make_inheritable(&self) -> Result<()> {
        rustix::io::fcntl_setfd(&self.file, rustix::io::FdFlags::empty()).context("cannot prepare a file in `locks`")
    }

    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self { file: self.file.try_clone().context("cannot prepare a file in `locks`")?, asked: self.asked })
    }

    /// Whether [`Turn::ask_to_look`] was called since the last call.
    pub fn was_asked_to_look(&mut self) -> bool {
        let asked = self.file.metadata().map_or(self.asked, |found| found.len());
        std::mem::replace(&mut self.asked, asked) != asked
    }
}
