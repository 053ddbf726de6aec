//! Errors of a store's directory: what was tried, on which file, and what helps.

use std::io::{self, ErrorKind};
use std::path::Path;

use crate::disk::{Directory, shown};
use crate::engine::EngineError;

/// Opens a directory that must exist. Creates and changes nothing.
pub fn open_existing(path: &Path) -> Result<Directory, EngineError> {
    Directory::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => EngineError::NotAStore(match not_a_directory(path) {
            Some(other) => other.to_string(),
            None => format!("there is no directory {}{}", path.display(), remedy("open", path, &error)),
        }),
        ErrorKind::NotADirectory => EngineError::NotAStore(match not_a_directory(path) {
            Some(other) => other.to_string(),
            None => format!("a part of {} is a file, not a directory", path.display()),
        }),
        _ => cannot("open", path, &error),
    })
}

/// Describes why a path cannot be a directory, more clearly than the operating system's error.
pub fn not_a_directory(path: &Path) -> Option<EngineError> {
    let what = match path.metadata() {
        Ok(found) if !found.is_dir() => "a file, not a directory",
        Err(_) if path.is_symlink() => "a dangling symbolic link",
        _ => return None,
    };
    Some(EngineError::Io(format!("{} is {what}", path.display())))
}

/// The error of a call on a file or directory of a store.
pub fn cannot(call: &str, path: &Path, error: &io::Error) -> EngineError {
    EngineError::Io(format!("cannot {call} {}: {error}{}", shown(path), remedy(call, path, error)))
}

/// What the caller can do, to be appended to the error.
fn remedy(call: &str, path: &Path, error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound if path.is_relative() && std::env::current_dir().is_err() => {
            "; the current directory was removed: name an absolute path"
        }
        ErrorKind::PermissionDenied => {
            "; the user of this process must be allowed to read and write the directory of the store and all files in it"
        }
        ErrorKind::ReadOnlyFilesystem => "; open the store read-only, or make the file system writable",
        _ if call == "lock" => {
            "; the file system does not support locks (flock): put the store on one that does, a local one for example"
        }
        ErrorKind::InvalidInput | ErrorKind::Unsupported if call == "sync" => {
            "; the file system cannot make names durable: put the store on one that can, a local one for example"
        }
        _ => "",
    }
}
