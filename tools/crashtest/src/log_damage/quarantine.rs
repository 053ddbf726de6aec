//! What an accepted loss must leave in `wal/`: `lost-F.txt`, which names a segment, and
//! `lost-F-SEGMENT` for this segment and each later one, with the bytes that it had. `F` is the
//! fingerprint of the loss.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::log_parser::is_segment;
use crate::violation::Violation;

const INVARIANT: &str = "unread segments are kept";

/// Checks the quarantined segments of a store whose log was `before`.
pub fn check(store_dir: &Path, fingerprint: u64, before: &[(PathBuf, Vec<u8>)]) -> Result<(), Violation> {
    let text = fs::read_to_string(store_dir.join(loss_file(fingerprint)));
    let quarantined = text.and_then(|text| Ok((text, quarantined(store_dir, fingerprint)?)));
    let (text, quarantined) = quarantined.map_err(|error| Violation::new(INVARIANT, error.to_string()))?;
    let named = text.split(' ').nth(1).unwrap_or_default();
    let first = quarantined.keys().next().map_or(named, String::as_str);
    for (path, content) in before {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !is_segment(path) || *name < *named.min(first) {
            continue;
        }
        let what = match quarantined.get(&*name) {
            Some(kept) if kept == content => continue,
            Some(kept) => format!("{} bytes of {name} are kept, which had {}", kept.len(), content.len()),
            None => format!("{name} is not kept, but {:?}", quarantined.keys()),
        };
        return Err(Violation::new(INVARIANT, what));
    }
    Ok(())
}

/// What an acceptance leaves that is interrupted while it copies the first segment.
pub struct Interrupted(Vec<(PathBuf, Vec<u8>)>);

/// What an interrupted acceptance leaves, from a store in which an acceptance was completed.
pub fn interrupted(store_dir: &Path, fingerprint: u64) -> io::Result<Interrupted> {
    let loss_file = loss_file(fingerprint);
    let mut files = vec![(loss_file.clone(), fs::read(store_dir.join(loss_file))?)];
    if let Some((segment, mut content)) = quarantined(store_dir, fingerprint)?.pop_first() {
        content.truncate(content.len() / 2);
        files.push((Path::new("wal").join(prefix(fingerprint) + &segment), content));
    }
    Ok(Interrupted(files))
}

impl Interrupted {
    /// Adds the files to a store.
    pub fn write(&self, store_dir: &Path) -> io::Result<()> {
        self.0.iter().try_for_each(|(path, content)| fs::write(store_dir.join(path), content))
    }
}

fn loss_file(fingerprint: u64) -> PathBuf {
    PathBuf::from(format!("wal/lost-{fingerprint:016x}.txt"))
}

fn prefix(fingerprint: u64) -> String {
    format!("lost-{fingerprint:016x}-")
}

/// The quarantined segments by the names that they had.
fn quarantined(store_dir: &Path, fingerprint: u64) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(store_dir.join("wal"))? {
        let entry = entry?;
        if let Some(segment) = entry.file_name().to_string_lossy().strip_prefix(&prefix(fingerprint)) {
            found.insert(segment.to_owned(), fs::read(entry.path())?);
        }
    }
    Ok(found)
}
