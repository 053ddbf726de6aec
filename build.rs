//! Stops the build if it would use an installed RocksDB of another version than the bundled one.
//!
//! Recovery repairs RocksDB's manifest, and relies on how the flushes and errors of RocksDB work.
//! These were examined and tested with one version only. See docs/dependencies.md.

use std::path::PathBuf;
use std::{env, fs};

/// The version that `librocksdb-sys` bundles. A test compares it with `Cargo.lock`.
const ROCKSDB_VERSION: &str = "11.8.1";

/// The environment variables that `librocksdb-sys` reads to find an installed RocksDB.
const VARIABLES: [&str; 3] = ["ROCKSDB_COMPILE", "ROCKSDB_LIB_DIR", "ROCKSDB_INCLUDE_DIR"];

/// Also called by the build script of `tools/crashtest/mutated`.
pub fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    VARIABLES.iter().for_each(|variable| println!("cargo::rerun-if-env-changed={variable}"));
    println!("cargo::rustc-env=PERCOLITE_ROCKSDB_VERSION={ROCKSDB_VERSION}");
    if env::var_os("CARGO_FEATURE_ROCKS").is_some()
        && let Err(reason) = check_version()
    {
        println!("cargo::error={reason}");
    }
}

fn check_version() -> Result<(), String> {
    let Some(include_dir) = include_dir()? else { return Ok(()) };
    let header = include_dir.join("rocksdb/version.h");
    println!("cargo::rerun-if-changed={}", header.display());
    let text = fs::read_to_string(&header).map_err(|why| format!("cannot read {}: {why}", header.display()))?;
    match version(&text) {
        Some(version) if version == ROCKSDB_VERSION => Ok(()),
        found => Err(format!(
            "percolite needs RocksDB {ROCKSDB_VERSION}, because its recovery relies on that version; {} is of {}. \
             Unset {} to compile the bundled one",
            header.display(),
            found.as_deref().unwrap_or("an unknown version"),
            VARIABLES[1..].join(" and "),
        )),
    }
}

/// Where the headers of an installed RocksDB are; `None` if the bundled RocksDB is compiled.
fn include_dir() -> Result<Option<PathBuf>, String> {
    let is_compiled = env::var("ROCKSDB_COMPILE").is_ok_and(|value| value == "1" || value.eq_ignore_ascii_case("true"));
    let lib_dir = env::var_os("ROCKSDB_LIB_DIR").filter(|_| !is_compiled);
    match (env::var_os("ROCKSDB_INCLUDE_DIR"), lib_dir) {
        (Some(include_dir), _) => Ok(Some(include_dir.into())),
        (None, Some(lib_dir)) => Err(format!(
            "ROCKSDB_LIB_DIR is {}; set ROCKSDB_INCLUDE_DIR as well, to the directory of the headers of the same \
             RocksDB: they have its version",
            lib_dir.display()
        )),
        // On FreeBSD `librocksdb-sys` always uses the installed RocksDB.
        (None, None) if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "freebsd") => {
            Ok(Some("/usr/local/include".into()))
        }
        (None, None) => Ok(None),
    }
}

/// The version in the text of `rocksdb/version.h`.
fn version(header: &str) -> Option<String> {
    let number = |part: &str| {
        let mut lines = header.lines().filter_map(|line| line.strip_prefix("#define ROCKSDB_")?.strip_prefix(part));
        lines.next()?.trim().parse::<u32>().ok()
    };
    Some(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH")?))
}
