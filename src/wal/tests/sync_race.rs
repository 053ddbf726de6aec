//! A disk that runs a hook before its sync returns.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::disk::DiskFile;

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

struct HookedDisk(SimDisk, Hook);

struct HookedFile(<SimDisk as Disk>::File, Hook);

impl HookedDisk {
    fn hooked(&self, file: <SimDisk as Disk>::File) -> HookedFile {
        HookedFile(file, Arc::clone(&self.1))
    }
}

impl Disk for HookedDisk {
    type File = HookedFile;

    fn create(&self, name: &str) -> io::Result<HookedFile> {
        self.0.create(name).map(|file| self.hooked(file))
    }

    fn open(&self, name: &str) -> io::Result<HookedFile> {
        self.0.open(name).map(|file| self.hooked(file))
    }

    fn open_writable(&self, name: &str) -> io::Result<HookedFile> {
        self.0.open_writable(name).map(|file| self.hooked(file))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.0.sync_directory()
    }
}

impl DiskFile for HookedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, into)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()?;
        let hook = self.1.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }
}

#[test]
fn a_frame_written_during_a_sync_is_not_durable_by_it() {
    let hook = Hook::default();
    let disk = HookedDisk(SimDisk::new(), Arc::clone(&hook));
    let log = Arc::new(Mutex::new(create(disk, IDENTITY, 0, 1).unwrap()));
    append(&mut log.lock(), b"before").unwrap();
    let handle = log.lock().handle();
    let late = Arc::clone(&log);
    *hook.lock() = Some(Box::new(move || {
        append(&mut late.lock(), b"meanwhile").unwrap();
    }));
    assert_eq!(handle.sync().unwrap(), 1);
    assert_eq!((handle.durable_sequence(), handle.written_sequence()), (1, 2));
    assert_eq!(handle.sync().unwrap(), 2);
}
