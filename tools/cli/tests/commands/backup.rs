//! dump, restore, checkpoint.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;

use crate::common::{Ran, Sandbox};

#[test]
fn a_dump_is_restored_through_files_and_pipes() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("keyspaces shop --create empty");
    assert!(sandbox.ok("dump shop shop.dump").starts_with("dumped 2 keyspaces, 2 rows"));
    let restored = &sandbox.json("restore copy shop.dump --json")[0];
    assert_eq!((&restored["keyspaces"], &restored["rows"]), (&2.into(), &2.into()));
    let piped = sandbox.command("dump shop -").output().unwrap();
    assert_eq!(piped.stdout, fs::read(sandbox.path().join("shop.dump")).unwrap());
    sandbox.with_input("restore piped -", piped.stdout).succeeds();
    for copy in ["copy", "piped"] {
        assert_eq!(sandbox.ok(&format!("scan {copy} fruit --json")), sandbox.ok("scan shop fruit --json"));
        assert_eq!(sandbox.json(&format!("keyspaces {copy} --json")).len(), 2);
    }
}

#[test]
fn existing_data_is_replaced_only_with_an_option() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop shop.dump");
    sandbox.run("dump shop shop.dump").fails(1, "--overwrite replaces it");
    sandbox.ok("dump --overwrite shop shop.dump");
    sandbox.ok("put shop fruit apple green");
    sandbox.run("restore shop shop.dump").fails(1, "use --replace");
    assert_eq!(sandbox.ok("get shop fruit apple"), "green\n");
    sandbox.ok("restore --replace shop shop.dump");
    assert_eq!(sandbox.ok("get shop fruit apple"), "red\n");
    sandbox.ok("checkpoint shop copy");
    sandbox.run("checkpoint shop copy").fails(1, "already exists");
}

#[test]
fn a_truncated_or_damaged_dump_restores_nothing() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop shop.dump");
    let whole = fs::read(sandbox.path().join("shop.dump")).unwrap();
    sandbox.file("cut.dump", &whole[..whole.len() - 1]);
    let mut damaged = whole.clone();
    // The damaged byte is in the content of a block: with a damaged length the dump would look cut
    // off.
    let content = whole.windows(5).position(|bytes| bytes == b"apple").unwrap();
    damaged[content] ^= 1;
    sandbox.file("damaged.dump", damaged);
    sandbox.file("other.txt", "not a dump\n");
    sandbox.file("newer.dump", "percolite dump, format 9\n");
    sandbox.run("restore copy cut.dump").fails(6, "is truncated");
    sandbox.run("restore copy damaged.dump").fails(6, "damaged");
    sandbox.file("empty.dump", "");
    sandbox.file("random.dump", (0..500_u32).map(|n| (n * n / 7 % 251) as u8).collect::<Vec<_>>());
    sandbox.file("cut-line.dump", &whole[..10]);
    sandbox.run("restore copy other.txt").fails(5, "not a percolite dump");
    sandbox.run("restore copy newer.dump").fails(5, "has format 9");
    sandbox.run("restore copy empty.dump").fails(5, "it is empty");
    sandbox.run("restore copy random.dump").fails(5, "not a percolite dump");
    sandbox.run("restore copy cut-line.dump").fails(6, "is truncated");
    sandbox.with_input("restore copy -", "").fails(5, "it is empty");
    sandbox.with_input("restore copy -", &whole[..whole.len() - 1]).fails(6, "is truncated");
    // Files compressed by another program.
    for (magic, by) in [(&b"\x1f\x8b\x08"[..], "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x04\x22\x4d\x18", "lz4")] {
        sandbox.file("packed", [magic, b"compressed data"].concat());
        sandbox
            .run("restore copy packed")
            .fails(5, &format!("it is compressed by {by}; to restore it: {by} -dc packed | percolite restore copy -"));
    }
    sandbox.run("restore copy missing.dump").fails(1, "cannot open missing.dump");
    sandbox.run("restore copy shop").fails(5, "shop is a directory, not a dump");
    assert!(!sandbox.path().join("copy").exists(), "an empty store remains");
    fs::create_dir(sandbox.path().join("mine")).unwrap();
    sandbox.run("restore mine cut.dump").fails(6, "is truncated");
    assert!(sandbox.path().join("mine").exists());
    sandbox.ok("restore copy shop.dump");
    sandbox.run("restore --replace copy cut.dump").fails(6, "is truncated");
    assert_eq!(sandbox.ok("get copy fruit apple"), "red\n");
}

#[test]
fn a_failed_dump_leaves_no_file() {
    let sandbox = Sandbox::with_shop();
    sandbox.run("dump shop missing/shop.dump").fails(1, "cannot write");
    sandbox.ok("dump shop shop.dump");
    let names: Vec<_> = fs::read_dir(sandbox.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_checkpoint_is_an_independent_store() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("checkpoint shop backup/monday");
    sandbox.ok("put shop fruit apple green");
    assert_eq!(sandbox.ok("get backup/monday fruit apple"), "red\n");
    assert_eq!(sandbox.json("verify backup/monday --json")[0]["ok"], true);
    sandbox.ok("put backup/monday fruit apple blue");
    assert_eq!(sandbox.ok("get shop fruit apple"), "green\n");
}

#[test]
fn a_dump_writes_to_pipes_and_follows_links() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop whole.dump");
    let whole = fs::read(sandbox.path().join("whole.dump")).unwrap();
    let kind = |name: &str| fs::symlink_metadata(sandbox.path().join(name)).unwrap().file_type();

    assert!(std::process::Command::new("mkfifo").arg(sandbox.path().join("pipe")).status().unwrap().success());
    // The pipe is opened for reading and writing, so that neither this opening nor that of the
    // program blocks.
    let mut pipe = fs::File::options().read(true).write(true).open(sandbox.path().join("pipe")).unwrap();
    sandbox.ok("dump --overwrite shop pipe");
    assert!(kind("pipe").is_fifo(), "the pipe was replaced");
    let mut piped = vec![0; whole.len()];
    pipe.read_exact(&mut piped).unwrap();
    assert_eq!(piped, whole);

    sandbox.file("real.dump", "old");
    std::os::unix::fs::symlink("real.dump", sandbox.path().join("link")).unwrap();
    sandbox.run("dump shop link").fails(1, "--overwrite replaces it");
    sandbox.ok("dump --overwrite shop link");
    assert!(kind("link").is_symlink(), "the link was replaced");
    assert_eq!(fs::read(sandbox.path().join("real.dump")).unwrap(), whole);

    std::os::unix::fs::symlink("nowhere", sandbox.path().join("dangling")).unwrap();
    sandbox.run("dump --overwrite shop dangling").fails(1, "is a dangling symbolic link");
    fs::create_dir(sandbox.path().join("dir")).unwrap();
    sandbox.run("dump --overwrite shop dir").fails(1, "is a directory");
    let _socket = std::os::unix::net::UnixListener::bind(sandbox.path().join("socket")).unwrap();
    sandbox.run("dump --overwrite shop socket").fails(1, "is neither a file nor a pipe");
    assert!(kind("socket").is_socket());
    let left = fs::read_dir(sandbox.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains(".partial"));
    assert_eq!(left.count(), 0);
}

#[test]
fn a_new_directory_inside_the_store_is_refused() {
    let sandbox = Sandbox::with_shop();
    for line in ["checkpoint shop shop/inner", "checkpoint shop ./shop/a/b", "repair shop shop/inner"] {
        sandbox.run(line).fails(1, "is inside the store");
    }
    assert!(!sandbox.path().join("shop/inner").exists() && !sandbox.path().join("shop/a").exists());
    sandbox.ok("checkpoint shop shop-2");
}

#[test]
fn an_interrupted_restore_leaves_no_directory() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop shop.dump");
    assert!(std::process::Command::new("mkfifo").arg(sandbox.path().join("pipe")).status().unwrap().success());
    // The pipe is opened for reading and writing, so that no opening blocks and the program finds
    // no end of file.
    let mut pipe = fs::File::options().read(true).write(true).open(sandbox.path().join("pipe")).unwrap();
    let whole = fs::read(sandbox.path().join("shop.dump")).unwrap();
    let writer = std::thread::spawn(move || {
        // The last byte is written later, so that the interrupt arrives while the restore waits for
        // it.
        let _ = pipe.write_all(&whole[..whole.len() - 1]);
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let _ = pipe.write_all(&whole[whole.len() - 1..]);
    });
    sandbox.interrupted("restore copy pipe").fails(130, "interrupted; nothing was restored");
    writer.join().unwrap();
    assert!(!sandbox.path().join("copy").exists());
}

#[test]
fn of_concurrent_restores_into_one_directory_one_succeeds() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop shop.dump");
    for round in 0..6 {
        let line = format!("restore copy-{round} shop.dump");
        let children: Vec<_> = (0..6).map(|_| sandbox.command(&line).spawn().unwrap()).collect();
        let codes = children.into_iter().map(|child| Ran::of(&line, child.wait_with_output().unwrap()).code);
        assert_eq!(codes.filter(|code| *code == Some(0)).count(), 1);
        assert_eq!(sandbox.ok(&format!("get copy-{round} fruit apple")), "red\n");
    }
}

#[test]
fn increments_follow_their_base_only() {
    let sandbox = Sandbox::with_shop();
    sandbox.run("dump --since 0s shop x.dump").fails(1, "keeps no history");
    sandbox.ok("retention shop --set 7d");
    let full = &sandbox.json("dump shop sunday.dump --json")[0];
    sandbox.ok("put shop fruit apple green kiwi brown");
    sandbox.ok("delete shop fruit pear");
    let report = &sandbox.json("dump --base sunday.dump shop monday.dump --json")[0];
    let deleted_rows = &report["deleted_rows"];
    assert_eq!((&report["rows"], deleted_rows, &report["since_ts"]), (&2.into(), &1.into(), &full["read_ts"]));
    // The same increment again, but with the timestamp `since` instead of --base. The increment
    // that follows it goes to standard output.
    let since = full["read_ts"].as_str().unwrap();
    let report = sandbox.ok(&format!("dump --since {since} shop by-time.dump"));
    assert!(report.starts_with("dumped the changes of 1 keyspace, 2 rows, 1 deleted row, "), "{report}");
    sandbox.ok("keyspaces shop --create vegetables");
    let piped = sandbox.command("dump --base monday.dump --compression none shop -").output().unwrap();
    assert!(piped.status.success());

    sandbox.run("restore copy monday.dump").fails(1, "nothing was restored here");
    assert!(!sandbox.path().join("copy").exists());
    sandbox.ok("restore copy sunday.dump");
    sandbox.with_input("restore copy -", &piped.stdout).fails(1, since);
    sandbox.ok("restore copy monday.dump");
    sandbox.run("restore copy monday.dump").fails(1, since);
    sandbox.run("restore copy by-time.dump").fails(1, since);
    sandbox.with_input("restore copy -", piped.stdout).succeeds();
    assert_eq!(sandbox.ok("scan copy fruit --json"), sandbox.ok("scan shop fruit --json"));
    assert_eq!(sandbox.json("keyspaces copy --json").len(), 2);
    let stats = &sandbox.json("stats copy --json")[0];
    assert!(stats["restored_ts"].is_string() && sandbox.json("stats shop --json")[0]["restored_ts"].is_null());
    assert!(sandbox.ok("stats copy").contains("restored up to"));

    sandbox.ok("put --create other fruit apple red");
    sandbox.ok("retention other --set 7d");
    sandbox.run("dump --base sunday.dump other x.dump").fails(1, "not of this store");
    sandbox.run("dump --overwrite --base sunday.dump shop sunday.dump").fails(2, "would replace its base");
    sandbox.run("dump --base missing.dump shop x.dump").fails(1, "cannot open missing.dump");
    sandbox.file("other.txt", "not a dump\n");
    sandbox.run("dump --base other.txt shop x.dump").fails(5, "not a percolite dump");
    // The store is not damaged, so the error recommends no command for it.
    sandbox.file("cut.dump", &fs::read(sandbox.path().join("sunday.dump")).unwrap()[..10]);
    let report = sandbox.run("dump --base cut.dump shop x.dump").fails(6, "name another base, or make a full dump").err;
    assert!(!report.contains("percolite verify") && !report.contains("percolite repair"), "{report}");
    sandbox.run("dump --since 2000-01-01T00:00Z shop x.dump").fails(1, "history, which begins at");
    assert_eq!(sandbox.run(&format!("dump --since {since} --base sunday.dump shop x.dump")).code, Some(2));
    assert_eq!(sandbox.run("dump --compression zip shop x.dump").code, Some(2));
    assert!(!sandbox.path().join("x.dump").exists());
}
