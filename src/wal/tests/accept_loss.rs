//! Resuming a log with an accepted data loss.

use super::*;
use crate::wal::file_damage::FileDamage;
use crate::wal::segment;

/// Three segments of three frames each, closed; then frame `damaged` is damaged.
fn damaged(damaged: u64) -> SimDisk {
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    let mut at = (0, 0);
    for tag in 1..=9 {
        if tag == damaged {
            at = ((tag - 1) / 3 + 1, log.segment_bytes() as usize + 30);
        }
        append(&mut log, &payload(tag, 700)).unwrap();
        if tag % 3 == 0 && tag < 9 {
            log.rotate(tag).unwrap();
        }
    }
    close(log).unwrap();
    disk.kill();
    let disk = disk.handle();
    disk.flip_bits(&segment::segment_file_name(at.0), at.1, 1);
    disk
}

fn kept(disk: &SimDisk) -> Vec<String> {
    disk.list().unwrap().into_iter().filter(|name| name.starts_with("lost-") && name.ends_with("segment")).collect()
}

#[test]
fn a_log_with_data_loss_resumes_only_by_its_fingerprint() {
    for frame in 1..=9 {
        let disk = damaged(frame);
        let (recovered, frames) = recover_frames(&disk, 0).unwrap();
        let loss = recovered.data_loss().unwrap().clone();
        let fingerprint = loss.fingerprint;
        assert_eq!(frames.len() as u64, frame - 1);
        for wrong in [None, Some(fingerprint ^ 1)] {
            assert!(matches!(resume(disk.clone(), &recovered, 9, wrong), Err(WalError::DataLoss(_))));
            assert_eq!(kept(&disk).len(), 0);
        }
        let mut log = resume(disk.clone(), &recovered, 9, Some(fingerprint)).unwrap();
        append(&mut log, b"after").unwrap();
        log.handle().sync().unwrap();
        disk.crash(frame);
        let disk = disk.handle();
        assert_eq!(kept(&disk).len() as u64, 3 - (frame - 1) / 3);
        let (recovered, mut again) = recover_frames(&disk, 0).unwrap();
        assert_eq!(recovered.data_loss(), None);
        assert_eq!(accepted_data_losses(&disk).unwrap(), [DataLoss { cause: None, ..loss }]);
        assert_eq!(again.pop(), Some((frame, b"after".to_vec())));
        assert_eq!(again, frames);
    }
}

#[test]
fn a_crash_during_acceptance_leaves_the_same_loss_or_none() {
    for frame in [1, 4, 5, 9] {
        let before = damaged(frame);
        let (recovered, frames) = recover_frames(&before, 0).unwrap();
        let loss = recovered.data_loss().unwrap();
        let (mut same, mut accepted) = (0, 0);
        for nth in 1.. {
            let stopped = before.fork();
            stopped.fail_from(nth, nth);
            let is_resumed = resume(stopped.clone(), &recovered, 9, Some(loss.fingerprint)).is_ok();
            for seed in 0..100 {
                let disk = stopped.fork();
                disk.crash(seed);
                let disk = disk.handle();
                let (now, again) = recover_frames(&disk, 0).unwrap();
                assert_eq!(again, frames);
                if now.data_loss().is_some() {
                    assert!(!is_resumed);
                    assert_eq!(
                        now.data_loss().unwrap().fingerprint,
                        loss.fingerprint,
                        "frame {frame}, call {nth}, {seed}"
                    );
                    same += 1;
                } else {
                    accepted += 1;
                }
                let log = resume(disk.clone(), &now, 10, now.data_loss().map(|loss| loss.fingerprint)).unwrap();
                assert_eq!(log.last_sequence(), frame - 1);
                // Quarantined are the segments from the one with the damaged frame on, and perhaps
                // one that the interrupted `resume` had created.
                assert!(kept(&disk).len() as u64 >= 3 - (frame - 1) / 3);
            }
            if is_resumed {
                break;
            }
        }
        println!("frame {frame}: the same loss {same} times, accepted {accepted} times");
    }
}

#[test]
fn a_loss_at_the_flushed_sequence_is_reported() {
    let disk = damaged(5);
    let (recovered, frames) = recover_frames(&disk, 6).unwrap();
    assert_eq!(recovered.data_loss(), None, "segment 3 begins at 7");
    assert_eq!(frames.len(), 3);
    let (recovered, frames) = recover_frames(&disk, 5).unwrap();
    assert_eq!((frames.len(), recovered.last_sequence()), (0, 5));
    let loss = recovered.data_loss().unwrap();
    assert_eq!((loss.first_missing, loss.durable_sequence), (6, 9));
    let mut log = resume(disk.clone(), &recovered, 9, Some(loss.fingerprint)).unwrap();
    assert_eq!(append(&mut log, b"after").unwrap(), 6);
    let (recovered, frames) = recover_frames(&disk, 5).unwrap();
    assert_eq!((recovered.data_loss(), frames), (None, vec![(6, b"after".to_vec())]));
    assert_eq!(
        recover_frames(&disk, 4).unwrap().0.data_loss().map(|loss| loss.first_missing),
        Some(5),
        "frame 5 is missing"
    );
}

#[test]
fn frames_beyond_the_end_stay_dropped_after_resuming() {
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
    append(&mut log, &payload(1, 300)).unwrap();
    log.handle().sync().unwrap();
    append(&mut log, &payload(2, 300)).unwrap();
    append(&mut log, &payload(3, 300)).unwrap();
    log.rotate(2).unwrap();
    append(&mut log, &payload(4, 300)).unwrap();
    // The frames 2, 3 and 4 are not synced. This damage stands for a power cut that has lost frame
    // 2 and kept the two others.
    disk.flip_bits(&segment::segment_file_name(1), 8192 + 328 + 100, 1);
    let log = reopen(&disk, 3);
    assert_eq!(log.last_sequence(), 1);
    let disk = disk.handle();
    // Damages both headers of segment 3, which `reopen` has created. Recovery finds that segment 2
    // is missing before it, and the frames 3 and 4 do not come back.
    for at in [30, 4096 + 30] {
        disk.flip_bits(&segment::segment_file_name(3), at, 1);
    }
    let (recovered, frames) = recover_frames(&disk, 0).unwrap();
    assert_eq!(
        (frames.len(), recovered.data_loss().unwrap().cause.clone()),
        (1, Some(FileDamage::Missing { number: 2, later: segment::segment_file_name(3) }))
    );
    assert_eq!(recover_frames(&disk, 3).unwrap().1.len(), 0, "not even above a flushed sequence");
}
