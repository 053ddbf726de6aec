//! The client that restores dumps, and makes some.

use std::sync::Arc;

use parking_lot::Mutex;
use percolite::{Builder, CommitProtocol, ErrorKind, OnExisting, Store};

use super::super::engine::{Dead, is_dead};
use super::super::runtime::SimRuntime;
use super::super::scheduler::Scheduler;
use crate::client::digest_of;
use crate::restores::{FEW, Restores, restore};

/// The client that restores dumps.
pub struct Keeper {
    pub store: Store,
    pub scheduler: Arc<Scheduler>,
    pub dead: Dead,
    pub protocol: CommitProtocol,
    pub restores: Arc<Mutex<Restores>>,
}

impl Keeper {
    /// A dump is of one moment, whatever is written meanwhile.
    fn dump(&self, builder: Builder) -> Result<(), percolite::Error> {
        let (snapshot, mut dump) = (self.store.snapshot()?, Vec::new());
        let shown = digest_of(&snapshot)?;
        snapshot.dump(&mut dump, |_| ())?;
        let copy = builder.in_memory()?;
        copy.restore(dump.as_slice(), OnExisting::Fail, |_| ())?;
        let found = digest_of(&copy.snapshot()?)?;
        copy.close()?;
        let what = "a dump has something else than the snapshot that it is of";
        if found == shown { Ok(()) } else { Err(ErrorKind::Corruption(what.into()).into()) }
    }

    pub fn restore(&self, number: u64) -> Result<(), percolite::Error> {
        let builder = Store::builder().commit_protocol(self.protocol).runtime(SimRuntime::new(&self.scheduler, 0));
        self.restores.lock().begins(number);
        restore(&self.store, builder.clone(), number, FEW)?;
        self.dump(builder)?;
        if !is_dead(&self.dead) {
            self.restores.lock().is_done(number);
        }
        Ok(())
    }
}
