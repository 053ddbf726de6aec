//! A full disk.

use std::path::Path;

use crate::rows::{Acknowledged, scattered, small};
use crate::{Limit, Scenario};

pub const SCENARIOS: &[Scenario] = &[Scenario {
    name: "commits and close end on a full disk",
    limit: Limit::DiskKib(10 << 10),
    run: commits_and_close_end,
}];

/// The compactions of this store run out of space before its flushes do: with scattered keys each
/// rewrites all rows. So level 0 grows.
fn commits_and_close_end(directory: &Path) {
    let path = directory.join("store");
    let mut acknowledged = Acknowledged::default();
    for _ in 0..3 {
        let Ok(store) = small().open(&path) else { break };
        let rows = store.keyspace("rows").unwrap();
        let error = acknowledged.fill(&store, &rows, scattered);
        assert!(error.to_string().contains("No space left on device"), "{error}");
        let closed = store.close().unwrap_err();
        assert!(closed.to_string().contains("No space left on device"), "{closed}");
        acknowledged.check(&path);
    }
    assert!(acknowledged.keys.len() > 2000, "{} rows were written", acknowledged.keys.len());
}
