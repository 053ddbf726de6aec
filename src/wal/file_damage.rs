//! Damage to a whole file of the log; [`file_check`](super::file_check) says which there is.

use std::fmt;

use super::segment;

/// Damage that no crash leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileDamage {
    /// There is a later segment, but not this one.
    Missing { number: u64, later: String },
    /// The file is shorter than it was when its header, or the next file, was written.
    Cut { number: u64, bytes: u64, durable_bytes: u64 },
    /// The file has the header of another segment.
    Misnamed { number: u64, header: u64 },
    /// The header of this segment was durable, and can no longer be found.
    HeaderLost(u64),
}

impl fmt::Display for FileDamage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = segment::segment_file_name;
        match self {
            Self::Missing { number, later } => write!(
                formatter,
                "{} is missing, though {later} is there; if that is not a file of this store, move it away",
                name(*number)
            ),
            Self::Cut { number, bytes, durable_bytes } => {
                write!(formatter, "{} has {bytes} bytes, and had at least {durable_bytes}", name(*number))
            }
            Self::Misnamed { number, header } => {
                write!(formatter, "{} has the header of {}", name(*number), name(*header))
            }
            Self::HeaderLost(number) => write!(formatter, "{} is missing or has no valid header", name(*number)),
        }
    }
}
