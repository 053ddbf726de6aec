//! A client that restores dumps, and dumps the store.

use std::sync::Arc;

use parking_lot::Mutex;
use percolite::{Builder, CommitProtocol, ErrorKind, OnExisting, Store};

use super::super::engine::{ProcessDead, is_dead};
use super::super::runtime::SimRuntime;
use super::super::scheduler::Scheduler;
use crate::client::digest_of;
use crate::restores::{FEW_ROWS, Restores, restore};

/// A client that restores dumps.
pub struct BackupClient {
    pub store: Store,
    pub scheduler: Arc<Scheduler>,
    pub dead: ProcessDead,
    pub protocol: CommitProtocol,
    pub restores: Arc<Mutex<Restores>>,
}

impl BackupClient {
    /// Checks that a dump has the state of one snapshot, whatever is written meanwhile.
    fn check_dump(&self, builder: Builder) -> Result<(), percolite::Error> {
        let (snapshot, mut dump) = (self.store.snapshot()?, Vec::new());
        let expected = digest_of(&snapshot)?;
        snapshot.dump(&mut dump, |_| ())?;
        let copy = builder.in_memory()?;
        copy.restore(dump.as_slice(), OnExisting::Fail, |_| ())?;
        let found = digest_of(&copy.snapshot()?)?;
        copy.close()?;
        let problem = "a dump differs from its snapshot";
        if found == expected { Ok(()) } else { Err(ErrorKind::Corruption(problem.into()).into()) }
    }

    pub fn restore(&self, number: u64) -> Result<(), percolite::Error> {
        let builder = Store::builder().commit_protocol(self.protocol).env(SimRuntime::new(&self.scheduler, 0));
        self.restores.lock().start(number);
        restore(&self.store, builder.clone(), number, FEW_ROWS)?;
        self.check_dump(builder)?;
        if !is_dead(&self.dead) {
            self.restores.lock().acknowledge(number);
        }
        Ok(())
    }
}
