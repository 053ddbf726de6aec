//! Random histories against a model of what was appended and what was acknowledged.

use super::*;
use crate::disk::CallKind;

struct Model {
    disk: SimDisk,
    choices: SplitMix64,
    /// Payloads in the log, from the first sequence on.
    frames: Vec<Vec<u8>>,
    /// The payload of a failed append, which may be in the log.
    maybe: Option<Vec<u8>>,
    acknowledged: u64,
    /// How many frames the next opening must find. After a kill: all that were appended. After a
    /// power cut, or a kill after which the kernel has dropped the pages of failed syncs: the
    /// acknowledged ones.
    must: u64,
    /// The flushed sequence: all frames up to it are durable elsewhere.
    flushed: u64,
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
            flushed: 0,
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
            Err(error) => {
                self.maybe = Some(payload);
                Err(error)
            }
        }
    }

    fn step(&mut self, log: &mut WalWriter<SimDisk>) -> Result<(), WalError> {
        let handle = log.handle();
        match self.choices.next_below(24) {
            0..=11 => self.append(log),
            12..=15 => {
                self.acknowledged = handle.sync()?;
                assert_eq!(self.acknowledged, self.frames.len() as u64);
                Ok(())
            }
            16 | 17 => log.rotate(self.choices.next()),
            18 => handle.preallocate_segment(),
            19 => handle.write_sync_record(self.one_in(2)),
            20 | 21 => {
                let above = self.choices.next_below(self.acknowledged - self.flushed + 1);
                self.flushed += above;
                match handle.remove_segments_upto(self.flushed) {
                    // A segment that cannot be removed does no harm.
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

    fn run_incarnation(&mut self, mut log: WalWriter<SimDisk>) {
        for _ in 0..self.choices.next_below(25) {
            if let Err(error) = self.step(&mut log) {
                assert!(matches!(error, WalError::Failed(_)), "{error}");
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
        self.end_incarnation();
    }

    /// Ends the process by a power cut, or by a kill, after which the kernel may drop the pages of
    /// failed syncs.
    fn end_incarnation(&mut self) {
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
        assert_eq!(recovered.last_sequence(), self.flushed + frames.len() as u64);
        for ((sequence, payload), expected) in frames.iter().zip(self.flushed + 1..) {
            assert_eq!(*sequence, expected);
            let appended = self.frames.get(expected as usize - 1);
            let is_appended = appended.map_or(self.maybe.as_ref() == Some(payload), |appended| appended == payload);
            assert!(is_appended, "frame {sequence} is not what was appended");
        }
        assert!(recovered.last_sequence() <= self.frames.len() as u64 + u64::from(self.maybe.is_some()));
    }

    /// Opens the log while disk calls fail at random; after an opening that fails, opens it again
    /// in the next incarnation.
    fn open(&mut self) -> WalWriter<SimDisk> {
        loop {
            match self.choices.next_below(4) {
                0 => self.disk.fail_from(1 + self.choices.next_below(40), self.choices.next()),
                1 => self.disk.fail_nth(None, 1 + self.choices.next_below(40), self.choices.next()),
                _ => self.disk.clear_fault(),
            }
            let is_full = self.one_in(2);
            self.disk.set_full(is_full);
            let opened = recover_frames(&self.disk, self.flushed).and_then(|(recovered, frames)| {
                self.check(&recovered, &frames);
                if let Ok((_, again)) = recover_frames(&self.disk, self.flushed) {
                    assert_eq!(frames, again);
                }
                let log = resume(self.disk.clone(), &recovered, self.choices.next(), None)?;
                Ok((log, frames))
            });
            match opened {
                Ok((log, frames)) => {
                    self.disk.clear_fault();
                    self.frames.truncate(self.flushed as usize);
                    self.frames.extend(frames.into_iter().map(|(_, payload)| payload));
                    (self.acknowledged, self.maybe) = (self.frames.len() as u64, None);
                    assert_eq!(log.last_sequence(), self.acknowledged);
                    return log;
                }
                Err(error) => {
                    assert!(matches!(error, WalError::Io(_)), "{error}");
                    self.end_incarnation();
                }
            }
        }
    }
}

#[test]
fn each_incarnation_finds_a_prefix_with_all_acknowledged() {
    for_each_seed(6000, |seed| {
        let mut model = Model::new(seed);
        for _ in 0..8 {
            let log = model.open();
            model.run_incarnation(log);
        }
    });
}
