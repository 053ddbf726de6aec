//! One writer, and beside it threads that sync, prepare and free.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;

#[test]
fn what_any_thread_was_told_is_durable_survives() {
    for_each_seed(150, |seed| {
        let disk = SimDisk::new();
        let mut log = create(disk.clone(), IDENTITY, 0, 1).unwrap();
        let (told, position) = (AtomicU64::new(0), AtomicU64::new(0));
        disk.fail_from(20 + seed % 400, seed);
        thread::scope(|scope| {
            for _ in 0..2 {
                let (syncer, told) = (log.handle(), &told);
                scope.spawn(move || {
                    while let Ok(durable) = syncer.sync() {
                        told.fetch_max(durable, Ordering::SeqCst);
                    }
                });
            }
            let (syncer, position) = (log.handle(), &position);
            scope.spawn(move || {
                while syncer.preallocate_segment().is_ok() {
                    position.fetch_max(syncer.durable_sequence() / 2, Ordering::SeqCst);
                    if matches!(syncer.remove_segments_upto(position.load(Ordering::SeqCst)), Err(WalError::Failed(_)))
                    {
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
        let position = position.into_inner();
        let (recovered, frames) = recover_frames(&disk.handle(), position).unwrap();
        assert_eq!(recovered.data_loss(), None);
        assert!(recovered.last_sequence() >= told.into_inner());
        for (sequence, payload) in frames {
            assert_eq!(payload, super::payload(sequence, 300));
        }
    });
}
