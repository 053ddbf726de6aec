//! The names of RocksDB's files.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::disk::{check_regular, shown};
use crate::engine::EngineError;

const CURRENT: &str = "CURRENT";

/// Removes unfinished options files. A process that is killed while it opens the store leaves one,
/// and RocksDB neither reads nor removes it. The file is harmless, so errors are ignored.
pub fn remove_stale_options_files(path: &Path) {
    let is_stale = |entry: &PathBuf| {
        let name = entry.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("OPTIONS-") && name.contains(".dbtmp") && is_rocksdb_file(entry)
    };
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    for file in entries.filter(is_stale) {
        let _ = fs::remove_file(file);
    }
}

/// Fails if something else than a regular file has the name of one of RocksDB's files. RocksDB
/// would follow symlinks, and wait for pipes.
pub fn check_files_are_regular(path: &Path) -> Result<(), EngineError> {
    let cannot = |call, path: &Path, error| EngineError::Io(format!("cannot {call} {}: {error}", shown(path)));
    for entry in fs::read_dir(path).map_err(|error| cannot("list", path, error))? {
        let entry = entry.map_err(|error| cannot("list", path, error))?;
        let file = entry.path();
        if has_rocksdb_name(&file) {
            entry.file_type().and_then(check_regular).map_err(|error| cannot("open", &file, error))?;
        }
    }
    Ok(())
}

/// Whether this is a regular file with a name that RocksDB uses.
pub fn is_rocksdb_file(file: &Path) -> bool {
    has_rocksdb_name(file) && file.symlink_metadata().is_ok_and(|found| found.is_file())
}

fn has_rocksdb_name(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = |(before, after): (&str, &str)| match before {
        "MANIFEST" | "OPTIONS" => is_number(after.strip_suffix(".dbtmp").unwrap_or(after)),
        _ => is_number(before) && matches!(after, "log" | "sst" | "blob" | "dbtmp"),
    };
    matches!(name, CURRENT | "LOCK" | "IDENTITY" | "LOG")
        || name.strip_prefix("LOG.old.").is_some_and(is_number)
        || name.split_once(['-', '.']).is_some_and(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rocksdb_file_names_are_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let is_recognized = |name: &str| {
            let file = directory.path().join(name);
            fs::write(&file, "").unwrap();
            is_rocksdb_file(&file)
        };
        let own =
            ["CURRENT", "LOCK", "IDENTITY", "LOG", "LOG.old.1763726400000000", "MANIFEST-000001", "OPTIONS-000007"];
        let numbered = ["000004.log", "000012.sst", "000013.blob", "000000.dbtmp", "OPTIONS-000007.dbtmp"];
        for name in own.into_iter().chain(numbered) {
            assert!(is_recognized(name), "{name}");
        }
        for name in
            ["precious.txt", "app.log", "LOG.txt", "1.txt", ".log", "MANIFEST-a", "OPTIONS", "2024-01", "CURRENT.1"]
        {
            assert!(!is_recognized(name), "{name}");
        }
        fs::create_dir(directory.path().join("000005.log")).unwrap();
        assert!(!super::is_rocksdb_file(&directory.path().join("000005.log")), "a directory");
    }
}
