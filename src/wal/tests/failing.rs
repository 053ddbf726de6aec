//! Failing disk calls: a fixed script runs once for each of its disk calls, and that call fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::wal::segment;

fn script(log: &mut WalWriter<SimDisk>) -> Result<(), WalError> {
    let handle = log.handle();
    for tag in 1..=12 {
        append(log, &payload(tag, 900))?;
        match tag {
            3 | 8 => _ = handle.sync()?,
            4 => log.rotate(4)?,
            6 => handle.preallocate_segment()?,
            7 | 10 => log.rotate(tag)?,
            _ => {}
        }
    }
    append(log, &payload(13, 20_000))?;
    handle.sync()?;
    handle.write_sync_record(true)
}

fn check(disk: &SimDisk, durable: u64) {
    let (recovered, frames) = recover_frames(disk, 0).unwrap();
    assert_eq!(recovered.data_loss(), None);
    assert!(recovered.last_sequence() >= durable, "{} of {durable}", recovered.last_sequence());
    for (sequence, found) in frames {
        let bytes = [900, 20_000][(sequence.max(12) - 12) as usize];
        assert_eq!(found, payload(sequence, bytes));
    }
}

#[test]
fn after_a_failure_every_call_fails_and_durable_stays() {
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    let before = disk.call_count();
    script(&mut log).unwrap();
    let calls = disk.call_count() - before;
    for nth in 1..=calls {
        for seed in 0..20 {
            let disk = SimDisk::new();
            let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
            disk.fail_nth(None, nth, seed);
            let first = script(&mut log).unwrap_err().to_string();
            let handle = log.handle();
            let durable = handle.durable_sequence();
            let later = [
                append(&mut log, b"late").map(|_| ()),
                handle.sync().map(|_| ()),
                handle.preallocate_segment(),
                handle.remove_segments_upto(0).map(|_| ()),
                log.rotate(99),
                handle.write_sync_record(true),
                close(log),
            ];
            for answer in later {
                assert_eq!(answer.unwrap_err().to_string(), first);
            }
            assert_eq!(handle.durable_sequence(), durable);
            let killed = disk.fork();
            killed.kill();
            check(&killed.handle(), durable);
            disk.crash(seed);
            check(&disk.handle(), durable);
        }
    }
    println!("{calls} calls");
}

#[test]
fn an_interrupted_creation_leaves_an_empty_log() {
    for nth in 1..=10 {
        for seed in 0..50 {
            let disk = SimDisk::new();
            disk.fail_from(nth, seed);
            let is_created = create(disk.clone(), IDENTITY, 0, 1).is_ok();
            disk.crash(seed);
            let disk = disk.handle();
            check(&disk, 0);
            let recovered = recover_frames(&disk, 0).unwrap().0;
            let mut log = resume(disk, &recovered, 2, None).unwrap();
            assert_eq!(append(&mut log, b"first").unwrap(), 1);
            assert!(!is_created || nth > 8);
        }
    }
}

#[test]
fn a_too_long_payload_is_refused_and_poisons_nothing() {
    let disk = SimDisk::new();
    let mut log = create(disk, IDENTITY, 0, 1).unwrap();
    let mut frame = FrameBuffer::default();
    frame.payload_buffer().resize(super::super::PAYLOAD_MAX_BYTES + super::super::FRAME_HEADER_BYTES + 1, 0);
    assert!(matches!(log.append(&mut frame), Err(WalError::PayloadTooLarge)));
    assert_eq!(append(&mut log, b"short").unwrap(), 1);
}

/// A disk that is full while the flag is set: a file is created, and then has no space.
#[derive(Clone)]
struct FullDisk {
    disk: SimDisk,
    is_full: Arc<AtomicBool>,
}

impl Disk for FullDisk {
    type File = <SimDisk as Disk>::File;

    fn create(&self, name: &str) -> io::Result<Self::File> {
        let file = self.disk.create(name)?;
        if self.is_full.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(file) }
    }

    fn open(&self, name: &str) -> io::Result<Self::File> {
        self.disk.open(name)
    }

    fn open_writable(&self, name: &str) -> io::Result<Self::File> {
        self.disk.open_writable(name)
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

#[test]
fn a_segment_that_finds_no_space_ahead_of_its_use_is_no_failure() {
    let disk = FullDisk { disk: SimDisk::new(), is_full: Arc::default() };
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    let handle = log.handle();
    disk.is_full.store(true, Ordering::Relaxed);
    handle.preallocate_segment().unwrap();
    assert!(!disk.list().unwrap().contains(&segment::segment_file_name(2)), "a part of a segment is left");
    append(&mut log, &payload(1, 900)).unwrap();
    handle.sync().unwrap();
    handle.write_sync_record(true).unwrap();
    disk.is_full.store(false, Ordering::Relaxed);
    handle.preallocate_segment().unwrap();
    log.rotate(2).unwrap();
    append(&mut log, &payload(2, 900)).unwrap();
    handle.sync().unwrap();
    disk.is_full.store(true, Ordering::Relaxed);
    assert!(log.rotate(3).is_err(), "the segment is needed now");
    drop(log);
    check(&disk.disk.fork(), 2);
}
