//! Store directories: copies, and the bytes of their log segments and manifests.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::fs;
use std::path::{Path, PathBuf};

/// Where a segment's frames begin: after its header and a copy of it, each in a block of its own.
pub const FRAMES_AT: usize = 8192;
const HEADER_BYTES: usize = 24;
const ALIGNMENT: usize = 8;

pub fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy_directory(&from, &to);
            continue;
        }
        match fs::copy(&from, &to) {
            // If the store is open, it may delete a table or segment before it is copied.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            copied => drop(copied.unwrap()),
        }
    }
}

/// All files of a directory, recursively, whose names contain `part`, in order.
pub fn files(directory: &Path, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, part));
        } else if path.file_name().unwrap().to_string_lossy().contains(part) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// All files with their content.
pub fn state(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    files(directory, "").into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

/// The segments of the log, oldest first.
pub fn segments(store: &Path) -> Vec<PathBuf> {
    let mut found = files(&store.join("wal"), ".segment");
    found.retain(|path| !path.file_name().unwrap().to_string_lossy().starts_with("lost-"));
    found
}

/// The newest segment that has frames.
pub fn segment(store: &Path) -> PathBuf {
    segments(store).into_iter().rfind(|path| !frames(&fs::read(path).unwrap()).is_empty()).unwrap()
}

/// A frame of a segment: where it begins, and the length of its payload.
pub type Frame = (usize, usize);

/// The frames of a segment, up to the first frame header without a sequence number. Checksums are
/// not checked.
pub fn frames(segment: &[u8]) -> Vec<Frame> {
    let (mut frames, mut at) = (Vec::new(), FRAMES_AT);
    while let Some(header) = segment.get(at..at + HEADER_BYTES).filter(|header| header[8..16] != [0; 8]) {
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        frames.push((at, length));
        at = (at + HEADER_BYTES + length).next_multiple_of(ALIGNMENT);
    }
    frames
}

/// Where the frame's payload begins.
pub fn payload((at, _): Frame) -> usize {
    at + HEADER_BYTES
}

/// Changes a file by replacing it, because it may be a hard link.
pub fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Appends a record to the manifest as a power cut may leave it: only the first page has its
/// content, while the file already has its full length.
pub fn tear_manifest(store: &Path) {
    const RECORD: u16 = 8000;
    change(&files(store, "MANIFEST-").pop().unwrap(), |bytes| {
        let page = bytes.len().next_multiple_of(4096);
        let end = bytes.len() + 7 + usize::from(RECORD);
        let [low, high] = RECORD.to_le_bytes();
        bytes.extend([1, 2, 3, 4, low, high, 1]);
        bytes.resize(page, b'x');
        bytes.resize(end + 300, 0);
    });
}

/// Where the records of a manifest of one block begin. A record is 4 bytes of checksum, 2 bytes of
/// length, 1 byte of type, and its content.
pub fn records_of_manifest(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut records) = (0, Vec::new());
    while let Some(&[low, high]) = bytes.get(at + 4..at + 6) {
        records.push(at);
        at += 7 + usize::from(u16::from_le_bytes([low, high]));
    }
    records
}
