//! Tests in a real directory.

use std::fs::{self, OpenOptions};

use super::*;
use crate::disk::{Directory, OsDisk};
use crate::wal::segment;

#[test]
fn a_log_in_a_real_directory_is_recovered_after_truncation() {
    let dir = tempfile::tempdir().unwrap();
    let disk = OsDisk::new(Directory::open(dir.path()).unwrap());
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    for tag in 1..=6 {
        append(&mut log, &payload(tag, 5000)).unwrap();
        if tag == 3 {
            log.handle().preallocate_segment().unwrap();
            log.rotate(2).unwrap();
        }
    }
    let handle = log.handle();
    assert_eq!((handle.sync().unwrap(), handle.written_sequence(), handle.durable_sequence()), (6, 6, 6));
    assert_eq!(handle.remove_segments_upto(3).unwrap(), 1);
    drop(log);
    let (recovered, frames) = recover_frames(&disk, 3).unwrap();
    assert_eq!(frames, (4..=6).map(|tag| (tag, payload(tag, 5000))).collect::<Vec<_>>());
    close(resume(disk.clone(), &recovered, 3, None).unwrap()).unwrap();
    assert!(recover_frames(&disk, 3).unwrap().0.data_loss().is_none());

    let cut = OpenOptions::new().write(true).open(dir.path().join(segment::segment_file_name(2))).unwrap();
    cut.set_len(8192 + 5024 + 100).unwrap();
    let (recovered, frames) = recover_frames(&disk, 3).unwrap();
    assert_eq!(frames, [(4, payload(4, 5000))]);
    let lost = recovered.data_loss().unwrap();
    assert_eq!((lost.first_missing, lost.durable_sequence), (5, 6), "the next incarnation's header proves it");
    let log = resume(disk.clone(), &recovered, 4, Some(lost.fingerprint)).unwrap();
    assert_eq!(log.last_sequence(), 4);
    let kept = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(kept.filter(|name| name.starts_with("lost-")).count(), 3, "two segments and the loss file");
    assert!(recover_frames(&disk, 3).unwrap().0.data_loss().is_none());
}

#[test]
fn a_torn_frame_that_resembles_headers_is_scanned_once() {
    const BYTES: u64 = 256 << 10;
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    append(&mut log, b"one").unwrap();
    log.handle().sync().unwrap();
    let torn_at = log.segment_bytes() as usize;
    // The payload is a list of 8-byte numbers, each lower by one than the one before, and with
    // `BYTES / 2` as its upper half. So any three of them in a row look like a frame header:
    // checksum (lower half) and length (upper half), sequence, and durable sequence.
    let numbers = (0..BYTES / 8).flat_map(|number| ((BYTES / 2) << 32 | (BYTES - number)).to_le_bytes());
    append(&mut log, &numbers.collect::<Vec<_>>()).unwrap();
    drop(log);
    disk.kill();
    disk.flip_bits(&segment::segment_file_name(1), torn_at, 1);
    let disk = disk.handle();
    let before = disk.call_count();
    let (recovered, frames) = recover_frames(&disk, 0).unwrap();
    assert_eq!((recovered.data_loss(), frames.len()), (None, 1));
    let calls = disk.call_count() - before;
    assert!(calls < 100, "{calls} calls");
}

#[test]
fn segment_numbers_out_of_range_are_ignored_or_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = OsDisk::new(Directory::open(dir.path()).unwrap());
    fs::write(dir.path().join(segment::segment_file_name(u64::MAX)), b"").unwrap();
    let (recovered, _) = recover_frames(&disk, 0).unwrap();
    assert_eq!(resume(disk, &recovered, 1, None).unwrap().last_sequence(), 0);

    let disk = OsDisk::new(Directory::open(other.path()).unwrap());
    fs::write(other.path().join(segment::segment_file_name(segment::SEGMENT_NUMBER_MAX)), b"").unwrap();
    let (recovered, _) = recover_frames(&disk, 0).unwrap();
    assert!(matches!(resume(disk, &recovered, 1, None), Err(WalError::Io(_))));
}

#[test]
fn a_real_directory_keeps_files_names_and_lengths() {
    use crate::disk::{Disk, DiskFile};
    let dir = tempfile::tempdir().unwrap();
    let disk = OsDisk::new(Directory::open(dir.path()).unwrap());
    let file = disk.create("a").unwrap();
    assert!(disk.create("a").is_err());
    file.write_at(10, b"ten").unwrap();
    file.sync().unwrap();
    assert_eq!(DiskFile::len(&file).unwrap(), 13);
    let mut into = [1; 8];
    assert_eq!(DiskFile::read_at(&disk.open("a").unwrap(), 8, &mut into).unwrap(), 5);
    assert_eq!(into, *b"\0\0ten\x01\x01\x01");
    assert!(disk.open("a").unwrap().write_at(0, b"no").is_err(), "opened for reading only");
    disk.rename("a", "b").unwrap();
    disk.sync_directory().unwrap();
    assert_eq!(disk.list().unwrap(), ["b"]);
    disk.remove("b").unwrap();
    assert!(disk.open("b").is_err());
}
