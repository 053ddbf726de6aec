//! LMDB, through heed.
//!
//! The settings follow `lmdb.h` and heed's documentation of `EnvOpenOptions`. LMDB has one writer
//! at a time, so there are no retries. A commit syncs unless the environment was opened with
//! `MDB_NOSYNC`, which is the buffered mode here. This mode guarantees less than buffered commits
//! of other stores: a power cut may damage the file if the file system does not keep the order of
//! writes.
//!
//! LMDB has no cache of its own and reads the page cache, so `cache_bytes` has no effect. A load is
//! one transaction that appends.

use std::convert::Infallible;
use std::ops::Bound;

use anyhow::{Context as _, Result};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, RwTxn, WithoutTls};

use super::{HistoryTs, Peer, Read, Row, Session, StoreConfig, Write};

/// The map reserves address space, not memory.
const MAP_BYTES: usize = 64 << 30;
const READERS: u32 = 1024;

type Rows<'a> = Database<'a, Bytes, Bytes>;

pub struct Lmdb {
    env: Env<WithoutTls>,
}

impl Peer for Lmdb {
    #[allow(unsafe_code, reason = "heed has two safety conditions for its caller, and both are met")]
    fn open(config: &StoreConfig) -> Result<Self> {
        std::fs::create_dir_all(&config.dir)?;
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP_BYTES).max_readers(READERS);
        if !config.durable {
            // SAFETY: the file is not opened again after a power cut.
            unsafe { options.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: no other process opens or changes the files in this temporary directory.
        let env = unsafe { options.open(&config.dir)? };
        Ok(Self { env })
    }

    fn session(&self) -> Result<impl Session> {
        let txn = self.env.read_txn()?;
        let rows = self.env.open_databases_and_commit(txn, |opener, txn| {
            opener.open_database(txn, None).map(CommitOrAbort::<_, Infallible>::Commit)
        })?;
        let rows = rows.unwrap_commit().context("the unnamed database is missing")?;
        Ok(Client { env: &self.env, rows })
    }

    fn close(self) -> Result<()> {
        self.env.force_sync()?;
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct Client<'a> {
    env: &'a Env<WithoutTls>,
    rows: Rows<'a>,
}

impl Session for Client<'_> {
    fn reader(&mut self, _: Option<HistoryTs>) -> Result<impl Read> {
        Ok((self.env.read_txn()?, self.rows))
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        let mut txn = (self.env.write_txn()?, self.rows);
        work(&mut txn)?;
        Ok(txn.0.commit()?)
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for (key, value) in rows {
            self.rows.put_with_flags(&mut txn, PutFlags::APPEND, &key, &value)?;
        }
        txn.commit()?;
        Ok(self.env.force_sync()?)
    }
}

impl Read for (RoTxn<'_, WithoutTls>, Rows<'_>) {
    fn get(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool> {
        Ok(self.1.get(&self.0, key)?.map(visit).is_some())
    }

    fn scan(&self, from: &[u8], rows: usize, mut visit: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        let range = (Bound::Included(from), Bound::Unbounded);
        for row in self.1.range(&self.0, &range)?.take(rows) {
            let (key, value) = row?;
            visit(key, value);
            seen += 1;
        }
        Ok(seen)
    }
}

impl Write for (RwTxn<'_>, Rows<'_>) {
    fn get_for_update(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.1.get(&self.0, key)?.map(visit).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.1.put(&mut self.0, key, value)?)
    }
}
