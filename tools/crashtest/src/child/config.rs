//! The configuration of a child process, which its parent passes on the command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use percolite::{CommitProtocol, Durability};
use serde::{Deserialize, Serialize};

use crate::client::ClientConfig;
use crate::self_kill::KillAt;

/// An incarnation with buffered commits syncs once in this many transactions on average.
pub const SYNC_EVERY: usize = 24;

/// When commits are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DurabilityMode {
    /// When commits are durable.
    Sync,
    /// When commits are visible.
    Buffered,
    /// For half of the clients, when commits are visible; for the other half, when they are
    /// durable. The store is opened as for `Sync`, so its snapshots show durable data only.
    Mixed,
}

/// The configuration of a child process. See the [module](super).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildConfig {
    /// The store's directory.
    pub store_dir: PathBuf,
    /// The number of the incarnation.
    pub incarnation: u32,
    /// The name of the workload.
    pub workload: String,
    /// Whether clients commit in two phases.
    pub two_phase: bool,
    /// When commits are acknowledged.
    pub durability_mode: DurabilityMode,
    /// The number of clients.
    pub clients: usize,
    /// The number of transactions of each client; 0: no limit.
    pub transactions: usize,
    /// One value in this many is long; 0: none.
    pub long_value_every: usize,
    /// Memory for writes, in bytes; small values force frequent flushes.
    pub write_buffer_bytes: usize,
    /// Bytes of an extra row that is written after each transaction, to fill disks and buffers.
    pub filler_bytes: usize,
    /// Buffered incarnations sync once in this many transactions on average; 0: never.
    pub sync_every: usize,
    /// On average half of the transactions wait before their commit, up to this many milliseconds.
    pub think_ms: usize,
    /// Rows in the store's conflict set.
    pub conflict_set_rows: usize,
    /// Transactions above this many bytes are large.
    pub large_transaction_bytes: usize,
    /// History retention in milliseconds; `None` leaves it unchanged.
    pub history_ms: Option<u64>,
    /// One step in this many drops and recreates the second keyspace; 0: never.
    pub drop_every: usize,
    /// One step of the first client in this many makes a checkpoint; 0: never.
    pub checkpoint_every: usize,
    /// One step of the first client in this many restores a dump; 0: never.
    pub restore_every: usize,
    /// The number of threads that take named locks.
    #[serde(default)]
    pub lock_clients: usize,
    /// The speed of the store's clock, as a multiple of real time.
    pub clock_speed: u32,
    /// The log of `strace`, if a fault is injected.
    #[serde(default)]
    pub strace_log: Option<PathBuf>,
    /// Whether orphan locks are resolved in the background.
    pub background_resolve: bool,
    /// The seed of all random choices.
    pub seed: u64,
    /// Whether the process, when its work is done, keeps the store open until it is killed.
    /// Otherwise it closes the store and ends.
    pub stay_open: bool,
    /// The crash points at which the process kills itself; ignored with `stay_open`.
    pub kill_at: Vec<KillAt>,
    /// Visits count for `kill_at` only after this many acknowledged commits.
    pub after_acks: u64,
    /// The enabled mutant.
    pub mutant: Option<String>,
}

impl Default for ChildConfig {
    fn default() -> Self {
        Self {
            store_dir: PathBuf::new(),
            incarnation: 0,
            workload: String::new(),
            two_phase: false,
            durability_mode: DurabilityMode::Sync,
            clients: 0,
            transactions: 0,
            long_value_every: 0,
            write_buffer_bytes: 4 << 20,
            filler_bytes: 0,
            sync_every: SYNC_EVERY,
            think_ms: 0,
            conflict_set_rows: 64,
            large_transaction_bytes: 16 << 20,
            history_ms: None,
            drop_every: 0,
            checkpoint_every: 0,
            restore_every: 0,
            lock_clients: 0,
            clock_speed: 1,
            strace_log: None,
            background_resolve: true,
            seed: 0,
            stay_open: true,
            kill_at: Vec::new(),
            after_acks: 0,
            mutant: None,
        }
    }
}

impl ChildConfig {
    /// The command line that starts this child from the program that is running.
    ///
    /// # Errors
    /// This program's path is unknown.
    pub fn arguments(&self) -> anyhow::Result<Vec<String>> {
        self.arguments_for(&std::env::current_exe().context("cannot find the path of this program")?)
    }

    /// The command line that starts this child from `program`, which must have the subcommand
    /// `child`.
    ///
    /// # Errors
    /// The configuration cannot be serialised.
    pub fn arguments_for(&self, program: &Path) -> anyhow::Result<Vec<String>> {
        Ok(vec![program.to_string_lossy().into_owned(), "child".into(), serde_json::to_string(self)?])
    }

    /// [`Self::arguments`] as a [`Command`].
    ///
    /// # Errors
    /// This program's path is unknown.
    pub fn command(&self) -> anyhow::Result<Command> {
        let arguments = self.arguments()?;
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]);
        Ok(command)
    }

    /// The configuration of the clients.
    pub fn client_config(&self, durability: Durability) -> ClientConfig {
        ClientConfig { protocol: self.protocol(), durability, long_value_every: self.long_value_every }
    }

    pub(super) fn protocol(&self) -> CommitProtocol {
        if self.two_phase { CommitProtocol::TwoPhase } else { CommitProtocol::Auto }
    }

    pub(super) fn durability(&self) -> Durability {
        if self.durability_mode == DurabilityMode::Buffered { Durability::Buffered } else { Durability::Sync }
    }

    pub(super) fn durability_of(&self, client: u64) -> Durability {
        match self.durability_mode {
            DurabilityMode::Mixed if client % 2 == 1 => Durability::Buffered,
            _ => self.durability(),
        }
    }
}
