//! Files of another kind than the one that was asked for: packed ones, dumps, text, stores and
//! directories. The advice of each error is followed with a shell.

use crate::common::Sandbox;
use crate::text_input::{LOADED, advice};

#[test]
fn a_packed_file_is_named_and_the_advice_unpacks_it() {
    let sandbox = Sandbox::with_shop();
    sandbox.in_shell("printf 'apple,red\\nkiwi,grün\\n' | gzip > 'my rows.csv'").succeeds();
    let err =
        sandbox.in_shell("percolite load --create new rows 'my rows.csv'").fails(1, "it is compressed by gzip").err;
    let unpack = advice(&err, "; to unpack it: ");
    sandbox.in_shell(&format!("{unpack} | percolite load --create new rows")).succeeds();
    assert_eq!(sandbox.ok("scan new rows"), LOADED);
    for (what, line) in [
        ("shell", "percolite shell shop"),
        ("load", "percolite load shop fruit --skip-bad"),
        ("put", "percolite put shop fruit k --value-encoding json --value-file -"),
        ("demo", "percolite demo --input -"),
    ] {
        let err = sandbox.in_shell(&format!("{line} < 'my rows.csv'")).fails(1, "it is compressed by gzip").err;
        assert!(err.contains("gzip -dc FILE"), "{what}: {err}");
    }
    // A pipe may give a byte at a time.
    let script = "(printf '\\037'; sleep 0.2; printf '\\213\\010') | percolite load --create none rows --skip-bad";
    sandbox.in_shell(script).fails(1, "it is compressed by gzip");
    for (magic, what) in [
        (&b"\x28\xb5\x2f\xfd\0"[..], "zstd -dc"),
        (b"\xfd7zXZ\0\0", "xz -dc"),
        (b"BZh91AY&SY\0", "bzip2 -dc"),
        (b"PK\x03\x04\x14\0", "unzip -p"),
        (b"7z\xbc\xaf\x27\x1c\0", "7z e -so"),
    ] {
        sandbox.file("packed", magic);
        sandbox.run("load --create none rows packed").fails(1, &format!("; to unpack it: {what} packed"));
        let restore = format!("; to restore it: {what} packed | percolite restore none -");
        sandbox.run("restore none packed").fails(5, &restore);
        assert!(!sandbox.path().join("none").exists());
    }
    sandbox.ok("dump shop 'my.dump");
    sandbox.in_shell("gzip -k \"'my.dump\"").succeeds();
    let err = sandbox.in_shell("percolite restore \"$S\" \"'my.dump.gz\"").fails(5, "it is compressed by gzip").err;
    sandbox.in_shell(advice(&err, "; to restore it: ")).succeeds();
    let shown = sandbox.in_shell("percolite get \"$S\" fruit apple").succeeds();
    assert_eq!(shown, "red\n");
}

#[test]
fn a_file_of_another_command_is_named_and_the_advice_reads_it() {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("dump shop my.dump");
    let err = sandbox.run("load new rows my.dump").fails(1, "it is a percolite dump").err;
    sandbox.in_shell(advice(&err, "; to restore it: ")).succeeds();
    assert_eq!(sandbox.ok("get new fruit apple"), "red\n");
    for text in ["apple,red\nkiwi,grün\n", "{\"key\": \"apple\", \"value\": \"red\"}\n"] {
        sandbox.file("my rows", text);
        let err =
            sandbox.in_shell("percolite restore other 'my rows'").fails(5, "is not a percolite dump: it is text").err;
        let load = advice(&err, "it is text; ").split(" loads rows").next().unwrap().replace("KEYSPACE", "fruit");
        sandbox.in_shell(&load).succeeds();
        assert_eq!(sandbox.ok("get other fruit apple"), "red\n");
        sandbox.in_shell("percolite restore third - < 'my rows'").fails(5, "standard input is not a percolite dump");
        sandbox.in_shell("rm -r other").succeeds();
    }
    let err = sandbox.run("load new rows shop").fails(1, "shop is a store, not a file of rows").err;
    let scan = advice(&err, "rows: ").split(" prints").next().unwrap().replace("KEYSPACE", "fruit");
    sandbox.in_shell(&format!("{scan} | percolite load --create new rows")).succeeds();
    std::fs::create_dir(sandbox.path().join("subdir")).unwrap();
    for line in [
        "load new rows subdir",
        "demo --input subdir",
        "put new rows k --value-file subdir",
        "put new rows k --value-encoding json --value-file subdir",
        "dump --overwrite shop subdir",
        "dump --base subdir shop d",
    ] {
        sandbox.run(line).fails(1, "name a file in it");
    }
    for line in ["load new rows", "restore none -", "shell new"] {
        sandbox.in_shell(&format!("percolite {line} < subdir")).fails(1, "Is a directory (os error 21); name a file");
    }
    assert!(!sandbox.path().join("none").exists());
}
