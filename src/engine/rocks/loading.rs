//! Loading: a run of cells as a table of its own, which RocksDB takes as it is.
//!
//! That takes half of the time that its memtable and a flush take. The keys of such a table have no sequence of their own; the manifest has one
//! for the whole table. Where the manifest is lost, a repair could not tell which of two tables is newer. So a run is loaded only where
//! RocksDB has nothing at all, deletions included, and what is written there later has sequences.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use rocksdb::properties::{NUM_ENTRIES_ACTIVE_MEM_TABLE, NUM_IMMUTABLE_MEM_TABLE};
use rocksdb::{IngestExternalFileOptions, SstFileWriter};

use super::{Opened, RocksStorage, failed, name};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// The file of a table that is not RocksDB's yet. The next one takes its place.
const FILE: &str = "loading";
/// So much of it is read at once.
const READ_BYTES: usize = 256 << 10;

impl RocksStorage {
    /// See [`Storage::load`](crate::engine::storage::Storage::load).
    pub(super) fn load_run<'a>(
        &self,
        column: Column,
        (first, last): (&[u8], &[u8]),
        cells: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<bool, EngineError> {
        if !self.has_nothing_between(column, first, last)? {
            return Ok(false);
        }
        let file = self.database.borrow_owner().db.path().join(FILE);
        self.write_table(&file, cells).map_err(failed)?;
        read_ahead(&file);
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        self.database.with_dependent(|Opened { db, .. }, columns| {
            db.ingest_external_file_cf_opts(columns.get(column), &options, vec![file]).map_err(failed)
        })?;
        Ok(true)
    }

    fn write_table<'a>(
        &self,
        file: &Path,
        mut cells: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<(), rocksdb::Error> {
        let mut table = SstFileWriter::create(&self.table_options);
        table.open(file)?;
        cells.try_for_each(|(key, content)| table.put(key, content))?;
        table.finish()
    }

    /// No cell and no deletion. There is no other writer, and compactions bring nothing to where nothing was.
    fn has_nothing_between(&self, column: Column, first: &[u8], last: &[u8]) -> Result<bool, EngineError> {
        self.database.with_dependent(|Opened { db, .. }, columns| {
            for property in [NUM_IMMUTABLE_MEM_TABLE, NUM_ENTRIES_ACTIVE_MEM_TABLE] {
                if db.property_int_value_cf(columns.get(column), property).map_err(failed)? != Some(0) {
                    return Ok(false);
                }
            }
            let files = db.live_files().map_err(failed)?;
            let mut own = files.iter().filter(|file| file.column_family_name == name(column));
            // A file whose borders are not known may have anything.
            let is_apart = |start: &[u8], end: &[u8]| end < first || last < start;
            Ok(own.all(|file| {
                file.start_key.as_deref().zip(file.end_key.as_deref()).is_some_and(|(s, e)| is_apart(s, e))
            }))
        })
    }
}

/// RocksDB's writer of such tables drops them from the kernel's cache, and what was just loaded is mostly read soon. A failure costs
/// time only.
fn read_ahead(file: &Path) {
    let read = File::open(file).and_then(|file| {
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        io::copy(&mut file, &mut io::sink())
    });
    drop(read);
}

/// Removes what a process has left that was killed. It does no harm, so a failure to remove it is no error.
pub fn remove_unfinished(tables: &Path) {
    let _ = std::fs::remove_file(tables.join(FILE));
}

#[cfg(test)]
mod tests {
    use crate::engine::Compression;
    use crate::engine::folder::marker::claim;
    use crate::engine::rocks::{RocksSetup, RocksStorage};
    use crate::engine::storage::{Batch as _, Column, Reader as _, Storage as _};

    #[test]
    fn a_run_is_loaded_where_there_is_nothing_and_only_there() {
        let folder = tempfile::tempdir().unwrap();
        let setup = RocksSetup { cache: 1 << 20, write_buffers: 1 << 20, compression: Compression::default() };
        let marker = claim(folder.path()).unwrap().marker;
        let path = folder.path().join("tables");
        std::fs::create_dir(&path).unwrap();
        let tables = RocksStorage::open(&path, setup, true, marker).unwrap();
        let load = |first: u32, last: u32, value: &[u8]| {
            let keys: Vec<[u8; 4]> = (first..=last).map(u32::to_be_bytes).collect();
            let cells = keys.iter().map(|key| (&key[..], value));
            tables.load(Column::Write, (&first.to_be_bytes(), &last.to_be_bytes()), cells).unwrap()
        };
        let found = |key: u32| tables.get(Column::Write, &key.to_be_bytes(), <[u8]>::to_vec).unwrap();

        let before = tables.view().unwrap();
        assert!(load(100, 200, b"one"));
        assert_eq!(before.get(Column::Write, &150_u32.to_be_bytes(), |_| ()).unwrap(), None, "an older view");
        assert_eq!((found(99), found(100), found(200)), (None, Some(b"one".to_vec()), Some(b"one".to_vec())));
        for (first, last) in [(0, 100), (150, 160), (200, 300), (0, 300)] {
            assert!(!load(first, last, b"two"), "{first}..={last}");
        }
        assert!(load(201, 300, b"two") && load(0, 99, b"three"));

        // What is in a memtable counts, too, and so does a deletion.
        let mut batch = tables.batch(0);
        batch.delete(Column::Write, &500_u32.to_be_bytes());
        tables.write(batch).unwrap();
        assert!(!load(1000, 1100, b"four"));
        tables.sync().unwrap();
        assert!(load(1000, 1100, b"four") && !load(450, 550, b"five"));
        assert_eq!((found(0), found(300), found(500)), (Some(b"three".to_vec()), Some(b"two".to_vec()), None));
        assert!(!path.join(super::FILE).exists());
    }
}
