//! What a verification reports.

use crate::engine::DataLoss;
use crate::engine::storage::Column;
use crate::row::RowKey;

/// The maximum number of issues in a report; further issues are only counted.
pub(in crate::store) const ISSUES_MAX: usize = 1000;

/// What was checked and what was found, so far or in total: see
/// [`Store::verify`](crate::Store::verify).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The number of newest versions of rows, including tombstones.
    pub versions: u64,
    /// The number of row locks.
    pub row_locks: u64,
    /// The number of large values, which are stored apart from their versions.
    pub out_of_line_values: u64,
    /// The number of replaced versions and transaction records.
    pub history_entries: u64,
    /// The number of entries of the store's metadata.
    pub meta_entries: u64,
    /// The size of all checked cells, keys included, in bytes.
    pub bytes: u64,
    /// The number of issues.
    pub issue_count: u64,
    /// The first thousand issues.
    pub issues: Vec<IntegrityIssue>,
    /// Accepted losses of commits: see [`Store::data_losses`](crate::Store::data_losses). Not
    /// counted as issues.
    pub data_losses: Vec<DataLoss>,
}

/// A violated invariant, or unreadable data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IntegrityIssue {
    /// The column.
    pub column: Column,
    /// The row, if the issue is about one.
    pub row: Option<RowKey>,
    /// The name of the row's keyspace, if it has one.
    pub keyspace: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for IntegrityIssue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} column", self.column)?;
        if let Some(row) = &self.row {
            write!(f, ", row {}", row_text(row, self.keyspace.as_deref()))?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A readable form of a row: with the name of its keyspace, or the id if there is no name.
pub(super) fn row_text(row: &RowKey, keyspace: Option<&str>) -> String {
    keyspace.map_or_else(|| format!("{row:?}"), |keyspace| format!("{keyspace}/{}", row.user_key().escape_ascii()))
}

impl VerifyReport {
    /// Whether there are no issues and no accepted data losses.
    pub fn is_ok(&self) -> bool {
        self.issue_count == 0 && self.data_losses.is_empty()
    }

    /// The number of cells checked.
    pub fn cells(&self) -> u64 {
        self.versions + self.row_locks + self.out_of_line_values + self.history_entries + self.meta_entries
    }
}
