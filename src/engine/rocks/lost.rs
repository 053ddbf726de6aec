//! Commits that RocksDB drops without a word: those behind a damaged record.
//!
//! Recovery ends there, and the next writer begins a new log and deletes this one. That much is right, for a power cut can leave
//! the same: nobody can say whether what lies behind was acknowledged. What is wrong is the silence. So whoever opens the store is
//! told, and before a writer does, the logs are kept in the folder under names that RocksDB does not know:
//!
//! - `damaged-000123.log.kept`: the log with the damage,
//! - `unread-000124.log.kept`: a later one, of which nothing is read.
//!
//! As long as they are there the store goes on telling. Whoever has seen to it moves them away.
//!
//! Where there are only zeros in place of a record's header RocksDB skips the rest of the block and reads on: over a hole. No prefix is
//! left then, so the log is cut off at the hole, once it is kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::logs::{self, Log};
use crate::engine::{EngineError, LostLog};

const DAMAGED: &str = "damaged-";
const UNREAD: &str = "unread-";
const KEPT: &str = ".kept";

/// What is not read.
pub struct Lost {
    /// To be told.
    pub told: LostLog,
    /// Whether RocksDB would read over it.
    pub is_hole: bool,
    /// The damaged log and all later ones.
    logs: Vec<PathBuf>,
}

/// Judges the logs that RocksDB is about to read, oldest first: the oldest it still needs has the number `oldest`.
pub fn judge(logs: &[Log], oldest: u64) -> Option<Lost> {
    let mut lost: Option<Lost> = None;
    let mut before: Option<&Log> = None;
    for log in logs.iter().filter(|log| log.number >= oldest) {
        let found = |log: &Log, offset, is_hole| Lost {
            told: LostLog { file: log.file.clone(), offset, bytes: 0 },
            is_hole,
            logs: vec![log.file.clone()],
        };
        if lost.is_none()
            && let Some(before) = before
            && log
                .records
                .predecessor
                .is_some_and(|(number, size)| number == before.number && size != before.records.length)
        {
            lost = Some(found(before, before.records.length, false));
        }
        match (&mut lost, log.records.stop) {
            (Some(lost), _) => {
                lost.told.bytes += log.records.bytes;
                if !mutated!(LaterLogsNotKept) {
                    lost.logs.push(log.file.clone());
                }
            }
            (None, Some(stop)) => {
                let mut new = found(log, stop.offset, stop.is_hole && log.records.behind > 0);
                new.told.bytes = log.records.behind;
                lost = Some(new);
            }
            (None, None) => {}
        }
        before = Some(log);
    }
    lost.filter(|lost| lost.told.bytes > 0)
}

impl Lost {
    /// Keeps the logs from being deleted, and RocksDB from reading over a hole.
    pub fn keep(&self, folder: &Path) -> Result<(), EngineError> {
        self.try_keep(folder).map_err(|why| {
            EngineError::Open(format!("{}; it cannot be kept, so the store stays closed: {why}", self.told))
        })
    }

    fn try_keep(&self, folder: &Path) -> io::Result<()> {
        for log in &self.logs {
            let to = kept_name(log, if *log == self.told.file { DAMAGED } else { UNREAD });
            if to.symlink_metadata().is_ok() {
                continue;
            }
            // A link would be cut off with the log.
            if self.is_hole || fs::hard_link(log, &to).is_err() {
                let copying = to.with_extension("copying");
                fs::copy(log, &copying)?;
                File::open(&copying)?.sync_all()?;
                fs::rename(&copying, &to)?;
            }
        }
        File::open(folder)?.sync_all()?;
        if self.is_hole { self.cut(&self.told.file) } else { Ok(()) }
    }

    /// Ends the damaged log, or a copy of it, in front of the damage.
    pub fn cut(&self, log: &Path) -> io::Result<()> {
        let log = OpenOptions::new().write(true).open(log)?;
        log.set_len(self.told.offset)?;
        log.sync_all()
    }

    /// Whether it was kept before.
    pub fn is_kept(&self) -> bool {
        kept_name(&self.told.file, DAMAGED).exists()
    }
}

fn kept_name(log: &Path, what: &str) -> PathBuf {
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    log.with_file_name(format!("{what}{name}{KEPT}"))
}

/// What earlier openings have kept.
pub fn kept(folder: &Path) -> io::Result<Vec<LostLog>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let Some(log) = name.strip_suffix(KEPT) else { continue };
        let of = |what| logs::number(Path::new(log.strip_prefix(what)?));
        if let Some(number) = of(DAMAGED) {
            files.push((number, true, file.clone()));
        } else if let Some(number) = of(UNREAD) {
            files.push((number, false, file.clone()));
        }
    }
    files.sort();
    let mut kept: Vec<LostLog> = Vec::new();
    for (_, is_damaged, file) in files {
        let records = match logs::read(&file) {
            Ok(records) => records,
            // Moved away by somebody who has just seen to it.
            Err(why) if why.kind() == ErrorKind::NotFound => continue,
            Err(why) => return Err(why),
        };
        match kept.last_mut() {
            Some(last) if !is_damaged => last.bytes += records.bytes,
            _ => {
                let offset = records.stop.map_or(records.length, |stop| stop.offset);
                kept.push(LostLog { file, offset, bytes: records.behind });
            }
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::super::records::{Records, Stop};
    use super::*;

    fn log(number: u64, bytes: u64, stop: Option<(u64, u64)>, predecessor: Option<(u64, u64)>) -> Log {
        let (stop, behind) = match stop {
            Some((offset, behind)) => (Some(Stop { offset, is_hole: false }), behind),
            None => (None, 0),
        };
        let mut records = Records::default();
        (records.stop, records.bytes, records.behind) = (stop, bytes, behind);
        (records.length, records.predecessor) = (1000, predecessor);
        Log { file: format!("{number:06}.log").into(), number, records }
    }

    /// File, offset, bytes, and how many logs are to be kept.
    fn judged(logs: &[Log], oldest: u64) -> Option<(String, u64, u64, usize)> {
        let lost = judge(logs, oldest)?;
        let LostLog { file, offset, bytes } = lost.told;
        Some((file.display().to_string(), offset, bytes, lost.logs.len()))
    }

    #[test]
    fn what_is_lost_lies_behind_the_first_damage_in_logs_that_are_needed() {
        let whole = || log(3, 900, None, None);
        assert_eq!(judged(&[], 0), None);
        assert_eq!(judged(&[whole()], 0), None);
        assert_eq!(judged(&[whole(), log(5, 300, Some((400, 0)), Some((3, 1000)))], 0), None, "torn");
        let damaged = || log(5, 300, Some((400, 70)), Some((3, 1000)));
        assert_eq!(judged(&[whole(), damaged()], 0), Some(("000005.log".into(), 400, 70, 1)));
        let two = [whole(), damaged(), log(8, 30, Some((7, 20)), None)];
        assert_eq!(judged(&two, 0), Some(("000005.log".into(), 400, 100, 2)));
        assert_eq!(judged(&two, 6), Some(("000008.log".into(), 7, 20, 1)), "the older ones are not read any more");
        let torn_before = [log(3, 900, Some((950, 0)), None), log(5, 40, None, None)];
        assert_eq!(judged(&torn_before, 0), Some(("000003.log".into(), 950, 40, 2)));
    }

    #[test]
    fn a_log_of_another_length_than_the_next_one_knows_has_lost_its_end_or_hides_the_next_one() {
        let next = |number, size| [log(3, 900, None, None), log(5, 40, None, Some((number, size)))];
        assert_eq!(judged(&next(3, 1000), 0), None);
        for size in [999, 1001] {
            assert_eq!(judged(&next(3, size), 0), Some(("000003.log".into(), 1000, 40, 2)));
        }
        assert_eq!(judged(&next(2, 2000), 0), None, "another one");
    }
}
