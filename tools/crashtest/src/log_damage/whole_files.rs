//! A log of three segments and a spare one, of which a whole file is not what it was: cut off,
//! missing, renamed, swapped with its neighbour, or replaced by its neighbour, by a spare segment
//! or by an older copy of itself.
//!
//! One client commits numbered rows, each of them durable, so what is left must be the rows up to
//! some number. The store must have all rows, or refuse to open. If the process ended while it was
//! busy, the end of the newest segment has no proof yet. Then an older copy, or a cut beyond the
//! first preallocated step, may lose rows silently; no other damage may, and in a closed store none
//! may.
//!
//! Each copy is opened twice, and the second opening must have the same result. A refused one is
//! also opened read-only, with the same loss, and then with the loss accepted, and once more.
//!
//! Tables are of the time before the first flush, so that all three segments are needed.

use std::fs;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use percolite::{Builder, Durability, Error, ErrorKind, Keyspace, Store};

use super::damage::{Damage, SEGMENTS};
use super::{LAYER, fingerprint, quarantine};
use crate::key_encoding::encode_key;
use crate::layer_args::{LayerArgs, RunClock, copy_dir, save_failure, scratch_dir};
use crate::layer_result::LayerResult;
use crate::log_parser::{SYNC_RECORD, header, segments, sync_record, valid_length};
use crate::rng::SeededRng;
use crate::violation::Violation;

/// The prefix of a case's place.
const FILES: &str = "files-";
/// Rows in the newest segment. Their frames need two preallocated steps.
const NEWEST_ROWS: u64 = 12;
const FILLER_BYTES: usize = 12_000;
const SMALL_FILLER_BYTES: usize = 600;
/// If there are too few segments after this many rows, the case fails.
const ROWS_MAX: u64 = 2000;
/// A flush has recorded the new segment within this time.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);
/// Of the lengths, a full run tries one in this many, a quick run this many in all.
const LENGTH_STEP: usize = 5;
const QUICK_LENGTHS: usize = 24;
/// Damaged copies.
const COPIES: &str = "whole files damaged";
const REFUSED: &str = "whole files damaged and refused";
/// Damaged copies that lost rows, without an error, in a way that cannot be detected.
const UNDETECTABLE: &str = "whole files damaged without a proof";

/// What the process had done last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// As `Busy`, and there is no sync record: only the files of the log prove something.
    Unrecorded,
    /// It had acknowledged the last row.
    Busy,
    /// It had closed the store.
    Closed,
}

/// A store as files. The newest segment is the last.
struct Image {
    /// All but the log.
    store_dir: tempfile::TempDir,
    segments: Vec<(PathBuf, Vec<u8>)>,
    spare: (PathBuf, Vec<u8>),
    /// The sync record while the store was busy, and when it was closed.
    busy_record: Vec<u8>,
    closed_record: Vec<u8>,
    /// The newest segment after each of its rows but the last.
    older_copies: Vec<Vec<u8>>,
    /// The length that is durable before anything is written to the newest segment.
    durable_bytes: usize,
    rows: u64,
}

/// Whether the text names a case of this module.
pub fn is_case(text: &str) -> bool {
    text.strip_prefix(LAYER).and_then(|rest| rest.strip_prefix(':')).is_some_and(|rest| rest.starts_with(FILES))
}

/// Runs one case.
///
/// # Errors
/// An invalid case, and errors of the harness.
pub fn run_case(args: &LayerArgs, case: &str, outcome: &mut LayerResult) -> anyhow::Result<()> {
    let read = || {
        let (seed, rest) = case.strip_prefix(LAYER)?.strip_prefix(':')?.strip_prefix(FILES)?.split_once('/')?;
        let (state, damage) = rest.split_once('.')?;
        let state = match state {
            "unrecorded" => State::Unrecorded,
            "busy" => State::Busy,
            "closed" => State::Closed,
            _ => return None,
        };
        Some((seed.parse().ok()?, state, Damage::parse(damage)?))
    };
    let (seed, state, damage) =
        read().ok_or_else(|| anyhow::anyhow!("invalid case {case:?}; expected {LAYER}:{FILES}SEED/STATE.DAMAGE"))?;
    check(args, &image(seed)?, seed, state, damage, outcome)
}

/// Tries all damages to the store of a seed.
///
/// # Errors
/// Errors of the harness.
pub fn run(args: &LayerArgs, seed: u64, clock: RunClock, outcome: &mut LayerResult) -> anyhow::Result<()> {
    let image = image(seed)?;
    for state in [State::Unrecorded, State::Busy, State::Closed] {
        for damage in damages(&image, args.quick || args.time.is_some(), seed) {
            if args.time.is_some() && !clock.allows(0, 0) || args.should_stop(outcome) {
                return Ok(());
            }
            check(args, &image, seed, state, damage, outcome)?;
        }
    }
    Ok(())
}

fn damages(image: &Image, is_quick: bool, seed: u64) -> Vec<Damage> {
    let mut rng = SeededRng::new(seed);
    let mut damages = vec![Damage::None];
    for segment in 0..SEGMENTS {
        damages.extend([
            Damage::Missing(segment),
            Damage::Gone(segment),
            Damage::Next(segment),
            Damage::Away(segment),
            Damage::Spare(segment),
            Damage::Headers(segment),
        ]);
        if segment + 1 < SEGMENTS {
            damages.extend([Damage::Swapped(segment), Damage::Before(segment)]);
        }
        let length = image.newest_first(segment).1.len();
        let lengths: Vec<usize> = if is_quick || segment > 0 {
            let some = (0..QUICK_LENGTHS).map(|_| rng.below(length));
            [0, 127, 128, 8192, image.durable_bytes - 1, image.durable_bytes].into_iter().chain(some).collect()
        } else {
            (rng.below(LENGTH_STEP)..length).step_by(LENGTH_STEP).collect()
        };
        damages.extend(lengths.into_iter().map(|length| Damage::Cut(segment, length)));
    }
    damages.extend((0..image.older_copies.len()).map(Damage::Older));
    damages
}

impl Image {
    fn newest_first(&self, segment: usize) -> &(PathBuf, Vec<u8>) {
        &self.segments[SEGMENTS - 1 - segment]
    }

    /// The files of the log after a damage.
    fn log(&self, state: State, damage: Damage) -> Vec<(PathBuf, Vec<u8>)> {
        let record = match state {
            State::Unrecorded => None,
            State::Busy => Some(&self.busy_record),
            State::Closed => Some(&self.closed_record),
        };
        let mut files = self.segments.clone();
        files.push(self.spare.clone());
        let spare = &self.spare.1;
        let at = |segment: usize| SEGMENTS - 1 - segment;
        match damage {
            Damage::None => {}
            Damage::Cut(segment, length) => files[at(segment)].1.truncate(length),
            Damage::Missing(segment) => drop(files.remove(at(segment))),
            Damage::Gone(segment) => files.truncate(at(segment)),
            Damage::Next(segment) => {
                let (_, content) = files.remove(at(segment));
                files[at(segment)].1 = content;
            }
            Damage::Away(segment) => _ = files[at(segment)].0.set_extension("old"),
            Damage::Swapped(segment) => {
                let before = std::mem::take(&mut files[at(segment) - 1].1);
                files[at(segment) - 1].1 = std::mem::replace(&mut files[at(segment)].1, before);
            }
            Damage::Before(segment) => files[at(segment)].1.clone_from(&self.segments[at(segment) - 1].1),
            Damage::Spare(segment) => files[at(segment)].1.clone_from(spare),
            Damage::Headers(segment) => [30, 4096 + 30].iter().for_each(|byte| files[at(segment)].1[*byte] ^= 1),
            Damage::Older(copy) => files[at(0)].1.clone_from(&self.older_copies[copy]),
        }
        files.extend(record.map(|record| (SYNC_RECORD.into(), record.clone())));
        files
    }

    /// Writes the store into a directory, with this log, in place of what is there.
    fn write(&self, dir: &Path, log: &[(PathBuf, Vec<u8>)]) -> std::io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        copy_dir(self.store_dir.path(), dir)?;
        log.iter().try_for_each(|(name, content)| fs::write(dir.join(name), content))
    }

    /// Whether the damage leaves what a crash can leave, too, so that a loss cannot be detected.
    fn is_undetectable(&self, state: State, damage: Damage) -> bool {
        let has_no_proof = match damage {
            Damage::Older(_) => true,
            Damage::Cut(0, length) => length >= self.durable_bytes,
            // As before the newest segment was used, or existed.
            Damage::Spare(0) | Damage::Headers(0) | Damage::Gone(_) => state == State::Unrecorded,
            _ => false,
        };
        state != State::Closed && has_no_proof
    }
}

/// Builds the store of a seed.
fn image(seed: u64) -> anyhow::Result<Image> {
    let mut rng = SeededRng::new(seed);
    let dir = scratch_dir()?;
    let store = builder().open(dir.path())?;
    let keyspace = store.keyspace("rows")?;
    let store_dir = scratch_dir()?;
    // The tables are copied before any flush, and the log is written by each case.
    copy_dir(dir.path(), store_dir.path())?;
    fs::remove_dir_all(store_dir.path().join("wal"))?;
    fs::create_dir(store_dir.path().join("wal"))?;
    // The files are kept open, because segments are removed when their rows are in the tables.
    let mut open: Vec<(PathBuf, fs::File)> = Vec::new();
    let mut rows = 0;
    let find_new = |open: &mut Vec<(PathBuf, fs::File)>| -> anyhow::Result<()> {
        for file in segments(dir.path())? {
            let name = file.strip_prefix(dir.path())?.to_owned();
            if fs::read(&file).is_ok_and(|file| header(&file).is_some()) && open.iter().all(|(other, _)| *other != name)
            {
                open.push((name, fs::File::open(file)?));
            }
        }
        Ok(())
    };
    find_new(&mut open)?;
    while open.len() < SEGMENTS {
        anyhow::ensure!(rows < ROWS_MAX, "{rows} rows and only {} segments", open.len());
        write(&store, &keyspace, rows, FILLER_BYTES + rng.below(FILLER_BYTES))?;
        rows += 1;
        find_new(&mut open)?;
    }
    anyhow::ensure!(open.len() == SEGMENTS, "{} segments", open.len());
    write(&store, &keyspace, rows, SMALL_FILLER_BYTES)?;
    rows += 1;
    let newest = bytes_of(&mut open[SEGMENTS - 1].1)?;
    let newest = header(&newest).ok_or_else(|| anyhow::anyhow!("the newest segment has no header"))?;
    let busy_record = await_record(dir.path(), newest.number)?;
    let mut older_copies = vec![bytes_of(&mut open[SEGMENTS - 1].1)?];
    for number in 1..NEWEST_ROWS {
        let long = number == NEWEST_ROWS / 2;
        write(&store, &keyspace, rows, if long { FILLER_BYTES } else { SMALL_FILLER_BYTES })?;
        rows += 1;
        older_copies.push(bytes_of(&mut open[SEGMENTS - 1].1)?);
    }
    older_copies.pop();
    store.close()?;
    find_new(&mut open)?;
    anyhow::ensure!(open.len() == SEGMENTS, "{} segments", open.len());
    let mut contents = Vec::new();
    for (name, mut file) in open {
        contents.push((name, bytes_of(&mut file)?));
    }
    let durable_bytes = usize::try_from(newest.durable_bytes)?;
    let last = &contents[SEGMENTS - 1];
    anyhow::ensure!(valid_length(&last.1) > durable_bytes, "the newest segment needs only one step");
    let spare = segments(dir.path())?.pop().ok_or_else(|| anyhow::anyhow!("no log"))?;
    let spare = (spare.strip_prefix(dir.path())?.to_owned(), fs::read(&spare)?);
    anyhow::ensure!(spare.0 > last.0, "no spare segment");
    let closed_record = fs::read(dir.path().join(SYNC_RECORD))?;
    Ok(Image { store_dir, segments: contents, spare, busy_record, closed_record, older_copies, durable_bytes, rows })
}

/// Waits for the sync record of the segment.
fn await_record(store_dir: &Path, segment: u64) -> anyhow::Result<Vec<u8>> {
    let began = Instant::now();
    while sync_record(store_dir).is_none_or(|record| record.segment < segment) {
        anyhow::ensure!(began.elapsed() < RECORD_TIMEOUT, "no sync record of segment {segment}");
        std::thread::sleep(POLL);
    }
    Ok(fs::read(store_dir.join(SYNC_RECORD))?)
}

/// What an opening has found: the number of rows, or the fingerprint of the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Rows(u64),
    Loss(u64),
}

fn check(
    args: &LayerArgs,
    image: &Image,
    seed: u64,
    state: State,
    damage: Damage,
    outcome: &mut LayerResult,
) -> anyhow::Result<()> {
    let copy = scratch_dir()?;
    let log = image.log(state, damage);
    image.write(copy.path(), &log)?;
    outcome.cases += 1;
    outcome.transactions += image.rows;
    outcome.acknowledged += image.rows;
    outcome.count(COPIES, 1);
    let found = check_copy(image, copy.path(), &log);
    let mut violations = Vec::new();
    match found {
        Ok(Found::Rows(rows)) if rows == image.rows => {}
        Ok(Found::Rows(rows)) if rows < image.rows && image.is_undetectable(state, damage) => {
            outcome.count(UNDETECTABLE, 1);
        }
        Ok(Found::Rows(rows)) => {
            let what = format!("the store opens with {rows} of {} acknowledged rows", image.rows);
            violations.push(Violation::new("a damaged log is detected", what));
        }
        Ok(Found::Loss(_)) if damage == Damage::None => {
            violations.push(Violation::new("the store opens", "an undamaged log is refused"));
        }
        Ok(Found::Loss(_)) => outcome.count(REFUSED, 1),
        Err(violation) => violations.push(violation),
    }
    if !violations.is_empty() {
        let state = format!("{state:?}").to_lowercase();
        let case = format!("{LAYER}:{FILES}{seed}/{state}.{damage}");
        outcome.failures.push(save_failure(args, &case, copy.path(), None, violations));
    }
    Ok(())
}

/// Opens a copy twice and, if it is refused, with the loss accepted, too. What the loss affects
/// must be kept then, also if an earlier acceptance was interrupted.
fn check_copy(image: &Image, store_dir: &Path, log: &[(PathBuf, Vec<u8>)]) -> Result<Found, Violation> {
    let first = open(&builder(), store_dir)?;
    let same = |found: Found, how: &str| {
        let what = || Violation::new("idempotent recovery", format!("{first:?} at first, then {found:?} {how}"));
        if found == first { Ok(()) } else { Err(what()) }
    };
    same(open(&builder(), store_dir)?, "at a second opening")?;
    same(open(&builder().read_only(true), store_dir)?, "read-only")?;
    if let Found::Loss(fingerprint) = first {
        let accepted = accept(store_dir, fingerprint, log)?;
        quarantine::check(store_dir, fingerprint, log)?;
        let interrupted = quarantine::interrupted(store_dir, fingerprint).map_err(|error| harness(&error))?;
        image.write(store_dir, log).map_err(|error| harness(&error))?;
        interrupted.write(store_dir).map_err(|error| harness(&error))?;
        same(open(&builder(), store_dir)?, "after an interrupted acceptance")?;
        let again = accept(store_dir, fingerprint, log)?;
        if again != accepted {
            let what = format!("{accepted:?} when the loss is accepted, {again:?} when that was interrupted before");
            return Err(Violation::new("an accepted loss opens", what));
        }
        quarantine::check(store_dir, fingerprint, log)?;
    }
    Ok(first)
}

fn harness(error: &std::io::Error) -> Violation {
    Violation::new("harness", error.to_string())
}

/// Opens a refused copy with the loss accepted, and once more, with the sync record from before the
/// acceptance, as a crash right after it leaves it.
fn accept(store_dir: &Path, fingerprint: u64, log: &[(PathBuf, Vec<u8>)]) -> Result<Found, Violation> {
    let accepted = open(&builder().accept_data_loss(fingerprint), store_dir)?;
    if let Some((_, record)) = log.iter().find(|(name, _)| *name == Path::new(SYNC_RECORD)) {
        fs::write(store_dir.join(SYNC_RECORD), record).map_err(|error| harness(&error))?;
    }
    let again = open(&builder(), store_dir)?;
    if matches!(accepted, Found::Loss(_)) || again != accepted {
        let what = format!("{accepted:?} when the loss is accepted, then {again:?}");
        return Err(Violation::new("an accepted loss opens", what));
    }
    Ok(accepted)
}

/// Opens and closes the store. An error that is no loss with a fingerprint is a violation, and rows
/// that are no prefix.
fn open(builder: &Builder, store_dir: &Path) -> Result<Found, Violation> {
    let refused = |error: Error| {
        let text = error.to_string();
        let loss = matches!(error.kind(), ErrorKind::Corruption(_)).then(|| fingerprint(&text)).flatten();
        loss.map(Found::Loss).ok_or_else(|| Violation::new("the store opens", format!("{:?}: {text}", error.kind())))
    };
    let store = match builder.clone().open(store_dir) {
        Ok(store) => store,
        Err(error) => return refused(error),
    };
    let rows = rows_in(&store).map_err(|error| Violation::new("the store opens", error.to_string()))??;
    store.close().map_err(|error| Violation::new("the store closes", error.to_string()))?;
    Ok(Found::Rows(rows))
}

fn rows_in(store: &Store) -> Result<Result<u64, Violation>, Error> {
    if store.keyspace_names()?.is_empty() {
        return Ok(Ok(0));
    }
    let keyspace = store.existing_keyspace("rows")?;
    let snapshot = store.snapshot()?;
    let mut found = 0;
    for row in snapshot.prefix(&keyspace, "k") {
        if row?.key() != key(found) {
            return Ok(Err(Violation::new("surviving prefix", format!("row {found} is missing before later ones"))));
        }
        found += 1;
    }
    Ok(Ok(found))
}

fn write(store: &Store, keyspace: &Keyspace, number: u64, filler: usize) -> Result<(), Error> {
    store.transact(|txn| txn.put(keyspace, key(number), vec![b'f'; filler]))
}

fn key(number: u64) -> Vec<u8> {
    encode_key(&format!("k{number:06}"))
}

fn builder() -> Builder {
    Store::builder()
        .durability(Durability::Sync)
        .write_buffer_bytes(1 << 20)
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

    #[test]
    fn damages_round_trip() {
        let image = image(1).unwrap();
        let damages = damages(&image, true, 1);
        assert!(damages.len() > 100, "{}", damages.len());
        for damage in damages {
            assert_eq!(Damage::parse(&damage.to_string()), Some(damage));
        }
        assert_eq!(Damage::parse("missing-3"), None);
    }
}
