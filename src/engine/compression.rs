//! Compression of the tables.

/// How tables are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// No compression: for values that are already compressed or encrypted.
    None,
    /// LZ4, which usually saves more time than it costs.
    #[default]
    Lz4,
}
