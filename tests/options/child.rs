//! One store with one option at one value, in a process of its own: a bad value might end the
//! process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use percolite::engine::EngineError;
use percolite::engine::directory::{DirectoryOptions, DirectoryStorage};
use percolite::engine::sim::SimStorage;
use percolite::env::SystemEnv;
use percolite::oracle::MemoryOracle;
use percolite::{
    Builder, Compression, Durability, Error, ErrorKind, Keyspace, LockOptions, Result, RetryPolicy, SharedConfig,
    SleepingRowLockWaiter, Store, StoreStatus, Timestamp, TxnOptions,
};

pub const OPTION: &str = "PERCOLITE_TEST_OPTION";
pub const VALUE: &str = "PERCOLITE_TEST_VALUE";
pub const DIRECTORY: &str = "PERCOLITE_TEST_DIRECTORY";

/// The exit code of a refused option. The error is printed.
pub const REFUSED: i32 = 42;
pub const FAILED: i32 = 1;

const BATCHES: u8 = 20;
const BATCH_ROWS: u8 = 10;

/// The option and the value to try.
struct Case {
    option: String,
    value: u128,
    directory: PathBuf,
}

/// Runs the case that the environment variables name. Returns `None` in the parent process, which
/// has no such variables.
pub fn run() -> Option<ExitCode> {
    let value = |name| std::env::var(name).ok();
    let case = Case {
        option: value(OPTION)?,
        value: value(VALUE)?.parse().unwrap(),
        directory: PathBuf::from(std::env::var_os(DIRECTORY)?),
    };
    let code = match case.open() {
        Ok(()) => 0,
        Err(error) if matches!(error.kind(), ErrorKind::InvalidArgument(_)) => {
            println!("{error}");
            case.refused_everywhere(&error.to_string());
            REFUSED
        }
        Err(error) => {
            println!("{error}");
            FAILED
        }
    };
    Some(ExitCode::from(code as u8))
}

pub fn duration(nanoseconds: u128) -> Duration {
    Duration::new((nanoseconds / 1_000_000_000) as u64, (nanoseconds % 1_000_000_000) as u32)
}

impl Case {
    fn path(&self) -> PathBuf {
        self.directory.join("store")
    }

    fn is(&self, option: &str) -> bool {
        self.option.starts_with(option)
    }

    fn builder(&self) -> Builder {
        let builder = Store::builder();
        let size = || usize::try_from(self.value).unwrap();
        match self.option.as_str() {
            "memory_budget" => builder.memory_budget(size()),
            "block_cache_bytes" => builder.block_cache_bytes(size()),
            "write_buffer_bytes" => builder.write_buffer_bytes(size()),
            "max_transaction_bytes" => builder.max_transaction_bytes(size()),
            "large_transaction_bytes" => builder.large_transaction_bytes(size()),
            "conflict_set_rows" => builder.conflict_set_rows(size()),
            "admission_limit" => builder.admission_limit(size()),
            "retry_policy.max_attempts" | "retry_policy.timeout" => builder.retry_policy(self.limits()),
            "max_snapshot_age" => builder.max_snapshot_age(duration(self.value)),
            "history_retention" => builder.history_retention(duration(self.value)),
            "slow_transaction_threshold" => builder.slow_transaction_threshold(duration(self.value)),
            "status_file_interval" => builder.status_file_interval(duration(self.value)),
            "application_name" => builder.application_name(&"x".repeat(size())),
            _ => builder,
        }
    }

    fn limits(&self) -> RetryPolicy {
        let usual = RetryPolicy::default();
        if self.is("retry_policy.max_attempts") {
            usual.max_attempts(u32::try_from(self.value).unwrap())
        } else {
            usual.timeout(duration(self.value))
        }
    }

    fn options(&self) -> TxnOptions {
        match self.option.as_str() {
            "retry_policy.max_attempts of a transaction" | "retry_policy.timeout of a transaction" => {
                TxnOptions::default().retry_policy(self.limits())
            }
            "label of a transaction" => TxnOptions::with_label("\u{e9}\n\0".repeat(self.value as usize).leak()),
            _ => TxnOptions::default(),
        }
    }

    fn shared_config(&self) -> SharedConfig {
        let ttl = if self.is("ttl_ms") { duration(self.value) } else { Duration::from_secs(3) };
        let runtime = || Arc::new(SystemEnv::default());
        SharedConfig {
            engine: Arc::new(SimStorage::new().shared_engine()),
            oracle: Arc::new(MemoryOracle::new(runtime())),
            waiter: Arc::new(SleepingRowLockWaiter(runtime())),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap(),
        }
    }

    /// Opens, uses, copies, repairs and reopens a store.
    fn open(&self) -> Result<()> {
        let path = self.path();
        let store = self.builder().open(&path)?;
        let rows = self.write(&store)?;
        self.conflict(&store, &rows)?;
        self.lock(&store)?;
        self.read_history(&store, &rows);
        let status: StoreStatus = serde_json::from_slice(&serde_json::to_vec(&store.status()).unwrap()).unwrap();
        assert_eq!(status.stats.commits(), store.stats().commits());
        // A checkpoint flushes everything into tables.
        let copy = self.directory.join("copy");
        store.checkpoint(&copy)?;
        let stats = store.engine_stats()?;
        assert!(stats.columns.iter().map(|column| column.sst_bytes).sum::<u64>() > 1000, "{stats:?}");
        store.close()?;
        for builder in [self.builder(), self.builder().read_only(true)] {
            read_back(&builder.open(&path)?)?;
        }
        read_back(&Store::open(&copy)?)?;
        let repaired = self.directory.join("repaired");
        assert!(self.builder().repair(&copy, &repaired, |_| ())?.is_complete());
        let engine = self.builder().durable_engine(&repaired)?;
        read_back(&self.builder().open_engine(engine)?)?;
        for store in [self.builder().in_memory()?, self.builder().open_shared(self.shared_config())?] {
            let rows = self.write(&store)?;
            self.conflict(&store, &rows)?;
            read_back(&store)?;
        }
        Ok(())
    }

    fn write(&self, store: &Store) -> Result<Keyspace> {
        let rows = store.keyspace("rows")?;
        for batch in 0..BATCHES {
            let durability = Some(if batch == 0 { Durability::Sync } else { Durability::Buffered });
            let options = self.options().durability(durability);
            store.transact_with(options, |txn| {
                (0..BATCH_ROWS).try_for_each(|row| txn.put(&rows, [batch, row], [row; 1000]))?;
                let savepoint = txn.savepoint();
                txn.put(&rows, [batch, 0], "taken back")?;
                txn.rollback_to(savepoint)?;
                txn.delete(&rows, [batch, 1])
            })?;
        }
        let longest = vec![7; percolite::MAX_KEY_BYTES];
        let mut txn = store.begin_with(self.options())?;
        let savepoint = txn.savepoint();
        txn.put(&rows, &longest, "")?;
        txn.rollback_to(savepoint)?;
        txn.commit()?;
        Ok(rows)
    }

    /// Runs a transaction whose first attempt conflicts.
    fn conflict(&self, store: &Store, rows: &Keyspace) -> Result<()> {
        let mut attempts = 0_u32;
        let done = store.transact_with(self.options(), |txn| {
            attempts += 1;
            txn.get(rows, "contended")?;
            if attempts == 1 {
                store.transact(|rival| rival.put(rows, "contended", "rival"))?;
            }
            txn.put(rows, "contended", "last")
        });
        match done {
            Ok(()) => assert!(attempts > 1),
            Err(error) => match error.kind() {
                ErrorKind::RetriesExhausted { .. } if self.is("retry_policy.") => {
                    assert!(self.is("retry_policy.timeout") || self.value == u128::from(attempts), "{error}");
                    store.transact_with(self.options(), |txn| txn.put(rows, "contended", "last"))?;
                }
                // The background worker has expired the attempt's read view.
                ErrorKind::SnapshotTooOld(_) if self.is("max_snapshot_age") => {
                    store.transact(|txn| txn.put(rows, "contended", "last"))?;
                }
                _ => return Err(error),
            },
        }
        Ok(())
    }

    fn lock(&self, store: &Store) -> Result<()> {
        let options = match self.option.as_str() {
            "lease" => LockOptions::exclusive().lease(duration(self.value)),
            "semaphore" => LockOptions::semaphore(u32::try_from(self.value).unwrap()),
            _ => return Ok(()),
        };
        match store.lock_with("rows", options) {
            Ok(guard) => guard.release(),
            // A short lease may expire before its row is durable.
            Err(error) if matches!(error.kind(), ErrorKind::LockLost(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads as of timestamps from the lowest to the highest.
    fn read_history(&self, store: &Store, rows: &Keyspace) {
        let before = store.snapshot().unwrap().read_ts();
        store.transact(|txn| txn.put(rows, "contended", "last")).unwrap();
        let has_history = self.is("history_retention") && duration(self.value) > Duration::from_secs(3600);
        for at in [Timestamp::ZERO, Timestamp::from_u64(1), before, Timestamp::MAX.previous(), Timestamp::MAX] {
            match store.snapshot_at(at) {
                Ok(past) => {
                    assert!(self.is("history_retention") && at == before, "{at}");
                    assert_eq!(past.get(rows, "contended").unwrap().as_deref(), Some(&b"last"[..]));
                }
                Err(error) => {
                    let is_unreadable =
                        matches!(error.kind(), ErrorKind::InvalidArgument(_) | ErrorKind::SnapshotTooOld(_));
                    assert!(is_unreadable && !(has_history && at == before), "{at}: {error}");
                }
            }
        }
    }

    /// Every call that takes the option refuses it with this message. A refused opening creates
    /// nothing.
    fn refused_everywhere(&self, message: &str) {
        let same = |error: Error| {
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
            assert_eq!(error.to_string(), message);
        };
        if self.is("retry_policy.") && self.option.ends_with("of a transaction") {
            let store = Store::in_memory().unwrap();
            same(store.begin_with(self.options()).map(drop).unwrap_err());
            same(store.transact_with(self.options(), |_| Ok::<(), Error>(())).unwrap_err());
            return;
        }
        if self.is("lease") || self.is("semaphore") {
            let store = Store::in_memory().unwrap();
            same(self.lock(&store).unwrap_err());
            assert!(store.is_free_lock("rows").unwrap());
            return;
        }
        same(self.builder().open_shared(self.shared_config()).map(drop).unwrap_err());
        if self.is("ttl_ms") {
            return;
        }
        let path = self.path();
        same(self.builder().read_only(true).open(&path).map(drop).unwrap_err());
        same(self.builder().durable_engine(&path).map(drop).unwrap_err());
        same(self.builder().read_only(true).durable_engine(&path).map(drop).unwrap_err());
        same(self.builder().repair(&path, self.directory.join("repaired"), |_| ()).map(drop).unwrap_err());
        same(self.builder().in_memory().map(drop).unwrap_err());
        same(self.builder().open_in_memory(&SimStorage::new()).map(drop).unwrap_err());
        same(self.builder().open_engine(Arc::new(SimStorage::new().exclusive_engine())).map(drop).unwrap_err());
        self.refused_by_the_engine(&path, message);
        assert_eq!(std::fs::read_dir(&self.directory).unwrap().count(), 0, "something was created");
    }

    fn refused_by_the_engine(&self, path: &Path, message: &str) {
        let value = usize::try_from(self.value).unwrap_or_default();
        let usual = DirectoryOptions {
            block_cache_bytes: 4 << 20,
            write_buffer_bytes: 4 << 20,
            compression: Compression::Lz4,
            accept_data_loss: None,
        };
        let setup = match self.option.as_str() {
            "block_cache_bytes" => DirectoryOptions { block_cache_bytes: value, ..usual },
            "write_buffer_bytes" => DirectoryOptions { write_buffer_bytes: value, ..usual },
            _ => return,
        };
        for open in [DirectoryStorage::open, DirectoryStorage::open_read_only] {
            let error = open(path, setup).map(drop).unwrap_err();
            assert!(matches!(error, EngineError::InvalidOption(_)), "{error}");
            assert_eq!(error.to_string(), message);
        }
    }
}

fn read_back(store: &Store) -> Result<()> {
    let (rows, snapshot) = (store.existing_keyspace("rows")?, store.snapshot()?);
    for batch in 0..BATCHES {
        for row in 0..BATCH_ROWS {
            let expected = (row != 1).then(|| [row; 1000].into());
            assert_eq!(snapshot.get(&rows, [batch, row])?, expected, "{batch} {row}");
        }
    }
    assert_eq!(snapshot.get(&rows, "contended")?.as_deref(), Some(&b"last"[..]));
    let whole = usize::from(BATCHES) * usize::from(BATCH_ROWS - 1) + 1;
    assert_eq!(snapshot.range(&rows, ..).filter(Result::is_ok).count(), whole);
    Ok(())
}
