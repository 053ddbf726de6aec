//! A full disk: what was acknowledged stays, and the disk can be left by deleting.

use std::fs;
use std::process::Command;

use crate::common::Sandbox;

/// The store fills a small file system in memory.
#[test]
fn a_full_disk_loses_no_acknowledged_row() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path().join("disk")).unwrap();
    let rows: String = (0..40_000).map(|n| format!("key{n:05}\t{}\n", "value ".repeat(200))).collect();
    sandbox.file("rows.tsv", rows);
    // The file `ballast` takes 4 MiB of the disk. When the disk is full the file is removed, and
    // the store must work again.
    let script = format!(
        "mount -t tmpfs -o size=24m none disk || exit 99
         head -c 4m /dev/zero > disk/ballast
         percolite='{}'
         $percolite load --create --batch 50 disk/shop rows --format tsv rows.tsv > out 2> err; echo $? > code
         $percolite verify disk/shop > verify-full 2>&1
         $percolite put disk/shop rows key99999 more > put-full 2>&1
         head -c 40m /dev/zero > disk/more-ballast
         $percolite delete disk/shop rows key00001 > none-left 2>&1
         $percolite put disk/shop rows z v >> none-left 2>&1
         head -c 40m /dev/zero >> disk/more-ballast
         $percolite put --create disk/new rows k v >> none-left 2>&1
         rm disk/more-ballast
         rm disk/ballast
         $percolite verify disk/shop > verify 2>&1; echo $? >> code
         $percolite scan disk/shop rows --keys-only > keys 2>&1
         $percolite scan disk/shop rows --to key9 --count > count 2>&1
         $percolite put disk/shop rows key99999 more > put 2>&1; echo $? >> code
         $percolite dump disk/shop shop.dump > dump 2>&1
         head -c $(($(df --output=avail disk | tail -1) - 2000))k /dev/zero > disk/more-ballast
         $percolite restore disk/copy shop.dump > restore 2>&1; echo $? >> code
         ls -A disk | tr '\n' ' ' > left",
        env!("CARGO_BIN_EXE_percolite")
    );
    let ran = Command::new("unshare").args(["--mount", "sh", "-c", &script]).current_dir(sandbox.path()).output();
    let report = |name: &str| fs::read_to_string(sandbox.path().join(name)).unwrap();
    if !ran.is_ok_and(|ran| ran.status.code() != Some(99)) || !sandbox.path().join("code").exists() {
        eprintln!("SKIPPED: this machine does not allow mounts");
        return;
    }
    let err = report("err");
    assert!(err.starts_with("error: ") && err.lines().count() == 1 && err.contains("No space left on device"), "{err}");
    assert_eq!(report("code"), "1\n0\n0\n1\n", "{err}{}{}{}", report("verify"), report("put"), report("restore"));
    let restore = report("restore");
    assert!(restore.starts_with("error: nothing was restored, disk/copy was removed: "), "{restore}");
    assert_eq!((report("left").contains("shop"), report("left").contains("copy")), (true, false), "{}", report("left"));
    // The error is like: "… committed to the keyspace "rows": 1,250 rows of the input (…), and
    // possibly those of the next transaction; resume with --skip 1250"
    let skip = err.rsplit("--skip ").next().unwrap().split(';').next().unwrap();
    let acknowledged: u64 = skip.trim().parse().unwrap();
    assert_eq!(err.contains("undetermined"), err.contains("possibly those of the next transaction"), "{err}");
    let count: u64 = report("count").trim().replace(',', "").parse().unwrap();
    // The failed transaction may be committed as a whole: its outcome was undetermined. One row was
    // deleted.
    assert!([acknowledged, acknowledged + 50].contains(&(count + 1)), "{count} rows: {err}");
    assert!(acknowledged > 1000, "{err}");
    let none_left = report("none-left");
    let [deleted, put, created] = none_left.lines().collect::<Vec<_>>()[..] else { panic!("{none_left}") };
    // The opening may have flushed the log, and so have made room.
    assert!(put == "1 row put" || put.contains("the disk was full when the store was opened"), "{put}");
    assert_eq!(deleted, "1 row deleted");
    assert!(created.starts_with("error: cannot open the store in /") && created.contains("/disk/new"), "{created}");
    assert!(created.contains(": No space left on device"), "{created}");
    for line in [err.trim_end(), created] {
        assert_eq!(line.matches("free at least 3 MiB").count(), 1, "{line}");
        assert!(!line.contains("free some space first"), "{line}");
    }
    println!("{acknowledged} rows acknowledged, {count} found; full: {}{}", report("verify-full"), report("put-full"));
}

/// Each command is a process of its own, and no byte is free.
#[test]
fn a_full_disk_is_left_by_a_truncation() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path().join("disk")).unwrap();
    let rows: String = (0..20_000).map(|n| format!("key{n:05}\t{}\n", "value ".repeat(200))).collect();
    sandbox.file("rows.tsv", rows);
    let script = format!(
        "mount -t tmpfs -o size=16m none disk || exit 99
         percolite='{}'
         $percolite put --create disk/shop kept k v
         $percolite load --create --batch 50 disk/shop rows --format tsv rows.tsv > /dev/null 2>&1
         head -c 20m /dev/zero > disk/ballast 2> /dev/null
         for number in $(seq 20); do $percolite put disk/shop rows k v >> refused 2>&1; done
         $percolite keyspaces disk/shop --truncate rows > truncated 2>&1; echo $? > code
         $percolite put disk/shop rows k v > put 2>&1; echo $? >> code
         $percolite get disk/shop kept k > kept 2>&1; echo $? >> code
         $percolite keyspaces disk/shop --drop rows > dropped 2>&1; echo $? >> code",
        env!("CARGO_BIN_EXE_percolite")
    );
    let ran = Command::new("unshare").args(["--mount", "sh", "-c", &script]).current_dir(sandbox.path()).output();
    if !ran.is_ok_and(|ran| ran.status.code() != Some(99)) || !sandbox.path().join("code").exists() {
        eprintln!("SKIPPED: this machine does not allow mounts");
        return;
    }
    let report = |name: &str| fs::read_to_string(sandbox.path().join(name)).unwrap();
    let reports = ["refused", "truncated", "put", "kept", "dropped"].map(report).concat();
    assert_eq!(report("code"), "0\n0\n0\n0\n", "{reports}");
    let refused = report("refused");
    assert_eq!(refused.matches("until 3 MiB are free").count(), 20, "{refused}");
    assert_eq!(report("kept"), "v\n");
}

/// An opening takes no more space than the documents say, in memory and on a file system that keeps
/// what a failed preallocation has taken.
#[test]
fn a_row_can_be_deleted_whatever_space_is_free() {
    for (file_system, mount) in [
        ("tmpfs", "mount -t tmpfs -o size=12m none disk"),
        ("ext4", "truncate -s 12M image && mkfs.ext4 -q -m 0 image && mount -o loop image disk"),
    ] {
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.path().join("disk")).unwrap();
        // A ballast that shrinks, so that more is free each time.
        let script = format!(
            "{mount} || exit 99
             percolite='{}'
             $percolite put --create disk/shop rows k v > out 2>&1
             $percolite put --create disk/shop others k v >> out 2>&1
             touch swept
             for free in 0 $(seq 128 128 6144); do
                 rm -f disk/ballast
                 left=$(($(df --output=avail disk | tail -1) - free))
                 test $left -lt 0 || head -c ${{left}}k /dev/zero > disk/ballast 2> /dev/null
                 $percolite delete disk/shop rows none --if-exists > out 2>&1 || {{ echo \"$free: $(cat out)\" >> failed; }}
                 echo $free >> swept
             done
             $percolite keyspaces disk/shop --truncate others > out 2>&1 || cat out >> failed",
            env!("CARGO_BIN_EXE_percolite")
        );
        let ran = Command::new("unshare").args(["--mount", "sh", "-c", &script]).current_dir(sandbox.path()).output();
        if !ran.is_ok_and(|ran| ran.status.code() != Some(99)) || !sandbox.has("swept") {
            eprintln!("SKIPPED: this machine does not allow mounts of {file_system}");
            continue;
        }
        assert_eq!(sandbox.read("swept").lines().count(), 49, "{file_system}");
        assert!(!sandbox.has("failed"), "{file_system}: {}", sandbox.read("failed"));
    }
}
