//! Media that lie: a write is confirmed and lost, partly lost, or at another place, and reads fail.
//!
//! A log that was closed, or was idle, reports each loss, or has lost nothing. While it was busy,
//! the last frame has no proof yet: only the loss of its write is not reported.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::*;
use crate::disk::{CallKind, LostWrite};

const FRAMES: u64 = 14;

/// Frames with these tags, each of them synced, and a segment for every four.
fn fill(log: &mut WalWriter<SimDisk>, tags: RangeInclusive<u64>) -> Result<(), WalError> {
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
fn write(disk: &SimDisk, is_closed: bool) -> Result<(), WalError> {
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
    write(&disk, true).expect("a disk without faults");
    let (recovered, frames) = recover_frames(&disk, 0).expect("a log without damage");
    assert_eq!((recovered.data_loss(), frames.len() as u64), (None, FRAMES));
    (disk, frames)
}

/// Loses each write of the log in turn, in this way. Where fewer frames than all were left without
/// an error, counts how many were left.
fn silent_losses(lost: LostWrite, is_closed: bool) -> BTreeMap<u64, u64> {
    let all = written().1;
    let (mut silent, mut reported, mut harmless) = (BTreeMap::new(), 0, 0);
    for nth in 1.. {
        let disk = SimDisk::new();
        disk.lose_nth_write(lost, nth);
        let written = write(&disk, is_closed);
        if disk.is_to_lose_a_write() {
            break;
        }
        // The second incarnation may have found the loss of a write of the first.
        match written.and_then(|()| recover_frames(&disk, 0)) {
            Err(_) => reported += 1,
            Ok((recovered, frames)) => {
                assert!(frames == all[..frames.len()], "{lost:?} of write {nth} leaves no prefix");
                match (recovered.data_loss(), frames.len() as u64) {
                    (Some(_), _) => reported += 1,
                    (None, FRAMES) => harmless += 1,
                    (None, left) => *silent.entry(left).or_insert(0) += 1,
                }
            }
        }
    }
    println!("{lost:?}, closed {is_closed}: {harmless} harmless, {reported} reported, silent: {silent:?}");
    assert!(harmless > 0 && reported > 0, "{lost:?}: {harmless} harmless, {reported} reported");
    silent
}

const LOST: [LostWrite; 10] = [
    LostWrite::Dropped,
    LostWrite::SectorDropped(0),
    LostWrite::SectorDropped(1),
    LostWrite::SectorDropped(4),
    LostWrite::Misdirected(8),
    LostWrite::Misdirected(512),
    LostWrite::Misdirected(4096),
    LostWrite::Misdirected(-64),
    LostWrite::Misdirected(-4096),
    LostWrite::InFileBefore,
];

#[test]
fn a_closed_log_reports_each_lost_write() {
    for lost in LOST {
        assert_eq!(silent_losses(lost, true), BTreeMap::new(), "{lost:?}");
    }
}

#[test]
fn a_busy_log_misses_only_the_lost_write_of_its_last_frame() {
    for lost in LOST {
        let silent = silent_losses(lost, false);
        // A last frame that is written too early also takes the frame that it overwrites.
        let first_lost = if lost == LostWrite::Misdirected(-64) { FRAMES - 1 } else { FRAMES };
        let expected = BTreeMap::from([(first_lost - 1, 1)]);
        assert!(silent.is_empty() || silent == expected, "{lost:?}: {silent:?}");
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
