//! --help, completions, manual pages.

use crate::common::Sandbox;

const COMMANDS: [&str; 21] = [
    "versions",
    "history",
    "get",
    "put",
    "delete",
    "scan",
    "load",
    "keyspaces",
    "shell",
    "dump",
    "restore",
    "checkpoint",
    "verify",
    "stats",
    "lock",
    "locks",
    "txn",
    "top",
    "completions",
    "man",
    "demo",
];

#[test]
fn every_command_teaches_by_example() {
    let sandbox = Sandbox::new();
    let all = sandbox.ok("--help");
    assert!(all.contains("Exit codes:") && all.contains("Examples:"));
    for command in COMMANDS {
        assert!(all.contains(&format!("\n  {command} ")), "{command}");
        let help = sandbox.ok(&format!("{command} --help"));
        let examples = help.split("Examples:\n").nth(1).unwrap().split("\n\n").next().unwrap();
        // What is too long is wrapped, and begins anywhere.
        let is_wrapped = |line: &str| !line.contains("percolite ") && !line.starts_with(&" ".repeat(20));
        assert!(!examples.lines().any(is_wrapped), "{command}: {examples}");
        assert!(help.contains("Examples:") && help.contains(&format!("percolite {command}")), "{command}: {help}");
    }
}

#[test]
fn completions_and_pages_name_every_command() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sandbox.ok(&format!("completions {shell}"));
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
    }
    sandbox.ok("man pages");
    for command in COMMANDS {
        let page = std::fs::read_to_string(sandbox.path().join(format!("pages/percolite-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
    }
}

#[test]
fn commands_of_a_command_teach_by_example_too_and_have_pages() {
    let sandbox = Sandbox::new();
    sandbox.ok("man pages");
    for command in ["take", "release", "run"] {
        let help = sandbox.ok(&format!("lock {command} --help"));
        assert!(help.contains(&format!("Examples:\n  percolite lock {command} ")), "{help}");
        let page = std::fs::read_to_string(sandbox.path().join(format!("pages/percolite-lock-{command}.1"))).unwrap();
        assert!(page.contains(".SH \"EXAMPLES\""), "{page}");
        sandbox.run(&format!("lock {command}")).fails(2, &format!("; see `percolite lock {command} --help`"));
    }
    assert_eq!(sandbox.run("lock").code, Some(2));
}

#[test]
fn help_says_that_commands_that_wait_for_a_lock_have_no_order() {
    let sandbox = Sandbox::new();
    for command in ["lock", "lock acquire", "lock run", "locks"] {
        let help = sandbox.ok(&format!("{command} --help")).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("in no queue"), "{help}");
    }
}

#[test]
fn there_are_no_colours_where_there_is_no_terminal() {
    let sandbox = Sandbox::with_shop();
    for line in ["scan shop fruit", "locks shop", "stats shop", "--help", "verify shop"] {
        assert!(!sandbox.ok(line).contains('\x1b'), "{line}");
    }
}
