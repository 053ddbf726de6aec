//! Random histories against a model: what was appended, what was acknowledged.

use super::*;
use crate::disk::CallKind;

struct Model {
    disk: SimDisk,
    choices: SplitMix64,
    /// What the log has, first sequence first.
    frames: Vec<Vec<u8>>,
    /// The frame of an append that failed: it may be there.
    maybe: Option<Vec<u8>>,
    acknowledged: u64,
    /// What must be there now: everything after a kill, else what was acknowledged.
    must: u64,
    /// Up to where something else has everything, and durably.
    position: u64,
    tag: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            disk: SimDisk::new(),
            choices: SplitMix64::new(seed),
            frames: Vec::new(),
            maybe: None,
            acknowledged: 0,
            must: 0,
            position: 0,
            tag: 0,
        }
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.choices.next_below(bound) == 0
    }

    fn append(&mut self, log: &mut WalWriter<SimDisk>) -> Result<(), WalError> {
        let bytes = match self.choices.next_below(10) {
            0 => self.choices.index(30_000),
            1 => self.choices.index(5000),
            _ => self.choices.index(200),
        };
        self.tag += 1;
        let payload = payload(self.tag, bytes);
        match append(log, &payload) {
            Ok(sequence) => {
                self.frames.push(payload);
                assert_eq!(sequence, self.frames.len() as u64);
                Ok(())
            }
            Err(why) => {
                self.maybe = Some(payload);
                Err(why)
            }
        }
    }

    fn mark(&mut self, log: &mut WalWriter<SimDisk>) -> Result<(), WalError> {
        match log.append_noop() {
            Ok(None) => Ok(()),
            Ok(Some(_)) => {
                self.frames.push(Vec::new());
                Ok(())
            }
            Err(why) => {
                self.maybe = Some(Vec::new());
                Err(why)
            }
        }
    }

    fn step(&mut self, log: &mut WalWriter<SimDisk>) -> Result<(), WalError> {
        let syncer = log.handle();
        match self.choices.next_below(24) {
            0..=11 => self.append(log),
            12..=15 => {
                self.acknowledged = syncer.sync()?;
                assert_eq!(self.acknowledged, self.frames.len() as u64);
                Ok(())
            }
            16 | 17 => log.rotate(self.choices.next()),
            18 => syncer.preallocate_segment(),
            19 => self.mark(log),
            20 | 21 => {
                let above = self.choices.next_below(self.acknowledged - self.position + 1);
                self.position += above;
                match syncer.remove_segments_upto(self.position) {
                    // A file that cannot be removed is no harm.
                    Err(WalError::Io(_)) => Ok(()),
                    answer => answer.map(|_| ()),
                }
            }
            22 => {
                let kinds = [None, Some(CallKind::Write), Some(CallKind::Sync), Some(CallKind::SyncDirectory)];
                let kind = kinds[self.choices.index(kinds.len())];
                let nth = 1 + self.choices.next_below(6);
                if self.one_in(2) {
                    self.disk.fail_nth(kind, nth, self.choices.next());
                } else {
                    self.disk.fail_from(nth, self.choices.next());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn live(&mut self, mut log: WalWriter<SimDisk>) {
        for _ in 0..self.choices.next_below(25) {
            if let Err(why) = self.step(&mut log) {
                assert!(matches!(why, WalError::Failed(_)), "{why}");
                let durable = log.handle().durable_sequence();
                assert!(append(&mut log, b"late").is_err());
                assert!(
                    log.handle().sync().is_err()
                        && log.rotate(0).is_err()
                        && log.handle().preallocate_segment().is_err()
                );
                assert_eq!(durable, log.handle().durable_sequence());
                break;
            }
        }
        assert_eq!(log.handle().durable_sequence(), self.acknowledged);
        self.must = self.frames.len() as u64;
        self.end_life();
    }

    /// The process ends, and perhaps the machine.
    fn end_life(&mut self) {
        if self.one_in(3) {
            self.disk.kill();
            if self.one_in(3) {
                self.disk.evict(self.choices.next());
                self.must = self.acknowledged;
            }
        } else {
            self.disk.crash(self.choices.next());
            self.must = self.acknowledged;
        }
        self.disk = self.disk.handle();
    }

    fn check(&self, recovered: &Recovered, frames: &[Frame]) {
        assert_eq!(recovered.data_loss(), None, "there was no damage");
        assert!(recovered.last_sequence() >= self.must, "{} of {} are left", recovered.last_sequence(), self.must);
        assert_eq!(recovered.last_sequence(), self.position + frames.len() as u64);
        for ((sequence, payload), expected) in frames.iter().zip(self.position + 1..) {
            assert_eq!(*sequence, expected);
            let appended = self.frames.get(expected as usize - 1);
            let is_known = appended.map_or(self.maybe.as_ref() == Some(payload), |appended| appended == payload);
            assert!(is_known, "frame {sequence} is not what was appended");
        }
        assert!(recovered.last_sequence() <= self.frames.len() as u64 + u64::from(self.maybe.is_some()));
    }

    /// Opens until it is not interrupted.
    fn open(&mut self) -> WalWriter<SimDisk> {
        loop {
            match self.choices.next_below(4) {
                0 => self.disk.fail_from(1 + self.choices.next_below(40), self.choices.next()),
                1 => self.disk.fail_nth(None, 1 + self.choices.next_below(40), self.choices.next()),
                _ => self.disk.clear_fault(),
            }
            let opened = recover_frames(&self.disk, self.position).and_then(|(recovered, frames)| {
                self.check(&recovered, &frames);
                if let Ok((_, again)) = recover_frames(&self.disk, self.position) {
                    assert_eq!(frames, again);
                }
                let log = resume(self.disk.clone(), &recovered, self.choices.next(), None)?;
                Ok((log, frames))
            });
            match opened {
                Ok((log, frames)) => {
                    self.disk.clear_fault();
                    self.frames.truncate(self.position as usize);
                    self.frames.extend(frames.into_iter().map(|(_, payload)| payload));
                    (self.acknowledged, self.maybe) = (self.frames.len() as u64, None);
                    assert_eq!(log.last_sequence(), self.acknowledged);
                    return log;
                }
                Err(why) => {
                    assert!(matches!(why, WalError::Io(_)), "{why}");
                    self.end_life();
                }
            }
        }
    }
}

#[test]
fn each_life_has_a_prefix_with_everything_acknowledged() {
    for_each_seed(6000, |seed| {
        let mut model = Model::new(seed);
        for _ in 0..8 {
            let log = model.open();
            model.live(log);
        }
    });
}
