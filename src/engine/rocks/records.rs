//! Which records of a log are whole.
//!
//! RocksDB ends its recovery at the first record that is not, because a crash leaves such a one. Whether a crash has left it, or
//! damage in the middle of what was written, shows behind it: a killed process leaves nothing there.
//!
//! ```text
//!   file:      block (32 KiB)*
//!   record:    checksum (4) ‖ length (2, little-endian) ‖ sort (1) ‖ payload, within one block
//!   checksum:  CRC-32C of sort and payload, rotated right by 15, plus 0xa282ead8
//! ```
//!
//! Behind damage every byte is tried as the beginning of a record, as far as the block goes: the length may be what is damaged.

pub const BLOCK_BYTES: usize = 32 << 10;
pub const HEADER_BYTES: usize = 7;
/// What begins a log: number, size and last sequence number of the one before, 8 bytes each.
const PREDECESSOR: u8 = 130;
/// A batch without a change: with one RocksDB begins the log behind a damaged one.
const EMPTY_BATCH_BYTES: usize = 12;

/// What was found in a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// Where whole records end that begin at the log's beginning, if not at its end.
    pub stop: Option<Stop>,
    /// Bytes of whole records that change something.
    pub bytes: u64,
    /// Those of them behind the stop.
    pub behind: u64,
    /// How long the log is, without room behind its records.
    pub length: u64,
    /// How much of that there is: zeros, written ahead.
    pub room: u64,
    /// Number and size of the log before.
    pub predecessor: Option<(u64, u64)>,
    /// Where the last whole record ends, and whether there is anything but zeros behind it.
    last: u64,
    is_littered: bool,
}

/// Where something is that is no whole record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// In bytes.
    pub offset: u64,
    /// Whether there is nothing but zeros in place of a header. RocksDB reads on in the next block then.
    pub is_hole: bool,
}

impl Records {
    /// Takes the next block. Only the last one may be short.
    pub fn block(&mut self, block: &[u8]) {
        let mut at = 0;
        while let Some(rest) = block.get(at..).filter(|rest| rest.len() >= HEADER_BYTES) {
            if let Some((sort, payload)) = whole_record(rest) {
                self.count(sort, payload);
                at += HEADER_BYTES + payload.len();
                (self.last, self.is_littered) = (self.length + at as u64, false);
                continue;
            }
            let is_hole = matches!(rest, [_, _, _, _, 0, 0, 0, ..]);
            self.stop.get_or_insert(Stop { offset: self.length + at as u64, is_hole });
            let is_whole = |at: &usize| block.get(*at..).and_then(whole_record).is_some();
            at = (at + 1..block.len()).find(is_whole).unwrap_or(block.len());
        }
        // A whole block ends with less than a header; so does a file that was cut off.
        if at < block.len() && block.len() < BLOCK_BYTES {
            self.stop.get_or_insert(Stop { offset: self.length + at as u64, is_hole: false });
        }
        let behind = usize::try_from(self.last.saturating_sub(self.length)).unwrap_or(usize::MAX);
        self.is_littered |= block.iter().skip(behind).any(|byte| *byte != 0);
        self.length += block.len() as u64;
    }

    /// There is no further block. Zeros behind the last record are room, those that would fill its block, too: RocksDB writes these
    /// with the next record.
    pub fn end(&mut self) {
        if !self.is_littered && self.stop.is_none_or(|stop| stop.offset >= self.last) {
            self.room = self.length - self.last;
            self.length = self.last;
            self.stop = None;
        }
    }

    fn count(&mut self, sort: u8, payload: &[u8]) {
        match (sort, payload) {
            (1, payload) if payload.len() <= EMPTY_BATCH_BYTES => {}
            (1..=4, payload) => {
                let bytes = (HEADER_BYTES + payload.len()) as u64;
                self.bytes += bytes;
                self.behind += if self.stop.is_some() { bytes } else { 0 };
            }
            (PREDECESSOR, payload) => {
                let number = |at: usize| payload.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
                self.predecessor = number(0).zip(number(8));
            }
            _ => {}
        }
    }
}

/// The sort and the payload of the record that begins here.
fn whole_record(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (&[sum0, sum1, sum2, sum3, low, high, sort], rest) = bytes.split_first_chunk()?;
    if !matches!(sort, 1..=4 | 9 | 10 | PREDECESSOR) {
        return None;
    }
    let payload = rest.get(..usize::from(u16::from_le_bytes([low, high])))?;
    let sum = crc32c::crc32c_append(crc32c::crc32c(&[sort]), payload);
    let masked = sum.rotate_right(15).wrapping_add(0xa282_ead8);
    (masked == u32::from_le_bytes([sum0, sum1, sum2, sum3])).then_some((sort, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log as RocksDB 11.8 writes it: two batches of one change each.
    const FROZEN: &[u8] = b"\
        \x5a\x04\xcd\xd6\x1d\x00\x01\x05\0\0\0\0\0\0\0\x01\0\0\0\x01\x06oracle\x08\x06\x88\x02\x7e\xfd\xb8\0\0\
        \x44\xfa\x42\x26\x1d\x00\x01\x06\0\0\0\0\0\0\0\x01\0\0\0\x01\x06oracle\x08\x06\x88\x02\x7e\xce\xdc\0\x01";

    fn record(sort: u8, payload: &[u8]) -> Vec<u8> {
        let sum = crc32c::crc32c(&[&[sort], payload].concat()).rotate_right(15).wrapping_add(0xa282_ead8);
        let length = u16::try_from(payload.len()).unwrap().to_le_bytes();
        [&sum.to_le_bytes()[..], &length, &[sort], payload].concat()
    }

    fn read(log: &[u8]) -> Records {
        let mut records = Records::default();
        log.chunks(BLOCK_BYTES).for_each(|block| records.block(block));
        records.end();
        records
    }

    /// Records of all lengths over three blocks, and where each begins.
    fn log() -> (Vec<u8>, Vec<usize>) {
        let (mut log, mut begins) = (Vec::new(), Vec::new());
        for n in 0..900_usize {
            let room = BLOCK_BYTES - log.len() % BLOCK_BYTES;
            if room < HEADER_BYTES + 200 {
                // Up to the end of the block, or not quite.
                let trailer = n % HEADER_BYTES;
                begins.push(log.len());
                log.extend(record(1, &vec![7; room - HEADER_BYTES - trailer]));
                log.extend(vec![0; trailer]);
            }
            begins.push(log.len());
            log.extend(record(1, &vec![7; 20 + n % 180]));
        }
        (log, begins)
    }

    #[test]
    fn a_log_of_rocksdb_is_whole() {
        let length = FROZEN.len() as u64;
        assert_eq!(read(FROZEN), Records { bytes: length, length, last: length, ..Records::default() });
        for at in 0..FROZEN.len() {
            for bit in 0..8 {
                let mut damaged = FROZEN.to_vec();
                damaged[at] ^= 1 << bit;
                assert!(read(&damaged).stop.is_some(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn a_clean_end_is_told_from_a_torn_one_and_neither_has_anything_behind() {
        let (log, begins) = log();
        assert!(log.len() > 2 * BLOCK_BYTES);
        assert_eq!(read(&log).stop, None);
        for &begin in begins.iter().step_by(13) {
            for cut in [begin, begin + 1, begin + 6, begin + 7, begin + 15] {
                let torn = read(&log[..cut]);
                assert_eq!(torn.behind, 0, "cut off at {cut}");
                assert_eq!(torn.stop.map(|stop| stop.offset), (cut > begin).then_some(begin as u64), "at {cut}");
                let zeros = read(&[&log[..cut], &vec![0; 70_000]].concat());
                assert_eq!(zeros.behind, 0, "zeros from {cut}");
            }
        }
    }

    #[test]
    fn what_lies_behind_a_flipped_bit_is_counted_wherever_that_is() {
        let (log, begins) = log();
        let whole = read(&log).bytes;
        for (n, &begin) in begins.iter().enumerate().step_by(17) {
            let end = begins.get(n + 1).copied().unwrap_or(log.len());
            let before = read(&log[..begin]).bytes;
            let own = read(&log[begin..end]).bytes;
            for at in [begin, begin + 4, begin + 5, begin + 6, begin + 7, begin + 20] {
                let mut damaged = log.clone();
                damaged[at] ^= 0x40;
                let found = read(&damaged);
                assert_eq!(found.stop, Some(Stop { offset: begin as u64, is_hole: false }), "at {at}");
                assert_eq!((before, found.behind), (found.bytes - found.behind, whole - before - own), "at {at}");
            }
        }
    }

    #[test]
    fn a_hole_of_zeros_is_known() {
        let (mut log, begins) = log();
        let (from, to) = (begins[40], begins[50]);
        log[from..to].fill(0);
        let found = read(&log);
        assert_eq!(found.stop, Some(Stop { offset: from as u64, is_hole: true }));
        assert!(found.behind > 0);
    }

    #[test]
    fn room_is_told_from_records_and_from_what_a_crash_has_torn() {
        let (log, begins) = log();
        for trailer in 0..=HEADER_BYTES + 1 {
            let fill = BLOCK_BYTES - HEADER_BYTES - trailer;
            let full = record(1, &vec![7; fill]);
            for room in [0, 1, 6, 7, 100, 2 * BLOCK_BYTES + 3] {
                let found = read(&[&full[..], &vec![0; room]].concat());
                let (length, room) = (full.len() as u64, room as u64);
                assert_eq!(
                    (found.length, found.room, found.stop),
                    (length, room, None),
                    "{trailer} bytes left of a block"
                );
            }
        }
        for &begin in begins.iter().step_by(11) {
            let zeros = vec![0; 50_000];
            let found = read(&[&log[..begin], &zeros].concat());
            assert!(found.stop.is_none() && found.room >= 50_000 && found.length <= begin as u64, "{begin}");
            let torn = read(&[&log[..begin + 12], &zeros].concat());
            assert_eq!((torn.room, torn.stop.map(|stop| stop.offset)), (0, Some(begin as u64)));
        }
        let mut hole = log.clone();
        hole[begins[40]..begins[50]].fill(0);
        assert_eq!(read(&[&hole[..], &[0; 900]].concat()).room, 0, "what is behind damage stays as it is");
    }

    #[test]
    fn the_batch_with_which_a_recovery_begins_a_log_is_nothing_lost() {
        let log = [record(1, &[1; 30]), record(1, &[2; 30])[..20].to_vec()].concat();
        let next = [record(PREDECESSOR, &[1; 24]), record(1, &[0; EMPTY_BATCH_BYTES])].concat();
        assert_eq!(read(&log).behind, 0);
        assert_eq!(read(&next).bytes, 0);
    }
}
