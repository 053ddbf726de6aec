//! Tests of the log. Random histories print their seed when they fail: `WAL_SEED` runs that history
//! alone, and `WAL_HISTORIES` sets how many run.

mod accept_loss;
mod damage;
mod every_crash;
mod failing;
mod file_damage;
mod golden;
mod lying_disk;
mod model;
mod real_dir;
mod sync_race;
mod threads;

use super::{
    DataLoss, FrameBuffer, Recovered, WalError, WalHandle, WalWriter, accepted_data_losses, create, recover, resume,
};
use crate::disk::{Disk, SimDisk};
use crate::split_mix64::SplitMix64;
use crate::wal::segment;

const IDENTITY: u64 = 0x1D;

type Frame = (u64, Vec<u8>);

/// A payload that is different for each tag.
fn payload(tag: u64, bytes: usize) -> Vec<u8> {
    let mut choices = SplitMix64::new(tag);
    let mut payload = Vec::with_capacity(bytes + 8);
    while payload.len() < bytes {
        payload.extend_from_slice(&choices.next().to_le_bytes());
    }
    payload.truncate(bytes);
    payload
}

fn append<D: Disk>(log: &mut WalWriter<D>, payload: &[u8]) -> Result<u64, WalError> {
    let mut frame = FrameBuffer::default();
    frame.payload_buffer().extend_from_slice(payload);
    log.append(&mut frame)
}

fn close<D: Disk>(log: WalWriter<D>) -> Result<(), WalError> {
    log.handle().sync()?;
    log.handle().write_sync_record(true)
}

/// Recovers the frames above the flushed sequence.
fn recover_frames<D: Disk>(disk: &D, flushed_sequence: u64) -> Result<(Recovered, Vec<Frame>), WalError> {
    let mut frames = Vec::new();
    let recovered = recover(disk, IDENTITY, flushed_sequence, true, |sequence, payload| {
        frames.push((sequence, payload.to_vec()));
        Ok::<_, WalError>(())
    })?;
    Ok((recovered, frames))
}

/// Ends the process, and resumes the log in the next incarnation.
fn reopen(disk: &SimDisk, salt: u64) -> WalWriter<SimDisk> {
    disk.kill();
    let disk = disk.handle();
    let recovered = recover_frames(&disk, 0).unwrap().0;
    resume(disk, &recovered, salt, None).unwrap()
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs a history for each seed, and prints the seed that failed.
fn for_each_seed(count: u64, history: impl Fn(u64)) {
    let seeds = match number_from("WAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from("WAL_HISTORIES").unwrap_or(count),
    };
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| history(seed));
        if let Err(error) = std::panic::catch_unwind(run) {
            eprintln!("failed with WAL_SEED={seed}");
            std::panic::resume_unwind(error);
        }
    }
}

#[test]
fn a_log_is_read_as_it_was_written() {
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    let sizes = [0, 1, 7, 8, 9, 500, 4096, 40_000, 3];
    for (number, bytes) in sizes.into_iter().enumerate() {
        assert_eq!(append(&mut log, &payload(number as u64, bytes)).unwrap(), number as u64 + 1);
        if number % 4 == 3 {
            log.rotate(number as u64).unwrap();
        }
    }
    disk.kill();
    let (recovered, frames) = recover_frames(&disk.handle(), 0).unwrap();
    assert_eq!(recovered.data_loss(), None);
    let expected = sizes.into_iter().zip(0..).map(|(bytes, number)| (number + 1, payload(number, bytes)));
    assert_eq!(frames, expected.collect::<Vec<_>>());
    assert_eq!(recover_frames(&disk.handle(), 6).unwrap().1, frames[6..], "above a flushed sequence");
}

#[test]
fn a_checkpoints_log_begins_after_its_flushed_sequence() {
    let disk = SimDisk::new();
    close(create(disk.clone(), IDENTITY, 70, 1).unwrap()).unwrap();
    disk.crash(0);
    let disk = disk.handle();
    let (recovered, frames) = recover_frames(&disk, 70).unwrap();
    assert_eq!((recovered.data_loss(), recovered.last_sequence(), frames.len()), (None, 70, 0));
    let mut log = resume(disk.clone(), &recovered, 2, None).unwrap();
    assert_eq!(append(&mut log, b"first").unwrap(), 71);
    assert!(recover_frames(&disk, 69).unwrap().0.data_loss().is_some(), "frame 70 is missing");
}

#[test]
fn idle_incarnations_leave_one_segment() {
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    append(&mut log, b"one").unwrap();
    close(log).unwrap();
    for salt in 2..6 {
        let log = reopen(&disk, salt);
        assert_eq!(log.last_sequence(), 1);
        log.handle().preallocate_segment().unwrap();
        close(log).unwrap();
        assert_eq!(disk.handle().list().unwrap().len(), 4, "two segments, a spare one and the sync record");
    }
}

#[test]
fn on_a_full_disk_incarnations_go_on_in_one_segment() {
    let disk = SimDisk::new();
    disk.set_full(true);
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    append(&mut log, b"kept").unwrap();
    log.handle().sync().unwrap();
    let torn_at = log.segment_bytes() as usize;
    append(&mut log, b"torn").unwrap();
    append(&mut log, b"late").unwrap();
    disk.flip_bits(&segment::segment_file_name(1), torn_at, 1);
    let mut expected = vec![(1, b"kept".to_vec())];
    for sequence in 2..200 {
        let mut log = reopen(&disk, sequence);
        log.handle().preallocate_segment().unwrap();
        // A frame of the size of the torn one: the valid frame after that one would follow it.
        assert_eq!(append(&mut log, b"next").unwrap(), sequence);
        expected.push((sequence, b"next".to_vec()));
        drop(log);
        assert_eq!(recover_frames(&disk.handle(), 0).unwrap().1, expected);
        assert_eq!(disk.handle().list().unwrap().len(), 3, "a segment, a spare one and the sync record");
    }
}

#[test]
fn segments_of_another_store_are_refused() {
    let disk = SimDisk::new();
    create(disk.clone(), IDENTITY + 1, 0, 1).unwrap();
    assert!(matches!(recover_frames(&disk, 0), Err(WalError::WrongStore { wal_id: 0x1E, .. })));
}

#[test]
fn a_segment_is_removable_once_the_next_header_is_durable() {
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    let handle: WalHandle<_> = log.handle();
    append(&mut log, b"one").unwrap();
    handle.sync().unwrap();
    assert_eq!(handle.remove_segments_upto(1).unwrap(), 0, "it is the current segment");
    log.rotate(2).unwrap();
    assert_eq!(handle.remove_segments_upto(1).unwrap(), 0, "a power cut could leave no header at all");
    handle.sync().unwrap();
    assert_eq!(handle.remove_segments_upto(0).unwrap(), 0, "its frame is not flushed");
    assert_eq!(handle.remove_segments_upto(1).unwrap(), 1);
}
