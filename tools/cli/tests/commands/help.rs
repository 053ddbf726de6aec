//! --help, completions, manual pages.

use crate::common::Sandbox;

/// The number of commands: none may vanish from the help unnoticed.
const COMMANDS: usize = 23;

/// The commands that the help lists, except `help` itself.
fn commands(help: &str) -> Vec<&str> {
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // A description that is too long goes on in a line that is indented further.
    let names =
        listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    let names: Vec<&str> = names.filter(|name| *name != "help").collect();
    assert_eq!(names.len(), COMMANDS, "{names:?}");
    names
}

#[test]
fn the_help_of_every_command_has_examples() {
    let sandbox = Sandbox::new();
    let all = sandbox.ok("--help");
    assert!(all.contains("Exit codes:") && all.contains("Examples:"));
    for command in commands(&all) {
        let help = sandbox.ok(&format!("{command} --help"));
        let examples = help.split("Examples:\n").nth(1).unwrap().split("\n\n").next().unwrap();
        // A line that is too long is wrapped. Its rest has no command, and is not indented as far
        // as the explanation of a command.
        let is_wrapped = |line: &str| !line.contains("percolite ") && !line.starts_with(&" ".repeat(20));
        assert!(!examples.lines().any(is_wrapped), "{command}: {examples}");
        assert!(help.contains("Examples:") && help.contains(&format!("percolite {command}")), "{command}: {help}");
    }
}

#[test]
fn completions_and_pages_name_every_command() {
    let sandbox = Sandbox::new();
    let help = sandbox.ok("--help");
    let commands = commands(&help);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sandbox.ok(&format!("completions {shell}"));
        assert!(commands.iter().all(|command| script.contains(command)), "{shell}");
    }
    sandbox.ok("man pages");
    for command in commands {
        let page = std::fs::read_to_string(sandbox.path().join(format!("pages/percolite-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
    }
}

#[test]
fn subcommands_have_examples_and_manual_pages() {
    let sandbox = Sandbox::new();
    sandbox.ok("man pages");
    for command in ["acquire", "release", "run"] {
        let help = sandbox.ok(&format!("lock {command} --help"));
        assert!(help.contains(&format!("Examples:\n  percolite lock {command} ")), "{help}");
        let page = std::fs::read_to_string(sandbox.path().join(format!("pages/percolite-lock-{command}.1"))).unwrap();
        assert!(page.contains(".SH \"EXAMPLES\""), "{page}");
        sandbox.run(&format!("lock {command}")).fails(2, &format!("; see `percolite lock {command} --help`"));
    }
    assert_eq!(sandbox.run("lock").code, Some(2));
}

#[test]
fn help_says_in_which_order_waiting_lock_commands_run() {
    let sandbox = Sandbox::new();
    for command in ["lock", "lock acquire", "lock run", "locks"] {
        let help = sandbox.ok(&format!("{command} --help")).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("in the order of their arrival"), "{help}");
    }
}

#[test]
fn no_colours_without_a_terminal() {
    let sandbox = Sandbox::with_shop();
    for line in ["scan shop fruit", "locks shop", "stats shop", "--help", "verify shop"] {
        assert!(!sandbox.ok(line).contains('\x1b'), "{line}");
    }
}
