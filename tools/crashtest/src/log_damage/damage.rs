//! Damages to whole files of a log.

use std::fmt;

/// The number of segments with frames.
pub const SEGMENTS: usize = 3;

/// A damage. Segments are counted from the newest, 0, back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    None,
    Cut(usize, usize),
    Missing(usize),
    /// Missing, with all later segments and the spare one.
    Gone(usize),
    /// Renamed to the next segment's name.
    Next(usize),
    /// Renamed to a name that is not a segment's.
    Away(usize),
    /// Swapped with the segment before.
    Swapped(usize),
    /// Replaced by a copy of the segment before.
    Before(usize),
    /// Replaced by a spare segment.
    Spare(usize),
    /// Both headers are damaged.
    Headers(usize),
    /// The newest segment is replaced by the copy from after one of its rows.
    Older(usize),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "none"),
            Self::Cut(segment, length) => write!(f, "cut-{segment}-{length}"),
            Self::Missing(segment) => write!(f, "missing-{segment}"),
            Self::Gone(segment) => write!(f, "gone-{segment}"),
            Self::Next(segment) => write!(f, "next-{segment}"),
            Self::Away(segment) => write!(f, "away-{segment}"),
            Self::Swapped(segment) => write!(f, "swapped-{segment}"),
            Self::Before(segment) => write!(f, "before-{segment}"),
            Self::Spare(segment) => write!(f, "spare-{segment}"),
            Self::Headers(segment) => write!(f, "headers-{segment}"),
            Self::Older(copy) => write!(f, "older-{copy}"),
        }
    }
}

impl Damage {
    /// The damage with this name.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('-');
        let (kind, first, second) = (words.next()?, words.next(), words.next());
        let number = |word: Option<&str>| word?.parse().ok();
        let of_segment = |make: fn(usize) -> Self| number(first).filter(|segment| *segment < SEGMENTS).map(make);
        match kind {
            "none" => Some(Self::None),
            "cut" => Some(Self::Cut(number(first).filter(|segment| *segment < SEGMENTS)?, number(second)?)),
            "missing" => of_segment(Self::Missing),
            "gone" => of_segment(Self::Gone),
            "next" => of_segment(Self::Next),
            "away" => of_segment(Self::Away),
            "swapped" => of_segment(Self::Swapped),
            "before" => of_segment(Self::Before),
            "spare" => of_segment(Self::Spare),
            "headers" => of_segment(Self::Headers),
            "older" => number(first).map(Self::Older),
            _ => None,
        }
    }
}
