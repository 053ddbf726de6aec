//! The last segment but one of the log loses its end, at every frame behind its last sync, or a page there, and the last segment
//! is whole.
//!
//! The log goes on in a new segment without waiting for a sync of the old one, so a power cut can leave exactly this. Replaying
//! the new segment over the hole would bring back later commits without earlier ones. What is recovered must be a prefix,
//! with everything that was synced in it. If the old segment was synced after all, and the new one has frames that say so, the
//! same image is one of damage: the store must refuse to open, and where the loss is accepted it must keep what it does not read.
//! Which of the two it is, [`crate::segments`] says; every image is made in both ways.
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
use crate::segments::{self, frames, header, segments, written};
use crate::violation::Broken;
use crate::walsweep::fingerprint;

/// After so many rows there is a sync; the next segment begins after about forty.
const SYNCS: [u64; 2] = [12, 20];
/// Rows in the new segment.
const BEHIND: u64 = 10;
/// Zeros behind the frames.
const ZEROS_BYTES: usize = 100_000;
/// What a disk writes or loses as a whole.
const PAGE_BYTES: usize = 4096;
/// Without a second segment after so many rows there will be none.
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

/// A store with two segments, as a power cut right after the change can leave it.
struct Image {
    folder: tempfile::TempDir,
    /// Names in the folder, and what is in the files.
    older: (PathBuf, Vec<u8>),
    newer: (PathBuf, Vec<u8>),
    /// The newer one, all of it written before the older one was synced.
    unsynced: Vec<u8>,
    /// Rows, and how many of them were synced.
    rows: u64,
    synced: u64,
    /// Where the older segment may have lost its end.
    borders: Vec<usize>,
}

/// How the older segment is damaged, behind a border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// The file ends there.
    Ends,
    /// Only zeros follow.
    Zeros,
    /// The page at the border has zeros, and what follows is there.
    Page,
}

fn image(seed: u64) -> anyhow::Result<Image> {
    let mut dice = Dice::new(seed);
    let protocol = if seed.is_multiple_of(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
    let place = scratch()?;
    let store = builder().commit_protocol(protocol).open(place.path())?;
    let rows = store.keyspace("rows")?;
    // Nothing is in tables yet in this image: when it is, the log has been synced.
    let folder = scratch()?;
    copy_folder(place.path(), folder.path())?;
    let begun = || -> anyhow::Result<Vec<PathBuf>> {
        let files = segments(place.path())?.into_iter();
        Ok(files.filter(|file| fs::read(file).is_ok_and(|file| header(&file).is_some())).collect())
    };
    // Held open: the segment is removed once its rows are in tables, which may be soon.
    let older = begun()?.pop().ok_or_else(|| anyhow::anyhow!("no log"))?;
    let mut held = fs::File::open(&older)?;
    let (mut done, mut synced, mut length) = (0, 0, 0);
    let write = |number: u64, long: usize| {
        store.transact(|txn| {
            txn.put(&rows, "filler", vec![b'f'; long])?;
            txn.put(&rows, key(number), number.to_string())
        })
    };
    while begun()?.last().is_none_or(|newest| *newest == older) {
        anyhow::ensure!(done < ROWS_MAX, "{done} rows and no second segment");
        if SYNCS.contains(&done) {
            store.sync()?;
            (synced, length) = (done, written(&bytes_of(&mut held)?));
        }
        write(done, (20 << 10) + dice.below(10 << 10))?;
        done += 1;
    }
    let newer = begun()?.pop().ok_or_else(|| anyhow::anyhow!("no second segment"))?;
    for behind in 1..=BEHIND {
        // The last one tells that all before it are durable.
        if behind == BEHIND {
            store.sync()?;
        }
        write(done, 400)?;
        done += 1;
    }
    let inside = |file: &Path| file.strip_prefix(place.path()).map(Path::to_path_buf);
    let newer = (inside(&newer)?, fs::read(&newer)?);
    let older = (inside(&older)?, bytes_of(&mut held)?);
    let mut unsynced = newer.1.clone();
    segments::witness_no_more_than(&mut unsynced, header(&newer.1).map_or(0, |header| header.durable));
    let borders: Vec<usize> =
        frames(&older.1).iter().map(segments::Frame::end).filter(|border| *border >= length).collect();
    anyhow::ensure!(borders.len() > 1, "the older segment has no frame behind its last sync at {length}");
    anyhow::ensure!(frames(&newer.1).len() as u64 >= BEHIND, "the newer segment is empty");
    drop(store);
    Ok(Image { older, newer, unsynced, folder, rows: done, synced, borders })
}

fn sweep(image: &Image, outcome: &mut Outcome) -> Vec<Broken> {
    let mut broken = Vec::new();
    let (mut prefixes, mut refusals) = (0, 0);
    for border in &image.borders {
        for damage in [Damage::Ends, Damage::Zeros, Damage::Page] {
            for newer in [&image.unsynced, &image.newer.1] {
                if interrupt::came() {
                    return broken;
                }
                let older = damaged(&image.older.1, *border, damage);
                match judge(image, &older, newer) {
                    Ok(Judged { rows, refused }) => {
                        refusals += u64::from(refused);
                        prefixes += u64::from(!refused);
                        outcome.lost += image.rows - rows;
                    }
                    Err(one) => {
                        let file = image.older.0.display();
                        broken.push(Broken { how: format!("{damage:?} at {border} of {file}: {}", one.how), ..one });
                    }
                }
            }
        }
    }
    outcome.acknowledged += image.synced;
    outcome.transactions += image.rows;
    outcome.count("cut logs: prefixes", prefixes);
    outcome.count("cut logs: refusals", refusals);
    broken
}

fn damaged(segment: &[u8], border: usize, damage: Damage) -> Vec<u8> {
    let mut segment = segment.to_vec();
    match damage {
        Damage::Ends => segment.truncate(border),
        Damage::Zeros => {
            segment.truncate(border);
            segment.resize(border + ZEROS_BYTES, 0);
        }
        Damage::Page => {
            let end = segment.len().min(border + PAGE_BYTES);
            segment[border..end].fill(0);
        }
    }
    segment
}

struct Judged {
    rows: u64,
    refused: bool,
}

/// Opens a copy with these segments, as they are and, if it is refused, without what is lost.
fn judge(image: &Image, older: &[u8], newer: &[u8]) -> Result<Judged, Broken> {
    let harness = |why: &str| Broken::new("harness", why);
    let reading = segments::read(&[older, newer]).ok_or_else(|| harness("no header"))?;
    let all = reading.last == last_of(newer);
    let copy = copied(image, older, newer).map_err(|why| harness(&why.to_string()))?;
    let opened = |accepts| rows_in(copy.path(), accepts);
    let (found, refused) = match opened(None) {
        Ok(_) if reading.is_loss() => {
            return Err(Broken::new("tells of a damaged log", format!("it opens without a word: {reading:?}")));
        }
        Ok(found) => (found?, false),
        Err(why) => {
            let text = why.to_string();
            let loss = matches!(why.kind(), ErrorKind::Corruption(_)).then(|| fingerprint(&text)).flatten();
            let Some(loss) = loss.filter(|_| reading.is_loss()) else {
                return Err(Broken::new("opens again", format!("{text}; {reading:?}")));
            };
            let accepted = opened(Some(loss)).map_err(|why| Broken::new("an accepted loss opens", why.to_string()))?;
            (accepted?, true)
        }
    };
    if found < image.synced || all && found < image.rows {
        return Err(Broken::new("I2 acknowledged is durable", format!("{found} rows, {} were synced", image.synced)));
    }
    if !all && found == image.rows {
        return Err(harness("nothing is lost"));
    }
    if refused && !is_kept(copy.path(), newer).map_err(|why| harness(&why.to_string()))? {
        let how = format!("nothing is read of {}, and it is not kept", image.newer.0.display());
        return Err(Broken::new("what is not read is kept", how));
    }
    Ok(Judged { rows: found, refused })
}

fn last_of(segment: &[u8]) -> u64 {
    frames(segment).last().map_or(0, |frame| frame.sequence)
}

fn copied(image: &Image, older: &[u8], newer: &[u8]) -> std::io::Result<tempfile::TempDir> {
    let copy = scratch()?;
    copy_folder(image.folder.path(), copy.path())?;
    fs::write(copy.path().join(&image.older.0), older)?;
    fs::write(copy.path().join(&image.newer.0), newer)?;
    Ok(copy)
}

/// How many rows there are, or what is wrong with them.
fn rows_in(folder: &Path, accepts: Option<u64>) -> Result<Result<u64, Broken>, Error> {
    let builder = accepts.into_iter().fold(builder(), percolite::Builder::accept_data_loss);
    let store = builder.open(folder)?;
    let rows = store.keyspace("rows")?;
    let snapshot = store.snapshot()?;
    let mut found = 0;
    for row in snapshot.prefix(&rows, "k") {
        let (there, value) = row?;
        if there != key(found) || value != found.to_string().into_bytes() {
            let how = format!("{} stands where row {found} should", shown(&there));
            return Ok(Err(Broken::new("I2 a prefix survives", how)));
        }
        found += 1;
    }
    Ok(Ok(found))
}

/// Whether the segment is kept under another name.
fn is_kept(folder: &Path, segment: &[u8]) -> std::io::Result<bool> {
    for entry in fs::read_dir(folder.join("log"))? {
        let file = entry?.path();
        if !segments::is_segment(&file) && fs::read(&file)? == segment {
            return Ok(true);
        }
    }
    Ok(false)
}

fn key(number: u64) -> Vec<u8> {
    stored(&format!("k{number:06}"))
}

fn builder() -> percolite::Builder {
    Store::builder()
        .durability(Durability::Buffered)
        .write_buffer_bytes(4 << 20)
        .block_cache_bytes(1 << 20)
        .conflict_cache_rows(64)
}

fn bytes_of(file: &mut fs::File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The control: a reader that looks at each frame by itself would replay the newer segment over the hole.
    #[test]
    fn the_newer_segment_is_whole_and_nothing_in_it_tells_of_the_hole() {
        let image = image(1).unwrap();
        let older = damaged(&image.older.1, image.borders[image.borders.len() / 2], Damage::Ends);
        let reading = segments::read(&[&older, &image.unsynced]).unwrap();
        let behind = frames(&image.unsynced);
        assert!(reading.last + 1 < behind[0].sequence, "nothing is missing: {reading:?}");
        assert!(behind.len() as u64 >= BEHIND);
        assert!(!reading.is_loss());
        let judged = judge(&image, &older, &image.unsynced).unwrap();
        assert!(judged.rows < image.rows && !judged.refused);
    }
}
