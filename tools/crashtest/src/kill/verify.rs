//! Verifies a killed store, with a timeout, because a store that hangs is a violation.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use percolite::{Error, Timestamp};

use super::case::Case;
use crate::checkpoints::{Checkpoint, checkpoint_path, is_store, last_timestamp};
use crate::client::ClientConfig;
use crate::client_log::ClientLog;
use crate::lock_workload::event::LockEvent;
use crate::verify_store::{StoreReport, StoreUnderTest, verify};
use crate::violation::Violation;
use crate::workload::Workload;

/// A verification that takes longer hangs; normally it takes less than a second.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(120);
/// How many checkpoints are verified.
const CHECKPOINTS_MAX: usize = 3;
/// Of the values that the verification writes, one in this many is long.
const LONG_VALUE_EVERY: usize = 8;

/// Verifies the newest checkpoints of the store in `store_dir`. Each checkpoint comes with the
/// incarnation that made it.
pub fn verify_checkpoints(
    case: Case,
    workload: &'static dyn Workload,
    store_dir: &Path,
    mut checkpoints: Vec<(u32, Checkpoint)>,
    incarnations: u32,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (incarnation, checkpoint) in checkpoints.split_off(checkpoints.len().saturating_sub(CHECKPOINTS_MAX)) {
        let path = checkpoint_path(store_dir, checkpoint.number);
        match is_store(&path, &checkpoint) {
            Err(error) => violations.push(error),
            Ok(false) => {}
            Ok(true) => {
                let found = match log_of_checkpoint(&path, checkpoint.client_log, incarnation) {
                    Ok(log) => verify_killed(path, case, workload, (log, Vec::new()), (incarnations, true)).violations,
                    Err(error) => vec![Violation::new("the store opens", error.to_string())],
                };
                let of_copy = |one: Violation| Violation {
                    details: format!("checkpoint {}: {}", checkpoint.number, one.details),
                    ..one
                };
                violations.extend(found.into_iter().map(of_copy));
            }
        }
    }
    violations
}

/// What the clients of a checkpoint know of it: the commits that were acknowledged before its
/// start, and it may end anywhere after them.
///
/// # Errors
/// Errors of opening the checkpoint.
pub fn log_of_checkpoint(path: &Path, mut client_log: ClientLog, incarnation: u32) -> Result<ClientLog, Error> {
    let newest = client_log.acknowledged_commits().into_values().max().unwrap_or_default();
    client_log.allow_loss(incarnation, Timestamp::from_u64(newest));
    // After the start of the checkpoint the store has handed out timestamps that the checkpoint
    // hands out again. So transactions with these timestamps are removed.
    client_log.truncate_above(last_timestamp(path)?);
    Ok(client_log)
}

/// Verifies the store in `store_dir` after this many incarnations; `is_checkpoint` says whether it
/// is a copy of another store.
pub fn verify_killed(
    store_dir: PathBuf,
    case: Case,
    workload: &'static dyn Workload,
    (client_log, lock_events): (ClientLog, Vec<LockEvent>),
    (incarnations, is_checkpoint): (u32, bool),
) -> StoreReport {
    let (sender, acknowledged) = channel();
    let log_before = client_log.clone();
    std::thread::spawn(move || {
        let config = ClientConfig {
            protocol: case.protocol.into(),
            durability: case.durability.into(),
            long_value_every: LONG_VALUE_EVERY,
        };
        // A kill loses no acknowledged commit, so all of them must be found.
        let acknowledged = client_log.acknowledged_commits();
        let target = StoreUnderTest {
            store_dir: &store_dir,
            workload,
            config,
            incarnation: incarnations,
            acknowledged: &acknowledged,
            lock_events: &lock_events,
            reopen: true,
            check_files: true,
            is_checkpoint,
            accept_loss: None,
        };
        let mut report = verify(&target, client_log);
        if let Some(error) = &report.open_error {
            report.violations.push(Violation::new("the store opens", error.to_string()));
        }
        let _ = sender.send(report);
    });
    acknowledged.recv_timeout(VERIFY_TIMEOUT).unwrap_or_else(|error| {
        let violations = vec![Violation::new(
            "progress",
            format!("the verification did not end within {VERIFY_TIMEOUT:?}: {error}"),
        )];
        StoreReport { violations, client_log: log_before, ..StoreReport::default() }
    })
}
