//! A full disk.

use std::path::Path;

use crate::rows::{Acknowledged, scattered, small};
use crate::{Limit, Scenario};

const fn small_disk(name: &'static str, run: fn(&Path)) -> Scenario {
    Scenario { name, limit: Limit::DiskKib(10 << 10), run }
}

pub const SCENARIOS: &[Scenario] = &[small_disk("commits and close end on a full disk", commits_and_close_end)];

/// The compactions of this store run out of space before its flushes do: with scattered keys each
/// rewrites all rows. So level 0 grows.
fn commits_and_close_end(directory: &Path) {
    let path = directory.join("store");
    let mut acknowledged = Acknowledged::default();
    for _ in 0..3 {
        let Ok(store) = small().open(&path) else { break };
        let error = acknowledged.fill(&store, scattered);
        assert!(error.to_string().contains("No space left on device"), "{error}");
        let closed = store.close().unwrap_err();
        assert!(closed.to_string().contains("No space left on device"), "{closed}");
        acknowledged.check(&path);
    }
    assert!(acknowledged.keys.len() > 2000, "{} rows were written", acknowledged.keys.len());
}
