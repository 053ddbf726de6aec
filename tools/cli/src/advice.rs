//! Advice in errors: that of the command line, once.
//!
//! The errors of the library advise to call its functions. Here such advice is left out, where the
//! command line has its own advice for the error, or replaced by the option or the command that
//! does the same. What the operating system refuses has the advice of the library, and the command
//! line's where its own calls fail.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use percolite::internal::os_limits;

use crate::exit::Code;
use crate::quoting::shell_quoted;

/// Parts of the library's errors, and what the command line says instead. STORE is replaced.
const REPLACED: [(&str, &str); 5] = [
    ("open the store read-only, or make the file system writable", "make the file system writable"),
    (": restore into a new store, or pass OnExisting::Replace", ": restore into a new directory, or use --replace"),
    (
        ": rename or drop it, or allow that it is replaced (OnExisting::Replace)",
        ": rename or drop it (percolite keyspaces STORE), or use --replace",
    ),
    ("; use that number, or wait until it is free", "; wait until it is free, or use another name"),
    (
        "opening the store for writing repairs it",
        "a command that writes repairs it, such as percolite locks STORE --resolve",
    ),
];

/// A sentence with one of these is advice to call a function of the library.
const LIBRARY_NAMES: [&str; 3] = ["Builder::", "Store::", "OnExisting::"];

const DISK_FULL: [&str; 2] = ["No space left on device", "Disk quota exceeded"];
/// In the library's own advice about a full disk, which is that of the store.
const STORE_DISK_FULL: [&str; 2] = ["free at least", "free space within the quota"];
const FREE_SPACE: &str = "the disk, or the user's part of it, is full: free some space first";
const REMOVED_DIRECTORY: &str = "the current directory was removed";
const NO_RIGHT: &str = "the user of this process must be allowed to";

/// The directory of the command's store, set once.
static STORE_DIR: OnceLock<PathBuf> = OnceLock::new();

/// Notes the directory of the command's store, for [`store_argument`].
pub fn set_store_dir(dir: &Path) {
    // The program runs one command.
    let _ = STORE_DIR.set(dir.to_owned());
}

/// The command's store as an argument of a recommended command.
pub fn store_argument() -> String {
    STORE_DIR.get().map_or_else(|| "STORE".into(), |dir| shell_quoted(dir))
}

pub fn is_store(dir: &Path) -> bool {
    dir.join("PERCOLITE").exists()
}

/// The text of a library's error with the advice of the command line.
pub fn of_library(text: &str) -> String {
    let mut text = Cow::from(text);
    for (library, own) in REPLACED.iter().filter(|(library, _)| text.contains(library)).collect::<Vec<_>>() {
        text = text.replace(library, &own.replace("STORE", &store_argument())).into();
    }
    let is_advice = |part: &&str| LIBRARY_NAMES.iter().any(|name| part.contains(name));
    let own: Vec<&str> = text.split("; ").filter(|part| !is_advice(part)).collect();
    if own.is_empty() { text.into() } else { own.join("; ") }
}

/// Appends to the message of a failure what the operating system's refusal needs, unless the
/// message says it.
pub fn with_remedy(message: &str) -> String {
    let says = |text: &str| message.contains(text);
    let remedy = if says("No such file or directory") && !says(REMOVED_DIRECTORY) && std::env::current_dir().is_err() {
        "the current directory was removed, and relative paths lead nowhere: change to another directory (cd)"
    } else if DISK_FULL.into_iter().any(says) {
        if STORE_DISK_FULL.into_iter().any(says) || says(FREE_SPACE) {
            return message.to_owned();
        }
        FREE_SPACE
    } else if says("Read-only file system") && !says("file system writable") {
        "make the file system writable, or name a path on another one"
    } else if says("Is a directory") && !says("name a file") {
        "name a file in it"
    } else if says("Permission denied") && !says(NO_RIGHT) {
        return format!("{message}; {NO_RIGHT} do that");
    } else {
        return os_limits::with_advice(message);
    };
    format!("{message}; {remedy}")
}

/// The error of a call that was to write in the store's directory.
pub fn cannot_write(store: &Path, what: &str, err: &io::Error) -> anyhow::Error {
    let remedy = match err.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("; {NO_RIGHT} read and write the directory of the store and all files in it")
        }
        io::ErrorKind::ReadOnlyFilesystem => "; make the file system writable".into(),
        _ => String::new(),
    };
    if remedy.is_empty() {
        return Code::Failed.error(format!("{what}: {err}"));
    }
    not_writable(store, &format!("{what}: {err}{remedy}"))
}

/// The error of a store that cannot be written to, for this reason.
pub fn not_writable(store: &Path, reason: &str) -> anyhow::Error {
    let reading = if is_store(store) { "; commands that only read work: get, scan, dump, verify, locks" } else { "" };
    Code::Failed.error(format!("{} cannot be written to: {reason}{reading}", store.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// The lines of the library that can be part of an error: no comments, attributes and tests.
    fn texts_of_the_library() -> Vec<String> {
        let mut directories = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../src"))];
        let mut texts = Vec::new();
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|kind| kind == "rs") {
                    let source = fs::read_to_string(path).unwrap();
                    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
                    let lines = source.lines().map(str::trim).filter(|line| !line.starts_with(['/', '#']));
                    texts.extend(lines.map(str::to_owned));
                }
            }
        }
        texts
    }

    #[test]
    fn every_text_that_is_replaced_is_one_of_the_library() {
        let texts = texts_of_the_library();
        for (library, own) in REPLACED {
            // Where a text is wrapped, its beginning is enough.
            let begin: String = library.chars().take(30).collect();
            assert!(texts.iter().any(|line| line.contains(&begin)), "{library}");
            assert!(!of_library(&format!("it failed{library}")).contains(library), "{own}");
        }
    }

    #[test]
    fn no_name_of_the_library_is_left_in_an_error() {
        let mut found = 0;
        for line in texts_of_the_library() {
            // Of a line of code, what is in quotes is a text.
            for text in line.split('"').skip(1).step_by(2) {
                if LIBRARY_NAMES.iter().any(|name| text.contains(name)) {
                    found += 1;
                    let shown = of_library(&format!("it failed; {text}"));
                    assert!(!shown.contains("::"), "{shown}");
                }
                let is_name = |word: &str| {
                    let (kind, function) = word.split_once("::").unwrap_or_default();
                    kind.starts_with(char::is_uppercase) && function.starts_with(char::is_alphabetic)
                };
                let mut words = text.split(|c: char| !c.is_alphanumeric() && c != ':' && c != '_');
                if let Some(name) = words.find(|word| is_name(word)) {
                    assert!(LIBRARY_NAMES.iter().any(|known| name.starts_with(known)), "{name} in {line}");
                }
            }
        }
        assert!(found >= 4, "{found}");
    }

    #[test]
    fn a_refusal_of_the_system_gets_its_remedy_once() {
        for refusal in [
            "Too many open files",
            "No space left on device",
            "Disk quota exceeded",
            "Permission denied",
            "Read-only file system",
            "File too large",
            "Is a directory",
        ] {
            let once = with_remedy(&format!("cannot write d: {refusal} (os error 1)"));
            assert!(once.contains("(os error 1); "), "{once}");
            assert_eq!(with_remedy(&once), once);
        }
        assert_eq!(with_remedy("the keyspace is missing"), "the keyspace is missing");
    }
}
