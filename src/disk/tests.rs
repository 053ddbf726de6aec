//! Tests of the simulated disk: it has each freedom of a real disk, and no other one.

use std::collections::BTreeSet;

use super::*;

const SECTOR: usize = 512;

fn content(disk: &SimDisk, name: &str) -> Option<Vec<u8>> {
    let file = disk.open(name).ok()?;
    let mut bytes = vec![0; file.len().ok()?.try_into().ok()?];
    file.read_at(0, &mut bytes).ok()?;
    Some(bytes)
}

/// What `look` returns after a crash of a copy of the disk, for each of 1000 seeds.
fn after_crashes<T: Ord>(disk: &SimDisk, look: impl Fn(&SimDisk) -> T) -> BTreeSet<T> {
    let crashed = |seed| {
        let disk = disk.fork();
        disk.crash(seed);
        look(&disk.handle())
    };
    (0..1000).map(crashed).collect()
}

fn synced_file(disk: &SimDisk, sectors: usize) -> <SimDisk as Disk>::File {
    let file = disk.create("file").unwrap();
    file.write_at(0, &vec![b'-'; sectors * SECTOR]).unwrap();
    file.sync().unwrap();
    disk.sync_directory().unwrap();
    file
}

/// The first byte of each sector of the file `file`.
fn sketch(disk: &SimDisk) -> Vec<u8> {
    content(disk, "file").unwrap_or_default().chunks(SECTOR).map(|sector| sector[0]).collect()
}

#[test]
fn a_crash_keeps_any_unsynced_version_of_each_sector() {
    let disk = SimDisk::new();
    let file = synced_file(&disk, 3);
    assert_eq!(after_crashes(&disk, sketch).len(), 1);
    file.write_at(0, &[b'a'; 2 * SECTOR]).unwrap();
    file.write_at(SECTOR as u64, &[b'b'; SECTOR]).unwrap();
    let left = after_crashes(&disk, sketch);
    let expected = ["---", "-a-", "-b-", "a--", "aa-", "ab-"].map(|sketch| sketch.as_bytes().to_vec());
    assert_eq!(left, expected.into());
    file.sync().unwrap();
    assert_eq!(after_crashes(&disk, sketch), [b"ab-".to_vec()].into());
}

#[test]
fn a_crash_keeps_any_length_since_the_last_sync() {
    let disk = SimDisk::new();
    let file = synced_file(&disk, 1);
    file.write_at(700, b"more").unwrap();
    file.write_at(900, b"and more").unwrap();
    let lengths = after_crashes(&disk, |disk| content(disk, "file").unwrap().len());
    assert_eq!(lengths, [512, 704, 908].into());
}

#[test]
fn a_sync_after_a_failed_one_covers_only_new_writes() {
    let disk = SimDisk::new();
    let file = synced_file(&disk, 2);
    file.write_at(0, &[b'a'; 2 * SECTOR]).unwrap();
    disk.fail_nth(Some(CallKind::Sync), 1, 0);
    assert!(file.sync().is_err());
    file.sync().unwrap();
    assert_eq!(after_crashes(&disk, sketch).len(), 4);
    assert_eq!(sketch(&disk), b"aa", "while nothing is evicted");
    file.write_at(0, b"a").unwrap();
    file.sync().unwrap();
    assert_eq!(after_crashes(&disk, sketch), [b"a-".to_vec(), b"aa".to_vec()].into());
    let evicted = (0..50).map(|seed| {
        let disk = disk.fork();
        disk.evict(seed);
        sketch(&disk)
    });
    assert_eq!(evicted.collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn directory_changes_are_kept_or_lost_independently() {
    let disk = SimDisk::new();
    for name in ["old", "gone"] {
        disk.create(name).unwrap();
    }
    disk.sync_directory().unwrap();
    disk.create("made").unwrap();
    disk.remove("gone").unwrap();
    disk.rename("old", "new").unwrap();
    let left = after_crashes(&disk, |disk| disk.list().unwrap());
    assert_eq!(left.len(), 8);
    assert!(left.iter().all(|names| names.contains(&"old".into()) != names.contains(&"new".into())));
    disk.fail_nth(Some(CallKind::SyncDirectory), 1, 0);
    assert!(disk.sync_directory().is_err());
    disk.sync_directory().unwrap();
    assert_eq!(after_crashes(&disk, |disk| disk.list().unwrap()).len(), 8, "a later sync proves nothing");
}

#[test]
fn a_directory_sync_makes_names_durable() {
    let disk = SimDisk::new();
    disk.create("made").unwrap();
    disk.rename("made", "named").unwrap();
    disk.sync_directory().unwrap();
    assert_eq!(after_crashes(&disk, |disk| disk.list().unwrap()), [vec!["named".to_owned()]].into());
}

#[test]
fn a_failed_write_is_applied_in_part() {
    let made = (0..100).map(|seed| {
        let disk = SimDisk::new();
        let file = disk.create("file").unwrap();
        disk.fail_nth(None, 1, seed);
        assert!(file.write_at(0, b"four").is_err());
        content(&disk, "file").unwrap()
    });
    assert_eq!(made.collect::<BTreeSet<_>>().len(), 5);
}

#[test]
fn a_kill_ends_all_handles_and_keeps_all_writes() {
    let disk = SimDisk::new();
    let file = synced_file(&disk, 1);
    file.write_at(0, b"k").unwrap();
    disk.kill();
    assert!(file.write_at(0, b"x").is_err() && file.sync().is_err() && disk.list().is_err());
    assert_eq!(sketch(&disk.handle()), b"k");
    assert_eq!(after_crashes(&disk, sketch).len(), 2, "a kill syncs nothing");
    let disk = disk.handle();
    disk.fail_from(2, 0);
    assert!(disk.list().is_ok() && disk.list().is_err() && disk.list().is_err());
}

#[test]
fn damage_survives_every_crash() {
    let disk = SimDisk::new();
    synced_file(&disk, 2);
    disk.flip_bits("file", SECTOR, 1);
    disk.set_len("file", SECTOR + 1);
    let left = after_crashes(&disk, |disk| content(disk, "file").unwrap().len());
    assert_eq!((left, sketch(&disk)), ([SECTOR + 1].into(), b"-,".to_vec()));
}
