//! The limits of threads, of memory and of the size of files.

use std::path::Path;

use percolite::{ErrorKind, Store};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::rows::{Acknowledged, scattered, small};
use crate::{Limit, Scenario};

pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "an error names the limit of threads", limit: Limit::Threads(1), run: threads },
    Scenario { name: "an error names the limit of memory", limit: Limit::AddressSpace(400_000), run: memory },
    Scenario { name: "an error names the limit of file size", limit: Limit::FileBlocks(1024), run: file_size },
    Scenario {
        name: "a low limit of file size ends no process",
        limit: Limit::SoftFileBlocks(2048),
        run: file_size_signal,
    },
];

fn threads(directory: &Path) {
    let path = directory.join("store");
    let Err(error) = small().open(&path) else { panic!("the store was opened without threads") };
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error:?}");
    assert!(error.to_string().contains("raise the limit of threads (ulimit -u"), "{error}");
    let maximum = getrlimit(Resource::Nproc).maximum;
    setrlimit(Resource::Nproc, Rlimit { current: maximum, maximum }).unwrap();
    let mut acknowledged = Acknowledged::default();
    let store = small().open(&path).unwrap();
    acknowledged.write(&store, scattered, 10).unwrap();
    store.close().unwrap();
    acknowledged.check(&path);
}

/// Nothing is created under the limit, and what the error says to raise it to is enough.
fn memory(directory: &Path) {
    let path = directory.join("store");
    let Err(error) = small().open(&path) else { panic!("the store was opened without memory") };
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("(ulimit -v, LimitAS) is 400000 KiB") && !path.exists(), "{text}");
    let least = text.split("raise the limit to ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let least: u64 = least.parse().unwrap();
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(least * 1024), maximum }).unwrap();
    let mut acknowledged = Acknowledged::default();
    // A second opening finds the address space of the first one's threads taken.
    for _ in 0..3 {
        let store = small().open(&path).unwrap();
        acknowledged.write(&store, scattered, 3000).unwrap();
        store.close().unwrap();
    }
    acknowledged.check(&path);
}

/// The log grows beyond the limit, because a memtable is larger.
fn file_size(directory: &Path) {
    let path = directory.join("store");
    let mut acknowledged = Acknowledged::default();
    for _ in 0..2 {
        let store = Store::open(&path).unwrap();
        let error = acknowledged.fill(&store, scattered);
        let text = error.to_string();
        assert!(text.contains("File too large") && text.contains("ulimit -f"), "{text}");
        drop(store);
        acknowledged.check(&path);
    }
}

/// With the default action of the signal a write beyond the limit would end this process.
fn file_size_signal(directory: &Path) {
    let path = directory.join("store");
    let error = small().open(&path).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("files of 1024 KiB") && text.contains("(ulimit -f, LimitFSIZE)") && !path.exists(), "{text}");
    let least = text.split("raise the limit to ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let (current, maximum) = (Some(least.parse::<u64>().unwrap() * 1024), getrlimit(Resource::Fsize).maximum);
    setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
    let mut acknowledged = Acknowledged::default();
    let store = small().open(&path).unwrap();
    acknowledged.write(&store, scattered, 20_000).unwrap();
    store.close().unwrap();
    acknowledged.check(&path);
}
