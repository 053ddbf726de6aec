//! The last log but one loses its end, at every record border behind its last sync, and the last one is whole.
//!
//! RocksDB switches to a new log without syncing the old one, so a power cut can leave exactly this. Replaying the new log
//! over the hole would bring back later commits without earlier ones. What is recovered must be a prefix, with everything
//! that was synced in it; or the store says that it is damaged.
//!
//! What is not read is kept: the newer log whole, too.
//!
//! The same with room left behind the older log's records, as if nobody had come to close it: what is room is not lost.
//!
//! One client commits numbered rows, one after the other. So a prefix is the rows up to some number.

use std::fs;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};

use percolite::{CommitProtocol, Durability, Error, ErrorKind, Store};

use super::Case;
use crate::dice::Dice;
use crate::interrupt;
use crate::keys::{shown, stored};
use crate::order::{Order, copy_folder, keep, scratch};
use crate::outcome::Outcome;
use crate::violation::Broken;

const BLOCK: usize = 32 << 10;
const HEADER: usize = 7;
/// A record that ends here: whole, or the last part of one.
const ENDS: [u8; 2] = [1, 4];
/// After so many rows there is a sync; the log is switched after about forty.
const SYNCS: [u64; 2] = [12, 20];
/// Rows behind the switch.
const BEHIND: u64 = 10;
/// Zeros behind the records.
const ROOM_BYTES: usize = 100_000;
/// Without a second log after so many rows there will be none.
const ROWS_MAX: u64 = 2000;

/// Cuts the log that a seed makes.
pub fn run_log(order: &Order, seed: u64, outcome: &mut Outcome) {
    let case = Case::Log(seed).to_string();
    let broken = match image(seed) {
        Ok(image) => {
            let broken = sweep(&image, outcome);
            // In a whole run the cases are the cuts of real disks.
            outcome.cases += u64::from(order.case.is_some());
            if broken.is_empty() {
                return;
            }
            outcome.failures.push(keep(order, &case, image.folder.path(), None, broken));
            return;
        }
        Err(why) => vec![Broken::new("harness", why.to_string())],
    };
    outcome.failures.push(crate::outcome::Failure { replay: order.replay(&case), broken, kept: None });
}

/// A store with two logs, as a power cut right after the switch can leave it.
struct Image {
    folder: tempfile::TempDir,
    older: PathBuf,
    newer: PathBuf,
    /// Rows, and how many of them were synced.
    rows: u64,
    synced: u64,
    /// Where the older log may have lost its end.
    borders: Vec<usize>,
}

fn image(seed: u64) -> anyhow::Result<Image> {
    let mut dice = Dice::new(seed);
    let protocol = if seed.is_multiple_of(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
    let place = scratch()?;
    let store = builder().protocol(protocol).open(place.path())?;
    let rows = store.keyspace("rows")?;
    // The table that the switch is for is not written yet in this image: when it is, the log has been synced.
    let folder = scratch()?;
    copy_folder(place.path(), folder.path())?;
    let newest = || logs(place.path())?.pop().ok_or_else(|| anyhow::anyhow!("no log"));
    // Held open: RocksDB's own threads remove the log once the table is written, which may be soon.
    let older = newest()?;
    let mut held = fs::File::open(place.path().join(&older))?;
    let (mut written, mut synced, mut length) = (0, 0, 0);
    let write = |number: u64, long: usize| {
        // Long values fill a column of their own, whose table is written then; that is what begins a new log.
        store.transact(|txn| {
            txn.put(&rows, "filler", vec![b'f'; long])?;
            txn.put(&rows, key(number), number.to_string())
        })
    };
    while newest()? == older {
        anyhow::ensure!(written < ROWS_MAX, "{written} rows and no second log");
        if SYNCS.contains(&written) {
            store.sync()?;
            (synced, length) = (written, written_in(&mut held)?);
        }
        write(written, (20 << 10) + dice.below(10 << 10))?;
        written += 1;
    }
    for _ in 0..BEHIND {
        write(written, 400)?;
        written += 1;
    }
    let newer = newest()?;
    fs::copy(place.path().join(&newer), folder.path().join(&newer))?;
    let mut cells = Vec::new();
    held.rewind()?;
    held.read_to_end(&mut cells)?;
    fs::write(folder.path().join(&older), &cells)?;
    drop(store);
    anyhow::ensure!(fs::metadata(folder.path().join(&newer))?.len() > 1000, "the newer log is empty");
    let borders = record_borders(&cells);
    let borders: Vec<usize> = borders.into_iter().filter(|border| *border >= length).collect();
    anyhow::ensure!(borders.len() > 1, "the older log has no record behind its last sync at {length}");
    Ok(Image { older, newer, folder, rows: written, synced, borders })
}

fn sweep(image: &Image, outcome: &mut Outcome) -> Vec<Broken> {
    let mut broken = Vec::new();
    let (mut prefixes, mut refusals) = (0, 0);
    let whole = image.borders.last().copied().unwrap_or_default();
    let cuts = image.borders.iter().flat_map(|border| [(border, 0), (border, ROOM_BYTES)]);
    for (border, room) in cuts {
        if interrupt::came() {
            break;
        }
        match rows_after(image, *border, room) {
            Ok(Ok(found)) if found < image.synced => {
                broken.push(Broken::new(
                    "I2 acknowledged is durable",
                    format!("{found} of {} synced rows", image.synced),
                ));
            }
            Ok(Ok(found)) if *border == whole && found < image.rows => {
                broken
                    .push(Broken::new("I2 acknowledged is durable", format!("nothing cut: {found} of {}", image.rows)));
            }
            Ok(Ok(found)) if *border < whole && found == image.rows => {
                broken.push(Broken::new("harness", format!("cut at {border} and nothing lost")));
            }
            Ok(Ok(found)) => {
                prefixes += 1;
                outcome.lost += image.rows - found;
            }
            Ok(Err(left)) => {
                let (promise, how) = match left {
                    Left::Hole(how) => ("I2 a prefix survives", how),
                    Left::NotKept(how) => ("what is not read is kept", how),
                };
                broken.push(Broken::new(promise, format!("cut at {border} of {}: {how}", image.older.display())));
            }
            Err(why) if matches!(why.kind(), ErrorKind::Corruption(_)) && *border != whole => refusals += 1,
            Err(why) => broken.push(Broken::new("opens again", format!("cut at {border}: {why}"))),
        }
    }
    outcome.acknowledged += image.synced;
    outcome.transactions += image.rows;
    outcome.count("cut logs: prefixes", prefixes);
    outcome.count("cut logs: refusals", refusals);
    broken
}

/// What is wrong with a store that has opened.
enum Left {
    /// A row is missing before another.
    Hole(String),
    /// A log of which nothing is read is gone.
    NotKept(String),
}

/// Opens a copy in which the older log ends early, but for so many zeros: how many rows there are, or what is wrong.
fn rows_after(image: &Image, length: usize, room: usize) -> Result<Result<u64, Left>, Error> {
    let harness = |why: std::io::Error| Error::from(ErrorKind::Io(format!("harness: {why}")));
    let copy = scratch().map_err(harness)?;
    copy_folder(image.folder.path(), copy.path()).map_err(harness)?;
    cut(&copy.path().join(&image.older), length).map_err(harness)?;
    cut(&copy.path().join(&image.older), length + room).map_err(harness)?;
    let store = builder().open(copy.path())?;
    let rows = store.keyspace("rows")?;
    let snapshot = store.snapshot()?;
    let mut found = 0;
    for row in snapshot.prefix(&rows, "k") {
        let (there, value) = row?;
        if there != key(found) || value != found.to_string().into_bytes() {
            return Ok(Err(Left::Hole(format!("{} stands where row {found} should", shown(&there)))));
        }
        found += 1;
    }
    if found < image.rows && !is_kept(image, copy.path()).map_err(harness)? {
        let how = format!("nothing is read of {}, and no copy of it is kept", image.newer.display());
        return Ok(Err(Left::NotKept(how)));
    }
    Ok(Ok(found))
}

/// Whether each record of the newer log is kept, though none is read. Room after the records is cut off before it is kept.
fn is_kept(image: &Image, folder: &Path) -> std::io::Result<bool> {
    let mut was = fs::read(image.folder.path().join(&image.newer))?;
    was.truncate(written(&was));
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|ext| ext == "kept") && fs::read(&file)? == was {
            return Ok(true);
        }
    }
    Ok(false)
}

fn key(number: u64) -> Vec<u8> {
    stored(&format!("k{number:06}"))
}

/// Cuts a file, or makes it longer, with zeros.
pub fn cut(file: &Path, length: usize) -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).open(file)?.set_len(length as u64)
}

fn builder() -> percolite::Builder {
    Store::builder()
        .durability(Durability::Buffered)
        .write_buffer_bytes(4 << 20)
        .cache_bytes(1 << 20)
        .conflict_slots(64)
}

/// Names of the log files, oldest first.
pub fn logs(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let names = fs::read_dir(folder)?.map(|entry| entry.map(|entry| PathBuf::from(entry.file_name())));
    let mut logs = names.collect::<Result<Vec<_>, _>>()?;
    logs.retain(|name| name.extension().is_some_and(|ext| ext == "log"));
    logs.sort();
    Ok(logs)
}

fn written_in(log: &mut fs::File) -> std::io::Result<usize> {
    let mut bytes = Vec::new();
    log.rewind()?;
    log.read_to_end(&mut bytes)?;
    Ok(written(&bytes))
}

/// How long a log is without room behind its records.
pub fn written(log: &[u8]) -> usize {
    record_borders(log).last().copied().unwrap_or_default()
}

/// Where a record ends: checksum (4 bytes), length (2), type (1), then the content; blocks are filled with zeros.
fn record_borders(log: &[u8]) -> Vec<usize> {
    let (mut at, mut borders) = (0, Vec::new());
    while at + HEADER <= log.len() {
        let left = BLOCK - at % BLOCK;
        if left < HEADER {
            at += left;
            continue;
        }
        let length = usize::from(u16::from_le_bytes([log[at + 4], log[at + 5]]));
        let sort = log[at + 6];
        if sort == 0 && length == 0 {
            break;
        }
        at += HEADER + length;
        if ENDS.contains(&sort) && at <= log.len() {
            borders.push(at);
        }
    }
    borders
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The control: the same image, opened without being told to look for gaps.
    #[test]
    fn without_the_option_the_same_image_has_a_hole() {
        let image = image(1).unwrap();
        let copy = scratch().unwrap();
        copy_folder(image.folder.path(), copy.path()).unwrap();
        let border = image.borders[image.borders.len() / 2];
        cut(&copy.path().join(&image.older), border).unwrap();
        let mut options = rocksdb::Options::default();
        options.set_wal_recovery_mode(rocksdb::DBRecoveryMode::PointInTime);
        let columns = rocksdb::DB::list_cf(&options, copy.path()).unwrap();
        let db = rocksdb::DB::open_cf(&options, copy.path(), columns).unwrap();
        let mut cells = db.raw_iterator_cf(&db.cf_handle("write").unwrap());
        cells.seek_to_first();
        let mut found = Vec::new();
        while let Some(key) = cells.key() {
            let text = String::from_utf8_lossy(key).into_owned();
            if let Some(at) = text.find("k0") {
                found.push(text[at + 1..at + 7].parse::<u64>().unwrap());
            }
            cells.next();
        }
        assert_eq!(found.last(), Some(&(image.rows - 1)), "the newer log was not replayed");
        assert!((found.len() as u64) < image.rows, "nothing is missing");
    }
}
