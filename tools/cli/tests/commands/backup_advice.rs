//! The advice in the errors of `restore` and `dump`, followed.

use crate::common::Sandbox;

/// A store `shop`, and its dump `full`; then an increment `more` with a new keyspace.
fn with_increment() -> Sandbox {
    let sandbox = Sandbox::with_shop();
    sandbox.ok("retention shop --set 7d");
    sandbox.ok("dump shop full");
    sandbox.ok("put shop fruit apple green");
    sandbox.ok("put --create shop people ada 1");
    sandbox.ok("dump --base full shop more");
    sandbox
}

#[test]
fn a_store_that_is_not_empty_is_replaced_or_left() {
    let sandbox = with_increment();
    sandbox.ok("put --create mine fruit apple blue");
    let err = sandbox.run("restore mine full").fails(1, ": restore into a new directory, or use --replace").err;
    assert!(!err.contains("::"), "{err}");
    sandbox.ok("restore other full");
    sandbox.ok("restore mine full --replace");
    ["mine", "other"].iter().for_each(|store| assert_eq!(sandbox.ok(&format!("get {store} fruit apple")), "red\n"));
    sandbox.ok("checkpoint shop copy");
    sandbox.run("restore new copy").fails(5, "; a checkpoint is a store and needs no restore");
    assert_eq!(sandbox.ok("get copy fruit apple"), "green\n");
    sandbox.in_shell("cp full mine/full").succeeds();
    sandbox.run("restore mine mine/full --replace").fails(1, "is inside the store: name a path outside");
}

#[test]
fn an_increment_is_restored_after_its_base_as_the_error_says() {
    let sandbox = with_increment();
    sandbox.run("restore copy more").fails(1, ": restore its base dump first");
    sandbox.ok("restore copy full");
    sandbox.ok("restore copy more");
    assert_eq!(sandbox.ok("get copy fruit apple"), "green\n");
    // Both ways out of a keyspace that is in the way.
    for way in ["replace", "rename"] {
        sandbox.ok(&format!("restore {way} full"));
        sandbox.ok(&format!("put --create {way} people bob 2"));
        let err = sandbox.run(&format!("restore {way} more")).fails(1, "keyspace \"people\"").err;
        let advice = format!(": rename or drop it (percolite keyspaces {way}), or use --replace");
        assert!(err.contains(&advice) && !err.contains("::"), "{err}");
        if way == "replace" {
            sandbox.ok("restore replace more --replace");
        } else {
            sandbox.ok("keyspaces rename --rename people old");
            sandbox.ok("restore rename more");
        }
        assert_eq!(sandbox.ok(&format!("get {way} people ada")), "1\n");
    }
    sandbox.ok("restore dropped full");
    sandbox.ok("keyspaces dropped --drop fruit");
    sandbox.run("restore dropped more").fails(1, ": restore a full dump");
    sandbox.ok("restore dropped full --replace");
    sandbox.ok("restore dropped more");
}

#[test]
fn a_base_that_cannot_be_used_is_replaced_by_a_full_dump_as_the_error_says() {
    let sandbox = with_increment();
    sandbox.ok("put --create other fruit apple blue");
    sandbox.ok("retention other --set 7d");
    sandbox.run("dump --base full other d").fails(1, ": take a full dump");
    sandbox.ok("dump other d");
    let mut bytes = std::fs::read(sandbox.path().join("full")).unwrap();
    let line_end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    bytes[line_end + 1..].iter_mut().for_each(|byte| *byte ^= 0xff);
    sandbox.file("damaged", bytes);
    sandbox.run("dump --base damaged shop e").fails(6, "; name another base, or make a full dump");
    sandbox.ok("dump --base full shop e");
    sandbox.run("dump --base full shop full --overwrite").fails(2, "name another file");
    sandbox.run("dump shop - --json").fails(2, "--json needs an output file");
    sandbox.ok("dump shop f --json");
}
