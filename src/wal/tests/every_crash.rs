//! A few unsynced writes, and every state in which a crash can leave them.

use super::*;

/// Crashes copies of the disk in every possible way, and calls `check` with each result. Returns
/// the number of crashes.
fn each_crash(disk: &SimDisk, mut check: impl FnMut(SimDisk)) -> u64 {
    let mut chosen: Vec<(usize, usize)> = Vec::new();
    let mut count = 0;
    loop {
        let fork = disk.fork();
        let mut index = 0;
        fork.crash_with(&mut |possible| {
            if index == chosen.len() {
                chosen.push((0, possible));
            }
            index += 1;
            chosen[index - 1].0
        });
        check(fork.handle());
        count += 1;
        while chosen.last().is_some_and(|(choice, possible)| choice + 1 == *possible) {
            chosen.pop();
        }
        match chosen.last_mut() {
            Some((choice, _)) => *choice += 1,
            None => return count,
        }
    }
}

fn check(disk: &SimDisk, written: &[Vec<u8>], durable: usize) -> usize {
    let (recovered, frames) = recover_frames(disk, 0).unwrap();
    assert_eq!(recovered.data_loss(), None);
    assert!(frames.len() >= durable);
    assert!(frames.iter().map(|(_, payload)| payload).eq(&written[..frames.len()]));
    frames.len()
}

/// Five frames in three segments; the first `synced` frames are synced.
fn write(disk: &SimDisk, synced: usize) -> Vec<Vec<u8>> {
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    let written: Vec<_> =
        [300, 500, 20, 700, 40].into_iter().zip(0..).map(|(bytes, tag)| payload(tag, bytes)).collect();
    for (number, payload) in written.iter().enumerate() {
        if number == synced {
            log.handle().sync().unwrap();
        }
        if number == 2 || number == 4 {
            log.rotate(number as u64).unwrap();
        }
        append(&mut log, payload).unwrap();
    }
    written
}

#[test]
fn each_crash_leaves_a_prefix() {
    for synced in 0..5 {
        let disk = SimDisk::new();
        let written = write(&disk, synced);
        let mut seen = [0; 6];
        let count = each_crash(&disk, |left| seen[check(&left, &written, synced)] += 1);
        println!("{synced} synced: {count} crashes, which leave 0 to 5 frames: {seen:?}");
        assert!(seen[synced] > 0 && seen[5] > 0);
    }
}

#[test]
fn a_crash_while_resuming_after_a_kill_is_no_data_loss() {
    let killed = SimDisk::new();
    let written = write(&killed, 3);
    killed.kill();
    resume_with_crashes(&killed, &written);
    killed.set_full(true);
    resume_with_crashes(&killed, &written);
}

fn resume_with_crashes(killed: &SimDisk, written: &[Vec<u8>]) {
    let mut crashes = 0;
    for nth in 1.. {
        let disk = killed.fork().handle();
        let recovered = recover_frames(&disk, 0).unwrap().0;
        disk.fail_from(nth, nth);
        let resumed = resume(disk.clone(), &recovered, 9, None);
        let kept = if resumed.is_ok() { 5 } else { 3 };
        for seed in 0..200 {
            let left = disk.fork();
            left.crash(seed);
            check(&left.handle(), written, kept);
            crashes += 1;
        }
        if resumed.is_ok() {
            println!("{crashes} crashes, stopped at each of {nth} calls");
            return;
        }
    }
}

#[test]
fn the_next_incarnation_rewrites_what_a_failed_sync_left() {
    for nth in 1..=4 {
        let disk = SimDisk::new();
        let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
        let written: Vec<_> = (0..3).map(|tag| payload(tag, 600)).collect();
        append(&mut log, &written[0]).unwrap();
        // Frame 1 is in segment 1, segments 2 and 3 stay empty, and the other frames are in segment
        // 4. So the sync below syncs four files.
        for salt in 2..=4 {
            log.handle().preallocate_segment().unwrap();
            log.rotate(salt).unwrap();
        }
        append(&mut log, &written[1]).unwrap();
        append(&mut log, &written[2]).unwrap();
        disk.fail_nth(Some(crate::disk::CallKind::Sync), nth, nth);
        assert!(log.handle().sync().is_err(), "four segments");
        assert_eq!(reopen(&disk, 5).last_sequence(), 3);
        let count = each_crash(&disk, |left| assert_eq!(check(&left, &written, 3), 3));
        println!("sync {nth} of 4 failed: {count} crashes of the next incarnation");
    }
}
