//! Random histories against a model: what was appended, what was acknowledged.

use super::*;
use crate::disk::Call;

struct Model {
    disk: SimDisk,
    choices: Choices,
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
            choices: Choices::new(seed),
            frames: Vec::new(),
            maybe: None,
            acknowledged: 0,
            must: 0,
            position: 0,
            tag: 0,
        }
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.choices.below(bound) == 0
    }

    fn append(&mut self, log: &mut Log<SimDisk>) -> Result<(), Error> {
        let bytes = match self.choices.below(10) {
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

    fn mark(&mut self, log: &mut Log<SimDisk>) -> Result<(), Error> {
        match log.mark() {
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

    fn step(&mut self, log: &mut Log<SimDisk>) -> Result<(), Error> {
        let syncer = log.syncer();
        match self.choices.below(24) {
            0..=11 => self.append(log),
            12..=15 => {
                self.acknowledged = syncer.sync()?;
                assert_eq!(self.acknowledged, self.frames.len() as u64);
                Ok(())
            }
            16 | 17 => log.rotate(self.choices.next()),
            18 => syncer.prepare(),
            19 => self.mark(log),
            20 | 21 => {
                let above = self.choices.below(self.acknowledged - self.position + 1);
                self.position += above;
                match syncer.free(self.position) {
                    // A file that cannot be removed is no harm.
                    Err(Error::Io(_)) => Ok(()),
                    answer => answer.map(|_| ()),
                }
            }
            22 => {
                let kinds = [None, Some(Call::Write), Some(Call::Sync), Some(Call::SyncDirectory)];
                let kind = kinds[self.choices.index(kinds.len())];
                let nth = 1 + self.choices.below(6);
                if self.one_in(2) {
                    self.disk.fail(kind, nth, self.choices.next());
                } else {
                    self.disk.stop(nth, self.choices.next());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn live(&mut self, mut log: Log<SimDisk>) {
        for _ in 0..self.choices.below(25) {
            if let Err(why) = self.step(&mut log) {
                assert!(matches!(why, Error::Failed(_)), "{why}");
                let durable = log.syncer().durable();
                assert!(append(&mut log, b"late").is_err());
                assert!(log.syncer().sync().is_err() && log.rotate(0).is_err() && log.syncer().prepare().is_err());
                assert_eq!(durable, log.syncer().durable());
                break;
            }
        }
        assert_eq!(log.syncer().durable(), self.acknowledged);
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
        self.disk = self.disk.revive();
    }

    fn check(&self, recovered: &Recovered, frames: &[Frame]) {
        assert_eq!(recovered.lost(), None, "there was no damage");
        assert!(recovered.last() >= self.must, "{} of {} are left", recovered.last(), self.must);
        assert_eq!(recovered.last(), self.position + frames.len() as u64);
        for ((sequence, payload), expected) in frames.iter().zip(self.position + 1..) {
            assert_eq!(*sequence, expected);
            let appended = self.frames.get(expected as usize - 1);
            let is_known = appended.map_or(self.maybe.as_ref() == Some(payload), |appended| appended == payload);
            assert!(is_known, "frame {sequence} is not what was appended");
        }
        assert!(recovered.last() <= self.frames.len() as u64 + u64::from(self.maybe.is_some()));
    }

    /// Opens until it is not interrupted.
    fn open(&mut self) -> Log<SimDisk> {
        loop {
            match self.choices.below(4) {
                0 => self.disk.stop(1 + self.choices.below(40), self.choices.next()),
                1 => self.disk.fail(None, 1 + self.choices.below(40), self.choices.next()),
                _ => self.disk.heal(),
            }
            let opened = look(&self.disk, self.position).and_then(|(recovered, frames)| {
                self.check(&recovered, &frames);
                if let Ok((_, again)) = look(&self.disk, self.position) {
                    assert_eq!(frames, again);
                }
                let log = begin(self.disk.clone(), &recovered, self.choices.next(), None)?;
                Ok((log, frames))
            });
            match opened {
                Ok((log, frames)) => {
                    self.disk.heal();
                    self.frames.truncate(self.position as usize);
                    self.frames.extend(frames.into_iter().map(|(_, payload)| payload));
                    (self.acknowledged, self.maybe) = (self.frames.len() as u64, None);
                    assert_eq!(log.last(), self.acknowledged);
                    return log;
                }
                Err(why) => {
                    assert!(matches!(why, Error::Io(_)), "{why}");
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
