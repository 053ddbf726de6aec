//! Dumps: everything that a snapshot shows, as a stream of bytes, and back.
//!
//! A dump is a line of text and then blocks. It holds rows, not versions, so it can be restored by any later version of this
//! program and into a store of any shape.
//!
//! ```text
//!   percolite dump, format 1\n
//!   block*      length (4, big-endian) ‖ CRC-32 of number and record (4, big-endian) ‖ record
//! ```
//!
//! A block's number, counted from 0, is part of its checksum (8, big-endian), so blocks that were lost, repeated or exchanged
//! are found out, too. The first block says when the snapshot was taken, the last how much there was before it.
//!
//! **A restore happens as a whole or not at all.** The rows go into keyspaces that have a number but no name yet, and stand in
//! the catalog among those that were dropped; one transaction at the end gives them their names. Whatever ends a restore early,
//! a damaged dump or a power cut, the background erases what there is of it.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::catalog::Unnamed;
use super::proceed::{Proceed, go_on};
use super::{Durability, Snapshot, Store, TxnOptions, VALUE_MAX_BYTES};
use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::row::Bytes;
use crate::timestamp::Timestamp;

const HEADER: &str = "percolite dump, format ";
const FORMAT: u32 = 1;
/// The longest header line of any format.
const HEADER_MAX_BYTES: usize = 64;
/// A block of rows ends when it has so many bytes or rows.
const BLOCK_BYTES: usize = 256 << 10;
const BLOCK_ROWS: usize = 4096;
/// No block is longer: one row of the greatest size on top of a full block.
const BLOCK_BYTES_MAX: usize = VALUE_MAX_BYTES + 2 * BLOCK_BYTES + 16 * BLOCK_ROWS;

#[derive(Serialize, Deserialize)]
enum Block {
    Begin { read_ts: Timestamp },
    Keyspace(String),
    Rows(Vec<(Bytes, Bytes)>),
    End { keyspaces: u64, rows: u64 },
}

/// How much a dump or a restore has seen so far, or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dumped {
    /// Everything committed at or below this is in the dump.
    pub read_ts: Timestamp,
    /// Keyspaces, empty ones included.
    pub keyspaces: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// What a restore does about keyspaces that are there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// A store that has any keyspace is left as it is, and the restore is refused.
    #[default]
    Refuse,
    /// Those of a name that is in the dump are dropped in the moment in which the restored ones take their place; others stay.
    Replace,
}

impl Snapshot {
    /// Writes everything that the snapshot shows, every keyspace of it, in a form that [`Store::restore`] reads. `progress` is
    /// called after each block, and may [stop](Proceed) it.
    ///
    /// It takes memory for one block, about the longest value. A dump that takes longer than
    /// [`Builder::age_max`](super::Builder::age_max) of a store that is written to meanwhile ends with
    /// [`ErrorKind::SnapshotTooOld`]; that of one opened [read-only](super::Builder::read_only) never does.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{Existing, Store};
    /// let store = Store::in_memory()?;
    /// let towns = store.keyspace("towns")?;
    /// store.transact(|txn| txn.put(&towns, "Oslo", "717710"))?;
    ///
    /// let mut dump = Vec::new();
    /// store.snapshot()?.dump(&mut dump, |_| ())?;
    ///
    /// let copy = Store::in_memory()?;
    /// let restored = copy.restore(dump.as_slice(), Existing::Refuse, |_| ())?;
    /// assert_eq!((restored.keyspaces, restored.rows), (1, 1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when `to` does not take it, [`ErrorKind::Stopped`], and those of reading. What was written until then is no whole dump, and
    /// restoring it is refused.
    pub fn dump<P: Proceed>(&self, to: impl Write, mut progress: impl FnMut(&Dumped) -> P) -> Result<Dumped> {
        let mut progress = |so_far: &Dumped| {
            let stopped = || format!("stopped after {} rows; what was written is no whole dump", so_far.rows);
            go_on(progress(so_far), stopped)
        };
        let mut out = Blocks { stream: to, number: 0, buffer: Vec::new() };
        let mut dumped = Dumped { read_ts: self.read_ts(), ..Dumped::default() };
        out.stream.write_all(format!("{HEADER}{FORMAT}\n").as_bytes()).map_err(unwritten)?;
        out.write(&Block::Begin { read_ts: dumped.read_ts })?;
        for keyspace in self.keyspaces()? {
            out.write(&Block::Keyspace(keyspace.name().into()))?;
            dumped.keyspaces += 1;
            let (mut rows, mut bytes) = (Vec::new(), 0);
            for row in self.range(&keyspace, ..) {
                let (key, value) = row?;
                bytes += key.len() + value.len();
                dumped.rows += 1;
                dumped.bytes += (key.len() + value.len()) as u64;
                rows.push((key.into(), value.into()));
                if bytes >= BLOCK_BYTES || rows.len() >= BLOCK_ROWS {
                    out.write(&Block::Rows(std::mem::take(&mut rows)))?;
                    bytes = 0;
                    progress(&dumped)?;
                }
            }
            if !rows.is_empty() {
                out.write(&Block::Rows(rows))?;
            }
            progress(&dumped)?;
        }
        out.write(&Block::End { keyspaces: dumped.keyspaces, rows: dumped.rows })?;
        out.stream.flush().map_err(unwritten)?;
        Ok(dumped)
    }
}

impl Store {
    /// Puts everything that a [dump](Snapshot::dump) holds into this store: all of it, durably, or nothing. Every timestamp that
    /// the store hands out from here on is greater than those in the store that was dumped. `progress` is called after each block,
    /// and may [stop](Proceed) it: nothing is restored then.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] when the dump is damaged or was cut off, [`ErrorKind::InvalidArgument`] when it is none or of
    /// another format, when the store has keyspaces and [`Existing::Refuse`] is said, when it is read-only or shared with other
    /// processes; [`ErrorKind::Io`] when `from` cannot be read; [`ErrorKind::Stopped`]; and those of a commit.
    pub fn restore<P: Proceed>(
        &self,
        from: impl Read,
        existing: Existing,
        mut progress: impl FnMut(&Dumped) -> P,
    ) -> Result<Dumped> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        let Some(embedded) = &self.inner.embedded else {
            return Err(Error::invalid("an engine that others use cannot be restored to"));
        };
        if existing == Existing::Refuse && !self.keyspaces()?.is_empty() {
            return Err(Error::invalid(
                "the store is not empty: restore into a new one, or say that keyspaces may be replaced",
            ));
        }
        let mut from = Blocks { stream: from, number: 0, buffer: Vec::new() };
        from.read_header()?;
        let Block::Begin { read_ts } = from.read()? else { return Err(from.damaged("does not say when it was taken")) };
        embedded.pipeline().advance_past(read_ts)?;
        let mut restored = Dumped { read_ts, ..Dumped::default() };
        let mut unnamed = Unnamed::new(self);
        let buffered = TxnOptions { durability: Some(Durability::Buffered), ..TxnOptions::default() };
        loop {
            match from.read()? {
                Block::Begin { .. } => return Err(from.damaged("begins a second time")),
                Block::Keyspace(name) => {
                    if unnamed.has(&name) {
                        return Err(from.damaged(&format!("has the keyspace {name:?} a second time")));
                    }
                    unnamed.add(&name)?;
                    restored.keyspaces += 1;
                }
                Block::Rows(rows) => {
                    let keyspace = unnamed.last().ok_or_else(|| from.damaged("has rows before any keyspace"))?;
                    self.transact_with(buffered, |txn| {
                        // Nobody else knows the keyspace. What memory has forgotten must not be taken for somebody who does.
                        txn.write_blindly();
                        rows.iter().try_for_each(|(key, value)| txn.put(&keyspace, &key.0, &value.0))
                    })?;
                    crash_point!(RestoreBetween);
                    restored.rows += rows.len() as u64;
                    restored.bytes += rows.iter().map(|(key, value)| (key.0.len() + value.0.len()) as u64).sum::<u64>();
                }
                Block::End { keyspaces, rows } => {
                    if (keyspaces, rows) != (restored.keyspaces, restored.rows) {
                        return Err(from.damaged("does not hold as much as it says"));
                    }
                    from.expect_end()?;
                    crash_point!(RestoreAll);
                    unnamed.name_all(existing)?;
                    crash_point!(RestoreNamed);
                    return Ok(restored);
                }
            }
            go_on(progress(&restored), || format!("stopped after {} rows; nothing was restored", restored.rows))?;
        }
    }
}

/// A stream of blocks.
struct Blocks<S> {
    stream: S,
    /// Of the next block.
    number: u64,
    buffer: Vec<u8>,
}

impl<S> Blocks<S> {
    fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.number.to_be_bytes());
        hasher.update(&self.buffer);
        hasher.finalize()
    }

    /// About the block before this one.
    fn damaged(&self, what: &str) -> Error {
        ErrorKind::Corruption(format!("the dump {what} (block {}), so nothing of it was restored", self.number)).into()
    }
}

impl<W: Write> Blocks<W> {
    fn write(&mut self, block: &Block) -> Result<()> {
        self.buffer.clear();
        codec::write(block, &mut self.buffer);
        // Rows are cut into blocks long before that.
        let length = u32::try_from(self.buffer.len()).map_err(|_| Error::invalid("a block of the dump is too long"))?;
        let parts = [&length.to_be_bytes()[..], &self.checksum().to_be_bytes(), &self.buffer];
        parts.into_iter().try_for_each(|part| self.stream.write_all(part)).map_err(unwritten)?;
        self.number += 1;
        Ok(())
    }
}

impl<R: Read> Blocks<R> {
    fn read_header(&mut self) -> Result<()> {
        let mut line = Vec::new();
        let mut byte = [0];
        while line.len() < HEADER_MAX_BYTES && line.last() != Some(&b'\n') && self.fill(&mut byte)? == 1 {
            line.extend(byte);
        }
        if line.is_empty() {
            return Err(Error::invalid("this is no percolite dump: it is empty"));
        }
        let text = String::from_utf8_lossy(&line);
        match text.strip_suffix('\n').and_then(|text| text.strip_prefix(HEADER)).map(str::parse::<u32>) {
            Some(Ok(FORMAT)) => Ok(()),
            Some(Ok(other)) => Err(Error::invalid(format!(
                "the dump has format {other}, this program reads format {FORMAT}: use another version of percolite"
            ))),
            _ => Err(Error::invalid(format!(
                "this is no percolite dump: it does not begin with {:?}",
                HEADER.trim_end()
            ))),
        }
    }

    fn read(&mut self) -> Result<Block> {
        let mut head = [[0; 4]; 2];
        self.fill_all(head.as_flattened_mut())?;
        let [length, checksum] = head.map(u32::from_be_bytes);
        let length = usize::try_from(length).ok().filter(|length| *length <= BLOCK_BYTES_MAX);
        let Some(length) = length else { return Err(self.damaged("is damaged: no block is so long")) };
        // Grows as there is something to read: a damaged length must not cost memory.
        self.buffer.clear();
        let wanted = length as u64;
        self.stream.by_ref().take(wanted).read_to_end(&mut self.buffer).map_err(unread)?;
        if self.buffer.len() < length {
            return Err(self.cut_off());
        }
        if self.checksum() != checksum {
            return Err(self.damaged("is damaged: a checksum does not match"));
        }
        let block = codec::read(&self.buffer).map_err(|why| self.damaged(&format!("is damaged: {why}")))?;
        self.number += 1;
        Ok(block)
    }

    fn expect_end(&mut self) -> Result<()> {
        if self.fill(&mut [0])? == 0 { Ok(()) } else { Err(self.damaged("goes on behind its end")) }
    }

    fn cut_off(&self) -> Error {
        self.damaged("was cut off")
    }

    fn fill_all(&mut self, buffer: &mut [u8]) -> Result<()> {
        if self.fill(buffer)? == buffer.len() { Ok(()) } else { Err(self.cut_off()) }
    }

    /// As much as there is.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.stream.read(rest) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(unread(why)),
            }
        }
        Ok(filled)
    }
}

fn unwritten(why: io::Error) -> Error {
    ErrorKind::Io(format!("cannot write the dump: {why}")).into()
}

fn unread(why: io::Error) -> Error {
    ErrorKind::Io(format!("cannot read the dump: {why}")).into()
}
