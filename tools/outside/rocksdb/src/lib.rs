//! `RocksDB`'s transaction tests, by behaviour: see `tests/suite`.
