//! One writer, and other threads that sync, preallocate and remove segments.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;

#[test]
fn a_durable_sequence_returned_to_any_thread_survives() {
    for_each_seed(150, |seed| {
        let disk = SimDisk::new();
        let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
        let (reported, flushed) = (AtomicU64::new(0), AtomicU64::new(0));
        disk.fail_from(20 + seed % 400, seed);
        thread::scope(|scope| {
            for _ in 0..2 {
                let (handle, reported) = (log.handle(), &reported);
                scope.spawn(move || {
                    while let Ok(durable) = handle.sync() {
                        reported.fetch_max(durable, Ordering::SeqCst);
                    }
                });
            }
            let (handle, flushed) = (log.handle(), &flushed);
            scope.spawn(move || {
                while handle.preallocate_segment().is_ok() {
                    flushed.fetch_max(handle.durable_sequence() / 2, Ordering::SeqCst);
                    if matches!(handle.remove_segments_upto(flushed.load(Ordering::SeqCst)), Err(WalError::Failed(_))) {
                        break;
                    }
                    thread::yield_now();
                }
            });
            let log = &mut log;
            scope.spawn(move || {
                for tag in 1.. {
                    let rotated = if tag % 5 == 0 { log.rotate(tag) } else { Ok(()) };
                    if rotated.and_then(|()| append(log, &payload(tag, 300))).is_err() {
                        break;
                    }
                }
            });
        });
        disk.crash(seed);
        let flushed = flushed.into_inner();
        let (recovered, frames) = recover_frames(&disk.handle(), flushed).unwrap();
        assert_eq!(recovered.data_loss(), None);
        assert!(recovered.last_sequence() >= reported.into_inner());
        for (sequence, payload) in frames {
            assert_eq!(payload, super::payload(sequence, 300));
        }
    });
}
