//! Damage to whole files at the end of the log: cut off, missing, renamed, exchanged, or replaced
//! by another segment or by an older copy.
//!
//! Each damage either costs nothing, or is reported, or is one of those that cannot be detected:
//! the tests name these.

use std::collections::BTreeMap;

use super::*;
use crate::disk::DiskFile;
use crate::tunables::{PREALLOCATION_STEP, PREALLOCATION_STEP_ON_FULL_DISK};
use crate::wal::segment;
use crate::wal::sync_record;

/// How much the log's environment proves when its process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// The newest segment is so new that it has neither a successor nor a sync record.
    New,
    /// There is a spare successor; the sync record names the segment, and not its last frames.
    Busy,
    /// The sync record covers everything. A closed log is the same.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Damage {
    CutInFirstStep,
    CutBeyond,
    Missing,
    RenamedToNext,
    RenamedAway,
    Swapped,
    BeforeCopied,
    SpareCopied,
    OlderCopy,
    NoHeader,
}

const NEWEST: u64 = 3;
const FRAMES: u64 = 12;

struct Sample {
    disk: SimDisk,
    /// The newest segment after each frame, oldest first.
    copies: Vec<Vec<u8>>,
}

fn read(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn replace(disk: &SimDisk, name: &str, bytes: &[u8]) {
    if disk.list().unwrap().iter().any(|other| other == name) {
        disk.remove(name).unwrap();
    }
    let file = disk.create(name).unwrap();
    file.write_at(0, bytes).unwrap();
    file.sync().unwrap();
    disk.sync_directory().unwrap();
}

/// Three segments of four synced frames each, so long that the newest one has two steps.
fn sample(state: State) -> Sample {
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    let handle = log.handle();
    let mut copies = Vec::new();
    for tag in 1..=FRAMES {
        append(&mut log, &payload(tag, 3000)).unwrap();
        handle.sync().unwrap();
        if tag > FRAMES - 4 {
            copies.push(read(&disk, &segment::segment_file_name(NEWEST)));
        }
        if state > State::New && tag == FRAMES - 3 {
            handle.preallocate_segment().unwrap();
            handle.write_sync_record(false).unwrap();
        }
        if tag % 4 == 0 && tag < FRAMES {
            log.rotate(tag).unwrap();
        }
    }
    copies.pop();
    if state == State::Idle {
        handle.write_sync_record(true).unwrap();
    }
    disk.kill();
    Sample { disk: disk.handle(), copies }
}

/// Calls `check` with a copy of the disk for each way of damage.
fn each_damage(sample: &Sample, mut check: impl FnMut(Damage, &SimDisk)) {
    let name = segment::segment_file_name;
    let mut damaged = |damage: Damage, make: &dyn Fn(&SimDisk)| {
        let disk = sample.disk.fork().handle();
        make(&disk);
        check(damage, &disk);
    };
    let content = |number| read(&sample.disk, &name(number));
    let (before, newest) = (content(NEWEST - 1), content(NEWEST));
    for length in 0..newest.len() {
        let in_first = length < PREALLOCATION_STEP;
        let damage = if in_first { Damage::CutInFirstStep } else { Damage::CutBeyond };
        damaged(damage, &|disk| disk.set_len(&name(NEWEST), length));
    }
    damaged(Damage::Missing, &|disk| disk.remove(&name(NEWEST)).unwrap());
    damaged(Damage::RenamedToNext, &|disk| disk.rename(&name(NEWEST), &name(NEWEST + 1)).unwrap());
    damaged(Damage::RenamedAway, &|disk| disk.rename(&name(NEWEST), "backup").unwrap());
    damaged(Damage::Swapped, &|disk| {
        replace(disk, &name(NEWEST), &before);
        replace(disk, &name(NEWEST - 1), &newest);
    });
    damaged(Damage::BeforeCopied, &|disk| replace(disk, &name(NEWEST), &before));
    damaged(Damage::SpareCopied, &|disk| replace(disk, &name(NEWEST), &vec![0; PREALLOCATION_STEP]));
    for copy in &sample.copies {
        damaged(Damage::OlderCopy, &|disk| replace(disk, &name(NEWEST), copy));
    }
    damaged(Damage::NoHeader, &|disk| {
        disk.flip_bits(&name(NEWEST), 30, 1);
        disk.flip_bits(&name(NEWEST), 4096 + 30, 1);
    });
}

/// Counts the ways of damage that lose frames without an error.
fn silent_losses(state: State) -> BTreeMap<Damage, u64> {
    let sample = sample(state);
    let all = recover_frames(&sample.disk, 0).unwrap().1;
    assert_eq!(all.len() as u64, FRAMES);
    let (mut silent, mut reported, mut harmless) = (BTreeMap::new(), 0, 0);
    each_damage(&sample, |damage, disk| {
        let (recovered, frames) = recover_frames(disk, 0).unwrap();
        assert_eq!(frames, all[..frames.len()], "{damage:?} makes no prefix");
        match recovered.data_loss() {
            Some(loss) => {
                reported += 1;
                let accepted = resume(disk.clone(), &recovered, 9, Some(loss.fingerprint)).unwrap();
                drop(accepted);
                let (again, kept) = recover_frames(disk, 0).unwrap();
                assert_eq!((again.data_loss(), kept.len()), (None, frames.len()), "{damage:?} is accepted");
            }
            None if frames.len() < all.len() => *silent.entry(damage).or_insert(0) += 1,
            None => harmless += 1,
        }
    });
    println!("{state:?}: {harmless} cost nothing, {reported} are reported, silent: {silent:?}");
    silent
}

#[test]
fn an_idle_log_never_loses_its_end_silently() {
    assert_eq!(silent_losses(State::Idle), BTreeMap::new());
}

#[test]
fn a_busy_log_loses_silently_only_what_has_no_proof_yet() {
    let silent = silent_losses(State::Busy);
    assert_eq!(silent.keys().copied().collect::<Vec<_>>(), [Damage::CutBeyond, Damage::OlderCopy]);
}

/// For a few milliseconds nothing but the newest segment itself shows that the segment exists. Only
/// a header that is left proves something.
#[test]
fn a_new_segment_can_be_lost_silently_as_a_whole() {
    let silent = silent_losses(State::New);
    let header_bytes = 128;
    assert_eq!(silent.get(&Damage::CutInFirstStep), Some(&header_bytes));
    let expected = [
        Damage::CutInFirstStep,
        Damage::CutBeyond,
        Damage::Missing,
        Damage::RenamedAway,
        Damage::BeforeCopied,
        Damage::SpareCopied,
        Damage::OlderCopy,
        Damage::NoHeader,
    ];
    assert_eq!(silent.keys().copied().collect::<Vec<_>>(), expected);
}

#[test]
fn damage_to_the_sync_record_or_a_spare_segment_costs_nothing() {
    let sample = sample(State::Idle);
    let (spare, record) = (segment::segment_file_name(NEWEST + 1), sync_record::FILE_NAME);
    let newest = read(&sample.disk, &segment::segment_file_name(NEWEST));
    let damages: [&dyn Fn(&SimDisk); 8] = [
        &|disk| disk.remove(record).unwrap(),
        &|disk| disk.set_len(record, 11),
        &|disk| disk.flip_bits(record, 20, 1),
        &|disk| replace(disk, record, &newest),
        &|disk| disk.remove(&spare).unwrap(),
        &|disk| disk.set_len(&spare, 0),
        &|disk| disk.set_len(&spare, 5000),
        &|disk| replace(disk, &spare, &newest),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let disk = sample.disk.fork().handle();
        damage(&disk);
        let (recovered, frames) = recover_frames(&disk, 0).unwrap();
        assert_eq!((recovered.data_loss(), frames.len() as u64), (None, FRAMES), "damage {number}");
        let log = resume(disk.clone(), &recovered, 9, None).unwrap();
        log.handle().write_sync_record(true).unwrap();
        assert_eq!(recover_frames(&disk, 0).unwrap().1, frames, "damage {number}");
    }
}

/// A log that went on after an accepted loss reaches the sequences of the old record again. The
/// record is obsolete from the acceptance on, before a new one is written.
#[test]
fn an_accepted_loss_ends_the_sync_record() {
    let sample = sample(State::Idle);
    let disk = sample.disk;
    disk.remove(&segment::segment_file_name(NEWEST)).unwrap();
    disk.remove(&segment::segment_file_name(NEWEST + 1)).unwrap();
    let recovered = recover_frames(&disk, 0).unwrap().0;
    let loss = recovered.data_loss().unwrap();
    assert_eq!((loss.first_missing, loss.durable_sequence), (9, FRAMES));
    let mut log = resume(disk.clone(), &recovered, 9, Some(loss.fingerprint)).unwrap();
    for tag in 0..8 {
        append(&mut log, &payload(tag, 100)).unwrap();
        log.handle().sync().unwrap();
        for seed in 0..20 {
            let crashed = disk.fork();
            crashed.crash(seed);
            let (recovered, frames) = recover_frames(&crashed.handle(), 0).unwrap();
            assert_eq!((recovered.data_loss(), frames.len() as u64), (None, 9 + tag));
        }
    }
}

/// Two openings on a full disk whose segments have the short step, and each of which ended before
/// its header was durable.
#[test]
fn segments_of_a_full_disk_that_a_power_cut_has_left_are_no_damage() {
    let disk = sample(State::New).disk;
    let [first, second] = [1, 2].map(|after| segment::segment_file_name(NEWEST + after));
    let zeros = vec![0; PREALLOCATION_STEP_ON_FULL_DISK];
    replace(&disk, &first, &zeros);
    replace(&disk, &second, &zeros);
    let (recovered, frames) = recover_frames(&disk, 0).unwrap();
    assert_eq!((recovered.data_loss(), frames.len() as u64), (None, FRAMES));
    for length in [0, PREALLOCATION_STEP_ON_FULL_DISK - 1, PREALLOCATION_STEP - 1] {
        replace(&disk, &first, &vec![0; length]);
        let recovered = recover_frames(&disk, 0).unwrap().0;
        assert!(recovered.data_loss().is_some(), "{length} bytes");
    }
}
