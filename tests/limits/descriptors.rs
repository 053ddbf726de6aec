//! The limit of open files.

use std::fs::{self, File};
use std::path::Path;

use percolite::{Error, ErrorKind};

use crate::rows::{Acknowledged, ascending, scattered, small};
use crate::{Limit, Scenario};

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "short openings with little data make few tables",
        limit: Limit::OpenFiles(70),
        run: short_openings,
    },
    Scenario {
        name: "appended rows with little memory make few tables",
        limit: Limit::OpenFiles(128),
        run: appended_rows,
    },
    Scenario {
        name: "an error names the limit of open files",
        limit: Limit::OpenFiles(100),
        run: errors_name_the_limit,
    },
];

fn tables(store: &Path) -> usize {
    let files = fs::read_dir(store.join("tables")).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "sst")).count()
}

/// Each process of a script that puts one row. The keys ascend, so that no table overlaps another.
fn short_openings(directory: &Path) {
    let path = directory.join("store");
    let mut acknowledged = Acknowledged::default();
    for _ in 0..200 {
        let store = small().open(&path).unwrap();
        acknowledged.write(&store, ascending, 1).unwrap();
        store.close().unwrap();
    }
    assert!(tables(&path) < 40, "{} tables", tables(&path));
    let segments = fs::read_dir(path.join("wal")).unwrap().count();
    assert!(segments < 24, "{segments} segments");
    let others = fs::read_dir(path.join("tables")).unwrap().count() - tables(&path);
    assert!(others < 12, "{others} other files of RocksDB");
    acknowledged.check(&path);
    let store = small().open(&path).unwrap();
    store.checkpoint(directory.join("copy")).unwrap();
    store.close().unwrap();
    acknowledged.check(&directory.join("copy"));
}

fn appended_rows(directory: &Path) {
    let path = directory.join("store");
    let store = small().write_buffer_bytes(512 << 10).open(&path).unwrap();
    let mut acknowledged = Acknowledged::default();
    for _ in 0..300 {
        acknowledged.write(&store, ascending, 100).unwrap();
    }
    store.close().unwrap();
    assert!(tables(&path) < 100, "{} tables", tables(&path));
    acknowledged.check(&path);
}

/// The files that this process can still open.
fn open_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn check_named(error: &Error) {
    let text = error.to_string();
    assert!(text.contains("this process may have 100 files open: raise") && text.contains("ulimit -n"), "{text}");
}

fn errors_name_the_limit(directory: &Path) {
    let path = directory.join("store");
    let mut acknowledged = Acknowledged::default();
    let store = small().open(&path).unwrap();
    acknowledged.write(&store, scattered, 10).unwrap();
    let files = open_all();
    let error = acknowledged.fill(&store, scattered);
    check_named(&error);
    let Err(error) = store.close() else { panic!("the store was closed after its failure") };
    check_named(&error);
    // The store has closed its own.
    let more = open_all();
    let Err(error) = small().open(&path) else { panic!("the store was opened without descriptors") };
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error:?}");
    check_named(&error);
    drop((files, more));
    acknowledged.check(&path);
    let store = small().open(&path).unwrap();
    acknowledged.write(&store, scattered, 10).unwrap();
    store.close().unwrap();
}
