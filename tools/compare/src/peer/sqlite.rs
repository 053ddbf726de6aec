//! SQLite in WAL mode, through rusqlite.
//!
//! The settings follow sqlite.org, "Write-Ahead Logging" and the pages of the pragmas.
//! `synchronous=FULL` syncs the log at each commit. `NORMAL` syncs the log only before a
//! checkpoint, so a power cut loses the end of the log and nothing else.
//!
//! SQLite has one writer at a time, so all clients write through one connection behind a mutex.
//! With a connection per client, waiting clients would poll (`busy_timeout`), and each commit would
//! invalidate the caches of all other connections. For reads each client has its own connection and
//! a share of the cache. Pages are mapped up to the size of the cache ("Memory-Mapped I/O").
//! Statements are prepared once. A load is one transaction.

use anyhow::Result;
use parking_lot::Mutex;
use rusqlite::{CachedStatement, Connection, OptionalExtension, TransactionBehavior};

use super::{HistoryTs, Peer, Read, Row, Session, StoreConfig, Write};

const GET: &str = "SELECT value FROM rows WHERE key = ?1";
const PUT: &str =
    "INSERT INTO rows (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
const SCAN: &str = "SELECT key, value FROM rows WHERE key >= ?1 ORDER BY key LIMIT ?2";

pub struct Sqlite {
    writer: Mutex<Connection>,
    file: std::path::PathBuf,
    reader_cache: usize,
    map_bytes: usize,
}

impl Peer for Sqlite {
    fn open(config: &StoreConfig) -> Result<Self> {
        std::fs::create_dir_all(&config.dir)?;
        let file = config.dir.join("rows.sqlite");
        let writer = Connection::open(&file)?;
        writer.pragma_update(None, "journal_mode", "WAL")?;
        writer.pragma_update(None, "synchronous", if config.durable { "FULL" } else { "NORMAL" })?;
        tune(&writer, config.write_buffer_bytes, config.cache_bytes)?;
        writer.execute_batch(
            "CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
        )?;
        let reader_cache = config.cache_bytes / config.clients.max(1);
        Ok(Self { writer: Mutex::new(writer), file, reader_cache, map_bytes: config.cache_bytes })
    }

    fn session(&self) -> Result<impl Session> {
        let reader = Connection::open(&self.file)?;
        tune(&reader, self.reader_cache, self.map_bytes)?;
        Ok(Client { store: self, reader })
    }

    fn close(self) -> Result<()> {
        self.writer.into_inner().close().map_err(|(_, error)| error.into())
    }
}

/// Sets the sizes of the page cache and of the memory map. SQLite takes a negative `cache_size` as
/// a number of KiB.
fn tune(connection: &Connection, cache_bytes: usize, map_bytes: usize) -> Result<()> {
    connection.pragma_update(None, "cache_size", -i64::try_from(cache_bytes >> 10)?)?;
    connection.pragma_update(None, "mmap_size", i64::try_from(map_bytes)?)?;
    Ok(())
}

struct Client<'a> {
    store: &'a Sqlite,
    reader: Connection,
}

impl Session for Client<'_> {
    fn reader(&mut self, _: Option<HistoryTs>) -> Result<impl Read> {
        let txn = self.reader.unchecked_transaction()?;
        let get = std::cell::RefCell::new(self.reader.prepare_cached(GET)?);
        Ok(View { get, txn })
    }

    fn transact(&mut self, work: &mut dyn FnMut(&mut dyn Write) -> Result<()>) -> Result<()> {
        let mut writer = self.store.writer.lock();
        let txn = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut statements = (txn.prepare_cached(GET)?, txn.prepare_cached(PUT)?);
            work(&mut statements)?;
        }
        Ok(txn.commit()?)
    }

    fn load(&mut self, rows: impl Iterator<Item = Row>) -> Result<()> {
        let mut writer = self.store.writer.lock();
        let txn = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut put = txn.prepare_cached(PUT)?;
            for (key, value) in rows {
                put.execute((&key[..], &value[..]))?;
            }
        }
        txn.commit()?;
        // Buffered commits are not synced yet; a checkpoint syncs them.
        Ok(writer.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(()))?)
    }
}

struct View<'a> {
    get: std::cell::RefCell<CachedStatement<'a>>,
    /// Keeps the view consistent.
    txn: rusqlite::Transaction<'a>,
}

impl Read for View<'_> {
    fn get(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool> {
        let mut get = self.get.borrow_mut();
        let mut found = get.query([key])?;
        let Some(row) = found.next()? else { return Ok(false) };
        visit(row.get_ref(0)?.as_blob()?);
        Ok(true)
    }

    fn scan(&self, from: &[u8], rows: usize, mut visit: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut scan = self.txn.prepare_cached(SCAN)?;
        let mut found = scan.query((from, i64::try_from(rows)?))?;
        let mut seen = 0;
        while let Some(row) = found.next()? {
            visit(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?);
            seen += 1;
        }
        Ok(seen)
    }
}

impl Write for (CachedStatement<'_>, CachedStatement<'_>) {
    fn get_for_update(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let show = |row: &rusqlite::Row| {
            visit(row.get_ref(0)?.as_blob()?);
            Ok(())
        };
        Ok(self.0.query_row([key], show).optional()?.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.1.execute((key, value))?;
        Ok(())
    }
}
