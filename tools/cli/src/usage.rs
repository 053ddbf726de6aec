//! Command lines that make no sense: told in one line, as every other error.
//!
//! clap tells them in a paragraph, one for a hint, and the usage. The usage is what `--help` is for; the others are kept.

use std::ffi::OsStr;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

/// Reads the command line. One that asks for help gets it, and one that makes no sense ends the program.
pub fn parse<Cli: Parser>() -> Result<Cli, String> {
    Cli::try_parse().map_err(|why| match why.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::DisplayVersion => {
            why.exit()
        }
        _ => told(&why, &help_of::<Cli>(std::env::args_os().skip(1))),
    })
}

/// Where help is to be had: as far as the words name a command, and one of its own.
fn help_of<Cli: CommandFactory>(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let (mut command, mut named) = (Cli::command(), "percolite".to_owned());
    for word in words {
        let Some(found) = command.find_subcommand(word.as_ref()) else { break };
        named = format!("{named} {}", found.get_name());
        command = found.clone();
    }
    format!("{named} --help")
}

/// What clap says in many lines, in one, and where more is said.
pub fn told(why: &clap::Error, help: &str) -> String {
    let text = why.render().to_string();
    let paragraphs = text.trim().split("\n\n").take_while(|told| !told.starts_with("Usage:"));
    let told: Vec<String> = paragraphs.filter(|told| !told.starts_with("For more information")).map(joined).collect();
    let told = told.join("; ");
    format!("{}; see `{help}`", told.strip_prefix("error: ").unwrap_or(&told))
}

/// A sentence, and the list behind it if it has one.
fn joined(paragraph: &str) -> String {
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

    /// Commands, options of theirs, and what may stand behind them.
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
        fn no_command_line_makes_reading_it_panic_and_what_makes_no_sense_is_told_in_one_line(
            words in prop::collection::vec(word(), 0..8),
        ) {
            let line = std::iter::once("percolite").chain(words.iter().map(String::as_str));
            let Err(why) = Cli::try_parse_from(line) else { return Ok(()) };
            let told = told(&why, &help_of::<Cli>(&words));
            prop_assert!(why.exit_code() == 0 || told.lines().count() == 1, "{}", told);
            prop_assert!(told.ends_with("--help`") && !told.starts_with("error"), "{}", told);
        }
    }
}
