//! Parses the command line. An invalid command line is an error of one line, like every other
//! error.
//!
//! clap reports an invalid command line in several paragraphs: the error, a tip, and the usage.
//! Error and tip are joined into one line, and the usage is replaced by the command that prints it.

use std::ffi::OsStr;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::words;

/// Parses the command line. `--help` and `--version` print and exit.
pub fn parse<Cli: Parser>() -> Result<Cli, String> {
    Cli::try_parse().map_err(|err| match err.kind() {
        ErrorKind::DisplayVersion => err.exit(),
        // The words of the page are explained only when it is displayed, which takes a while.
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            words::explain(Cli::command()).try_get_matches().map_or_else(|err| err.exit(), |_| err.exit())
        }
        _ => one_line(&err, &help_command::<Cli>(std::env::args_os().skip(1))),
    })
}

/// The command that prints the help: `--help` of the longest chain of subcommands that was given.
fn help_command<Cli: CommandFactory>(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let (mut command, mut named) = (Cli::command(), "percolite".to_owned());
    for word in words {
        let Some(found) = command.find_subcommand(word.as_ref()) else { break };
        named = format!("{named} {}", found.get_name());
        command = found.clone();
    }
    format!("{named} --help")
}

/// clap's message in one line, with the command that prints the help.
pub fn one_line(err: &clap::Error, help: &str) -> String {
    let text = err.render().to_string();
    let paragraphs = text.trim().split("\n\n").take_while(|paragraph| !paragraph.starts_with("Usage:"));
    let wanted = paragraphs.filter(|paragraph| !paragraph.starts_with("For more information"));
    let message = wanted.map(join_paragraph).collect::<Vec<_>>().join("; ");
    format!("{}; see `{help}`", message.strip_prefix("error: ").unwrap_or(&message))
}

/// A paragraph in one line: its sentence, then the items of its list, if there is one.
fn join_paragraph(paragraph: &str) -> String {
    let paragraph = paragraph.trim().trim_start_matches("tip: ");
    let mut lines = paragraph.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    let others = lines.collect::<Vec<_>>();
    if others.is_empty() { first.to_owned() } else { format!("{first} {}", others.join(", ")) }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use proptest::prelude::*;

    use super::*;
    use crate::Cli;

    /// Commands, their options, and arguments.
    fn word() -> impl Strategy<Value = String> {
        let command = Cli::command();
        let options = |command: &clap::Command| -> Vec<String> {
            command.get_arguments().filter_map(|option| Some(format!("--{}", option.get_long()?))).collect()
        };
        let known = command
            .get_subcommands()
            .flat_map(|found| std::iter::once(found.get_name().to_owned()).chain(options(found)).collect::<Vec<_>>());
        let known: Vec<String> = known.chain(["--", "-", "help"].map(Into::into)).collect();
        prop_oneof![
            3 => prop::sample::select(known),
            2 => "[-+0-9a-zKMG.:=T]{0,12}",
            1 => any::<String>(),
        ]
    }

    proptest! {
        #[test]
        fn invalid_command_lines_give_a_one_line_error(
            words in prop::collection::vec(word(), 0..8),
        ) {
            let line = std::iter::once("percolite").chain(words.iter().map(String::as_str));
            let Err(err) = Cli::try_parse_from(line) else { return Ok(()) };
            let message = one_line(&err, &help_command::<Cli>(&words));
            prop_assert!(err.exit_code() == 0 || message.lines().count() == 1, "{}", message);
            prop_assert!(message.ends_with("--help`") && !message.starts_with("error"), "{}", message);
        }
    }
}
