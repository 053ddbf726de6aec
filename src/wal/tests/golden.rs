//! Format 1, byte by byte. Until the first release a change of format may change these bytes; after
//! the release they are fixed.

use super::*;
use crate::disk::DiskFile as _;
use crate::wal::segment::{self, FRAMES_OFFSET};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

#[test]
fn golden_bytes_of_a_segment() {
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), 0x0123_4567_89ab_cdef, 41, 0x5a17).unwrap();
    append(&mut log, b"a payload").unwrap();
    log.handle().sync().unwrap();
    append(&mut log, b"").unwrap();
    log.rotate(7).unwrap();
    let read = |number, offset, length| {
        let mut bytes = vec![0; length];
        disk.open(&segment::segment_file_name(number)).unwrap().read_at(offset, &mut bytes).unwrap();
        hex(&bytes)
    };
    // Magic, format, number, salt, WAL id, first sequence, predecessor (number, offset, last
    // sequence), durable sequence, durable length, zeros, checksum.
    let first = [
        "706572636f6c6f67",
        "0100000000000000",
        "0100000000000000",
        "175a000000000000",
        "efcdab8967452301",
        "2a00000000000000",
        "0000000000000000",
        "0000000000000000",
        "0000000000000000",
        "2900000000000000",
        "0040000000000000",
        "000000000000000000000000000000000000000000000000000000000000000000000000",
        "272d1704",
    ]
    .concat();
    assert_eq!([read(1, 0, 128), read(1, 4096, 128)], [first.clone(), first]);
    // Checksum, length, sequence, durable sequence, padded payload; then an empty frame, and
    // preallocated zeros.
    let frames = [
        "afe3f435",
        "09000000",
        "2a00000000000000",
        "2900000000000000",
        "61207061796c6f616400000000000000",
        "fda43dd6",
        "00000000",
        "2b00000000000000",
        "2a00000000000000",
        "0000000000000000",
    ]
    .concat();
    assert_eq!(read(1, FRAMES_OFFSET, 72), frames);
    let second = [
        "706572636f6c6f67",
        "0100000000000000",
        "0200000000000000",
        "0700000000000000",
        "efcdab8967452301",
        "2c00000000000000",
        "0100000000000000",
        "4020000000000000",
        "2b00000000000000",
        "2a00000000000000",
        "0040000000000000",
        "000000000000000000000000000000000000000000000000000000000000000000000000",
        "c8b0acf2",
    ]
    .concat();
    assert_eq!(read(2, 0, 128), second);
}

#[test]
fn golden_bytes_of_a_sync_record() {
    let disk = SimDisk::new();
    let mut log = create(disk.clone(), 0x0123_4567_89ab_cdef, 41, 0x5a17).unwrap();
    append(&mut log, b"a payload").unwrap();
    log.rotate(7).unwrap();
    append(&mut log, b"").unwrap();
    log.handle().sync().unwrap();
    log.handle().write_sync_record(true).unwrap();
    let mut record = vec![0; 40];
    let length = disk.open("synced").unwrap().read_at(0, &mut record).unwrap();
    // Magic, WAL id, segment, sequence, checksum.
    let expected =
        ["7065726373796e63", "efcdab8967452301", "0200000000000000", "2b00000000000000", "bac36152"].concat();
    assert_eq!(hex(&record[..length]), expected);
}
