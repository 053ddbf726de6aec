//! A log whose second-to-last segment has lost its end or one page, while the last segment is
//! complete. Every frame after the last sync is tried as the place of the damage.
//!
//! The log continues in a new segment without a sync of the old segment, so a power cut can leave
//! this state. Replaying the new segment after the hole would recover later commits without earlier
//! commits. The recovered rows must be a prefix that contains everything synced.
//!
//! If the old segment was synced and the new segment has frames that prove the sync, the same
//! damage is a data loss: the store must refuse to open, and must keep the unread segments when the
//! loss is accepted. [`crate::log_parser`] decides whether there is such a proof. Every damaged log
//! is opened once with frames that prove the sync, and once without.
//!
//! One client commits numbered rows in order, so a prefix is the rows up to some number.

use std::fs;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};

use percolite::{CommitProtocol, Durability, Error, ErrorKind, Store};

use super::Case;
use crate::interrupt;
use crate::key_encoding::{decode_key, encode_key};
use crate::layer_args::{LayerArgs, copy_dir, save_failure, scratch_dir};
use crate::layer_result::LayerResult;
use crate::log_damage::fingerprint;
use crate::log_parser::{self, frames, header, segments, valid_length};
use crate::rng::SeededRng;
use crate::violation::Violation;

/// After these numbers of rows there is a sync. The next segment begins after about forty rows.
const SYNC_AT_ROWS: [u64; 2] = [12, 20];
/// Rows in the new segment.
const ROWS_IN_NEW_SEGMENT: u64 = 10;
/// Zeros after the frames.
const ZEROS_BYTES: usize = 100_000;
/// The unit that a disk writes or loses.
const PAGE_BYTES: usize = 4096;
/// If there is no second segment after this many rows, the case fails.
const ROWS_MAX: u64 = 2000;

/// Checks the damaged logs of a seed.
pub fn run_log(args: &LayerArgs, seed: u64, outcome: &mut LayerResult) {
    let case = Case::Log(seed).to_string();
    let violations = match image(seed) {
        Ok(image) => {
            let violations = check_image(&image, outcome);
            // A run of the layer counts only the power cuts of disks as cases, so a damaged log
            // counts only in a replay.
            outcome.cases += u64::from(args.case.is_some());
            if violations.is_empty() {
                return;
            }
            outcome.failures.push(save_failure(args, &case, image.store_dir.path(), None, violations));
            return;
        }
        Err(error) => vec![Violation::new("harness", error.to_string())],
    };
    outcome.failures.push(crate::layer_result::Failure { replay: args.replay(&case), violations, saved_in: None });
}

/// A store with two segments, as a power cut right after the switch can leave it.
struct Image {
    store_dir: tempfile::TempDir,
    /// The path and the content of both segments.
    older: (PathBuf, Vec<u8>),
    newer: (PathBuf, Vec<u8>),
    /// The newer segment as it would be if the older one had not been synced before: then it does
    /// not prove the last frames of the older one durable.
    unsynced: Vec<u8>,
    /// The number of all rows, and of the synced rows.
    rows: u64,
    synced: u64,
    /// Where the older segment may have lost its end.
    frame_ends: Vec<usize>,
}

/// How the older segment is damaged after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// The file ends after the frame. No power cut leaves a file that is shorter than its header
    /// says: that is a data loss.
    Ends,
    /// Only zeros follow the frame.
    Zeros,
    /// The page after the frame is zero, and later pages are intact.
    Page,
}

fn image(seed: u64) -> anyhow::Result<Image> {
    let mut rng = SeededRng::new(seed);
    let protocol = if seed.is_multiple_of(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
    let dir = scratch_dir()?;
    let store = builder().commit_protocol(protocol).open(dir.path())?;
    let rows = store.keyspace("rows")?;
    let store_dir = scratch_dir()?;
    // The image is copied before any flush, because a flush syncs the log.
    copy_dir(dir.path(), store_dir.path())?;
    let segments_begun = || -> anyhow::Result<Vec<PathBuf>> {
        let files = segments(dir.path())?.into_iter();
        Ok(files.filter(|file| fs::read(file).is_ok_and(|file| header(&file).is_some())).collect())
    };
    let older = segments_begun()?.pop().ok_or_else(|| anyhow::anyhow!("no log"))?;
    // The file is kept open, because the segment is removed when its rows are in the tables.
    let mut older_file = fs::File::open(&older)?;
    let (mut done, mut synced, mut length) = (0, 0, 0);
    let write = |number: u64, long: usize| {
        store.transact(|txn| {
            txn.put(&rows, "filler", vec![b'f'; long])?;
            txn.put(&rows, key(number), number.to_string())
        })
    };
    while segments_begun()?.last().is_none_or(|newest| *newest == older) {
        anyhow::ensure!(done < ROWS_MAX, "{done} rows and no second segment");
        if SYNC_AT_ROWS.contains(&done) {
            store.sync()?;
            (synced, length) = (done, valid_length(&bytes_of(&mut older_file)?));
        }
        write(done, (20 << 10) + rng.below(10 << 10))?;
        done += 1;
    }
    let newer = segments_begun()?.pop().ok_or_else(|| anyhow::anyhow!("no second segment"))?;
    for behind in 1..=ROWS_IN_NEW_SEGMENT {
        // The last row is written after a sync, so its frame proves that all earlier rows are
        // durable.
        if behind == ROWS_IN_NEW_SEGMENT {
            store.sync()?;
        }
        write(done, 400)?;
        done += 1;
    }
    let inside = |file: &Path| file.strip_prefix(dir.path()).map(Path::to_path_buf);
    let newer = (inside(&newer)?, fs::read(&newer)?);
    let older = (inside(&older)?, bytes_of(&mut older_file)?);
    let mut unsynced = newer.1.clone();
    log_parser::cap_durable_sequence(&mut unsynced, header(&newer.1).map_or(0, |header| header.durable));
    let frame_ends: Vec<usize> =
        frames(&older.1).iter().map(log_parser::Frame::end).filter(|frame_end| *frame_end >= length).collect();
    anyhow::ensure!(frame_ends.len() > 1, "the older segment has no frame behind its last sync at {length}");
    anyhow::ensure!(frames(&newer.1).len() as u64 >= ROWS_IN_NEW_SEGMENT, "the newer segment is empty");
    drop(store);
    Ok(Image { older, newer, unsynced, store_dir, rows: done, synced, frame_ends })
}

fn check_image(image: &Image, outcome: &mut LayerResult) -> Vec<Violation> {
    let mut violations = Vec::new();
    let (mut prefixes, mut refusals) = (0, 0);
    for frame_end in &image.frame_ends {
        for damage in [Damage::Ends, Damage::Zeros, Damage::Page] {
            for newer in [&image.unsynced, &image.newer.1] {
                if interrupt::is_requested() {
                    return violations;
                }
                let older = damaged(&image.older.1, *frame_end, damage);
                match check_copy(image, &older, newer) {
                    Ok(ImageResult { rows, refused }) => {
                        refusals += u64::from(refused);
                        prefixes += u64::from(!refused);
                        outcome.unsynced_lost += image.rows - rows;
                    }
                    Err(one) => {
                        let file = image.older.0.display();
                        violations.push(Violation {
                            details: format!("{damage:?} at {frame_end} of {file}: {}", one.details),
                            ..one
                        });
                    }
                }
            }
        }
    }
    outcome.acknowledged += image.synced;
    outcome.transactions += image.rows;
    outcome.count("log images recovered as a prefix", prefixes);
    outcome.count("log images refused", refusals);
    violations
}

fn damaged(segment: &[u8], frame_end: usize, damage: Damage) -> Vec<u8> {
    let mut segment = segment.to_vec();
    match damage {
        Damage::Ends => segment.truncate(frame_end),
        Damage::Zeros => {
            segment.truncate(frame_end);
            segment.resize(frame_end + ZEROS_BYTES, 0);
        }
        Damage::Page => {
            let end = segment.len().min(frame_end + PAGE_BYTES);
            segment[frame_end..end].fill(0);
        }
    }
    segment
}

struct ImageResult {
    rows: u64,
    refused: bool,
}

/// Opens a copy with these segments and, if it is refused, again with the loss accepted.
fn check_copy(image: &Image, older: &[u8], newer: &[u8]) -> Result<ImageResult, Violation> {
    let harness = |reason: &str| Violation::new("harness", reason);
    let replayed = log_parser::replay(&[older, newer], None).ok_or_else(|| harness("no header"))?;
    let all = replayed.last == last_of(newer);
    let copy = copied(image, older, newer).map_err(|error| harness(&error.to_string()))?;
    let opened = |accept_loss| rows_in(copy.path(), accept_loss);
    let (found, refused) = match opened(None) {
        Ok(_) if replayed.is_loss() => {
            return Err(Violation::new(
                "a damaged log is detected",
                format!("the store opens without an error: {replayed:?}"),
            ));
        }
        Ok(found) => (found?, false),
        Err(error) => {
            let text = error.to_string();
            let loss = matches!(error.kind(), ErrorKind::Corruption(_)).then(|| fingerprint(&text)).flatten();
            let Some(loss) = loss.filter(|_| replayed.is_loss()) else {
                return Err(Violation::new("the store opens", format!("{text}; {replayed:?}")));
            };
            let accepted =
                opened(Some(loss)).map_err(|error| Violation::new("an accepted loss opens", error.to_string()))?;
            (accepted?, true)
        }
    };
    if found < image.synced || all && found < image.rows {
        return Err(Violation::new("durability", format!("{found} rows, {} were synced", image.synced)));
    }
    if !all && found == image.rows {
        return Err(harness("the image lost nothing"));
    }
    if refused && !is_kept(copy.path(), newer).map_err(|error| harness(&error.to_string()))? {
        let how = format!("{} is not read, and not kept", image.newer.0.display());
        return Err(Violation::new("unread segments are kept", how));
    }
    Ok(ImageResult { rows: found, refused })
}

fn last_of(segment: &[u8]) -> u64 {
    frames(segment).last().map_or(0, |frame| frame.sequence)
}

fn copied(image: &Image, older: &[u8], newer: &[u8]) -> std::io::Result<tempfile::TempDir> {
    let copy = scratch_dir()?;
    copy_dir(image.store_dir.path(), copy.path())?;
    fs::write(copy.path().join(&image.older.0), older)?;
    fs::write(copy.path().join(&image.newer.0), newer)?;
    Ok(copy)
}

/// The number of rows, or what is wrong with them.
fn rows_in(store_dir: &Path, accept_loss: Option<u64>) -> Result<Result<u64, Violation>, Error> {
    let builder = accept_loss.into_iter().fold(builder(), percolite::Builder::accept_data_loss);
    let store = builder.open(store_dir)?;
    let rows = store.keyspace("rows")?;
    let snapshot = store.snapshot()?;
    let mut found = 0;
    for row in snapshot.prefix(&rows, "k") {
        let row = row?;
        if row.key() != key(found) || row.value() != found.to_string().as_bytes() {
            let how = format!("found {} instead of row {found}", decode_key(row.key()));
            return Ok(Err(Violation::new("surviving prefix", how)));
        }
        found += 1;
    }
    Ok(Ok(found))
}

/// Whether the segment is kept under another name.
fn is_kept(store_dir: &Path, segment: &[u8]) -> std::io::Result<bool> {
    for entry in fs::read_dir(store_dir.join("wal"))? {
        let file = entry?.path();
        if !log_parser::is_segment(&file) && fs::read(&file)? == segment {
            return Ok(true);
        }
    }
    Ok(false)
}

fn key(number: u64) -> Vec<u8> {
    encode_key(&format!("k{number:06}"))
}

fn builder() -> percolite::Builder {
    Store::builder()
        .durability(Durability::Buffered)
        .write_buffer_bytes(4 << 20)
        .block_cache_bytes(1 << 20)
        .conflict_set_rows(64)
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

    /// Shows that the damage tests something: the newer segment is valid by itself, so a replay
    /// that does not notice the hole before it would apply it.
    #[test]
    fn the_newer_segment_is_valid_and_hides_the_hole() {
        let hole = |image: &Image| damaged(&image.older.1, image.frame_ends[image.frame_ends.len() / 2], Damage::Ends);
        let replay = |image: &Image| log_parser::replay(&[&hole(image), &image.unsynced], None).unwrap();
        // A slow client leaves the log idle, and an idle log is synced: then the hole is a loss.
        let synced_while_idle = |image: &Image| header(&image.unsynced).unwrap().durable > replay(image).last;
        let mut images = (0..100).map(|_| image(1).unwrap());
        let image = images.find(|image| !synced_while_idle(image)).expect("an image that was written without a pause");
        let (older, replayed) = (hole(&image), replay(&image));
        let behind = frames(&image.unsynced);
        assert!(replayed.last + 1 < behind[0].sequence, "nothing is missing: {replayed:?}");
        assert!(behind.len() as u64 >= ROWS_IN_NEW_SEGMENT);
        assert!(!replayed.is_loss());
        let result = check_copy(&image, &older, &image.unsynced).unwrap();
        assert!(result.rows < image.rows && !result.refused);
    }
}
