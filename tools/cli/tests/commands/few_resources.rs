//! Few descriptors, little memory, and a umask that makes directories without rights.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::common::Sandbox;

/// At whichever call of the store or of RocksDB the descriptors end.
#[test]
fn descriptors_that_run_out_are_never_taken_for_damage() {
    let sandbox = Sandbox::with_shop();
    for line in ["put shop fruit a b", "get shop fruit apple", "lock acquire shop job --ttl 100ms --wait 5s"] {
        let mut refused = 0;
        for limit in 4..40 {
            let ran = sandbox.in_shell(&format!("ulimit -n {limit}; percolite {line}"));
            match ran.code {
                Some(0) => {}
                // The program itself could not be loaded.
                Some(127) => assert!(ran.err.contains("shared libraries"), "{limit}: {line}: {}", ran.err),
                code => {
                    assert_eq!(code, Some(1), "{limit}: {line}: {}", ran.err);
                    let advice = ran.err.matches("(ulimit -n, LimitNOFILE)").count();
                    assert_eq!(advice, 1, "{limit}: {line}: {}", ran.err);
                    refused += 1;
                }
            }
        }
        assert!(refused > 5, "{line}: {refused} limits were too low");
    }
    sandbox.ok("verify shop");
}

/// Whatever the limit is, nothing hangs, and nothing ends without an error.
#[test]
fn little_address_space_is_an_error_that_names_the_limit() {
    let sandbox = Sandbox::with_shop();
    for environment in ["", "MALLOC_ARENA_MAX=1"] {
        for line in ["put shop fruit a b", "get shop fruit apple", "stats shop", "verify shop"] {
            let mut refused = 0;
            for limit in (60_000..1_500_000).step_by(72_000) {
                let script = format!("ulimit -v {limit}; export {environment} LIMITED=; timeout -k 1 60 $P {line}");
                let ran = sandbox.in_shell(&script.replace("$P", env!("CARGO_BIN_EXE_percolite")));
                let when = format!("{environment} {limit}: {line}: {:?}: {}", ran.code, ran.err);
                match ran.code {
                    Some(0) => {}
                    Some(1) => {
                        assert!(ran.err.contains(&format!("(ulimit -v, LimitAS) is {limit} KiB")), "{when}");
                        refused += 1;
                    }
                    _ => panic!("{when}"),
                }
            }
            // With one arena most of the limits are enough.
            let expected = if environment.is_empty() { 12..20 } else { 3..9 };
            assert!(expected.contains(&refused), "{environment}: {line}: {refused} limits were too low");
        }
    }
    sandbox.ok("verify shop");
}

#[test]
fn a_directory_that_cannot_be_entered_is_not_left_by_the_first_attempt() {
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let as_other_user = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c"]);
        let script = script.replace("percolite", env!("CARGO_BIN_EXE_percolite"));
        command.arg(script).current_dir(sandbox.path()).output().unwrap().status.code()
    };
    if as_other_user("percolite --version") != Some(0) {
        eprintln!("SKIPPED: this machine does not allow another user id");
        return;
    }
    for mask in ["777", "277", "577"] {
        let code = as_other_user(&format!("umask {mask}; percolite put --create new/shop rows k v"));
        assert_eq!(code, Some(1), "{mask}");
        assert_eq!(as_other_user("percolite put --create new/shop rows k v"), Some(0), "after {mask}");
        fs::remove_dir_all(sandbox.path().join("new")).unwrap();
    }
}

/// The signal of the limit would end the program: a write beyond it is an error with the advice.
#[test]
fn a_low_limit_of_file_size_is_an_error_and_loses_nothing() {
    let sandbox = Sandbox::with_shop();
    let rows: String =
        (0..2000).map(|number| format!("{{\"key\":\"k{number}\",\"value\":\"{number:0900}\"}}\n")).collect();
    sandbox.file("rows.jsonl", rows);
    let mut refused = 0;
    for blocks in [0, 1, 8, 64, 256, 600, 1200, 2400, 4800] {
        for line in ["load shop fruit rows.jsonl", "dump shop copy.dump --overwrite", "put shop fruit a b"] {
            let ran = sandbox.in_shell(&format!("ulimit -f {blocks}; percolite {line}"));
            let when = format!("{blocks}: {line}: {:?}: {}", ran.code, ran.err);
            assert!(matches!(ran.code, Some(0 | 1 | 6)), "{when}");
            if ran.code != Some(0) {
                assert!(ran.err.contains("(ulimit -f, LimitFSIZE)"), "{when}");
                refused += 1;
            }
            assert_eq!(sandbox.ok("get shop fruit apple"), "red\n", "{when}");
        }
    }
    assert!((6..24).contains(&refused), "{refused} commands failed");
    sandbox.ok("verify shop");
}
