//! Reading the log of earlier lives, which changes nothing.
//!
//! The newest segment with a header is the head of a chain, which is walked back from predecessor to predecessor until a segment
//! begins at or below what the tables have. Where the chain leads to a segment whose header is torn, the head came after a crash's
//! break, and an older head is taken. Then frames are read from the oldest on, each segment up to the end that its successor names,
//! until one is not whole: the break. It is the end of the log, unless a witness lies [beyond](super::loss_scan).
//!
//! Where no damage is done, a break costs nothing that was acknowledged, and the chain's oldest segment is always there: its header
//! was durable before the older ones were freed.

use std::collections::{BTreeMap, BTreeSet};

use super::frame::Frames;
use super::loss_scan::{Beyond, search};
use super::segment::{self, End, FORMAT, Found, Header};
use super::{Error, Lost};
use crate::disk::Disk;

/// The segments in a folder.
#[derive(Debug, Default)]
pub struct Names {
    pub segments: BTreeSet<u64>,
    /// Those that a loss has touched, under their other names.
    pub lost: BTreeMap<u64, String>,
}

/// A segment that was read.
#[derive(Debug)]
pub struct Link {
    pub header: Header,
    /// Where reading it ended.
    pub end: End,
}

/// What [`read`] has found: what a new life [begins](super::resume) on.
#[derive(Debug)]
pub struct Recovered {
    pub(super) identity: u64,
    pub(super) names: Names,
    /// Oldest first; the last is the one with the end.
    pub(super) links: Vec<Link>,
    /// The highest sequence that is known to be durable.
    pub(super) durable: u64,
    last: u64,
    lost: Option<Lost>,
}

impl Names {
    fn list<D: Disk>(disk: &D) -> Result<Self, Error> {
        let mut names = Self::default();
        for name in disk.list()? {
            if let Some(number) = segment::number(&name) {
                names.segments.insert(number);
            } else if let Some(number) = segment::lost_number(&name) {
                names.lost.insert(number, name);
            }
        }
        Ok(names)
    }

    /// A number that no segment has or has had.
    pub fn next_number(&self) -> u64 {
        let newest = self.segments.last().copied().unwrap_or(0);
        let lost = self.lost.keys().next_back().copied().unwrap_or(0);
        newest.max(lost).saturating_add(1)
    }

    /// The headers that are whole.
    fn headers<D: Disk>(&self, disk: &D, identity: u64) -> Result<BTreeMap<u64, Header>, Error> {
        let mut headers = BTreeMap::new();
        for number in &self.segments {
            let name = segment::name(*number);
            match segment::read_header(&disk.open(&name)?, *number)? {
                Found::Header(header) if header.identity == identity => _ = headers.insert(*number, header),
                Found::Header(header) => return Err(Error::Foreign { file: name, identity: header.identity }),
                Found::Newer(format) => return Err(Error::Newer { file: name, format, known: FORMAT }),
                Found::Nothing => {}
            }
        }
        Ok(headers)
    }
}

/// The segments to be read, oldest first.
#[derive(Debug, Default)]
struct Chain {
    headers: Vec<Header>,
    /// A needed segment whose file is not there.
    absent: Option<u64>,
}

impl Chain {
    fn find(headers: &BTreeMap<u64, Header>, names: &Names, position: u64) -> Self {
        let mut absent = None;
        let mut bound = u64::MAX;
        while let Some((_, head)) = headers.range(..bound).next_back() {
            let mut chain = vec![*head];
            let mut oldest = *head;
            loop {
                if oldest.first <= position.saturating_add(1) {
                    chain.reverse();
                    return Self { headers: chain, absent };
                }
                let Some(before) = oldest.predecessor else {
                    absent = Some(oldest.number);
                    bound = oldest.number;
                    break;
                };
                let Some(header) = headers.get(&before.number) else {
                    if !names.segments.contains(&before.number) {
                        absent = Some(before.number);
                    }
                    bound = before.number;
                    break;
                };
                chain.push(*header);
                oldest = *header;
            }
        }
        Self { headers: Vec::new(), absent }
    }

    /// Where the segment must end for the next one to continue it; `None`: it is the newest.
    fn limit(&self, index: usize) -> Option<End> {
        self.headers.get(index + 1)?.predecessor
    }
}

/// Hands each frame above the position, marks included, to `see` with its sequence. The position is up to where the tables have
/// everything. Only the log of a store whose creation was not finished may have no segment; elsewhere that is a loss.
///
/// A log that another process is writing can look damaged, so readers hold the store's lock.
pub fn read<D: Disk, E: From<Error>>(
    disk: &D,
    identity: u64,
    position: u64,
    is_new: bool,
    mut see: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<Recovered, E> {
    let names = Names::list(disk)?;
    let headers = names.headers(disk, identity)?;
    let chain = Chain::find(&headers, &names, position);
    let mut recovered = Recovered::new(identity, names, position);
    for (index, header) in chain.headers.iter().enumerate() {
        let limit = chain.limit(index);
        recovered.walk(disk, header, limit, position, &mut see)?;
        let end = recovered.links.last().map(|link| link.end);
        let continues =
            chain.headers.get(index + 1).is_some_and(|next| Some(next.first - 1) == end.map(|end| end.last));
        if limit != end || !continues {
            break;
        }
    }
    let is_damaged = chain.absent.is_some()
        || recovered.links.last().is_some_and(|link| link.end.last < position)
        || recovered.links.is_empty() && (!is_new || position > 0 || !headers.is_empty());
    recovered.judge(disk, position, is_damaged, chain.absent)?;
    Ok(recovered)
}

/// Of the oldest segment whose header can be read: the store that it belongs to, and the sequence of its first frame.
pub fn oldest<D: Disk>(disk: &D) -> Result<Option<(u64, u64)>, Error> {
    for number in &Names::list(disk)?.segments {
        if let Found::Header(header) = segment::read_header(&disk.open(&segment::name(*number))?, *number)? {
            return Ok(Some((header.identity, header.first)));
        }
    }
    Ok(None)
}

impl Recovered {
    /// A log without segments whose next frame follows the position.
    pub(super) fn new(identity: u64, names: Names, position: u64) -> Self {
        Self { identity, names, links: Vec::new(), durable: position, last: position, lost: None }
    }

    /// The sequence of the last frame, or the position that was asked for where no later one is.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// How many segments were read.
    pub fn segments(&self) -> usize {
        self.links.len()
    }

    /// Set if acknowledged frames are missing.
    pub fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    /// Where the next segment continues. Segments without frames are left out: the name of a life's first one may not be durable.
    pub(super) fn end(&self) -> Option<End> {
        let filled = self.links.iter().rev().find(|link| link.end.last >= link.header.first);
        filled.map(|link| link.end).or_else(|| self.links.first()?.header.predecessor)
    }

    fn walk<D: Disk, E: From<Error>>(
        &mut self,
        disk: &D,
        header: &Header,
        limit: Option<End>,
        position: u64,
        see: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let file = disk.open(&segment::name(header.number)).map_err(Error::from)?;
        let mut frames = Frames::new(&file, header, limit.map(|end| end.offset)).map_err(Error::from)?;
        let mut end = header.start();
        self.durable = self.durable.max(header.durable);
        while let Some(next) = end.last.checked_add(1)
            && let Some(frame) = frames.at(end.offset, next..=next).map_err(Error::from)?
        {
            self.durable = self.durable.max(frame.durable);
            (end.offset, end.last) = (frame.end, next);
            if next > position {
                see(next, frame.payload())?;
            }
        }
        self.last = self.last.max(end.last);
        self.links.push(Link { header: *header, end });
        Ok(())
    }

    fn judge<D: Disk>(&mut self, disk: &D, position: u64, is_damaged: bool, absent: Option<u64>) -> Result<(), Error> {
        let missing = self.last.saturating_add(1);
        let broken = self.links.last().map(|link| (&link.header, link.end));
        let beyond =
            if mutated!(WitnessIgnored) { Beyond::default() } else { search(disk, &self.names, broken, missing)? };
        if is_damaged || beyond.durable >= missing {
            let end = broken.map_or(End { number: 0, offset: 0, last: 0 }, |(_, end)| end);
            let needed = absent.or(self.names.segments.first().copied()).unwrap_or(1);
            let number = if broken.is_some() { end.number } else { needed };
            self.lost = Some(Lost {
                file: segment::name(number),
                offset: end.offset,
                first: missing,
                durable: beyond.durable.max(position),
                frames: beyond.frames,
                bytes: beyond.bytes,
                fingerprint: fingerprint([self.identity, end.number, end.offset, missing, position], beyond),
            });
        }
        Ok(())
    }
}

/// The same for the same loss, whatever of it an attempt to begin has renamed.
fn fingerprint(place: [u64; 5], beyond: Beyond) -> u64 {
    let mut bytes = Vec::with_capacity(64);
    for number in place.into_iter().chain([beyond.durable, beyond.frames, beyond.bytes]) {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let low = crc32c::crc32c(&bytes);
    u64::from(crc32c::crc32c_append(!low, &bytes)) << 32 | u64::from(low)
}
