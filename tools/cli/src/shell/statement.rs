//! Parses the statements of the shell: the commands of the command line without the store, and the
//! statements of transactions. Words are quoted as in a POSIX shell.

use clap::{CommandFactory as _, Parser};

use anyhow::Result;

use crate::encoding::EncodingArgs;
use crate::exit::Code;
use crate::{delete, get, put, scan, usage_error, versions};

const NOTES: &str = "\
Quote words with blanks: put fruit 'red apple' \"it's sweet\". The options are those of the command line, for example \
scan fruit --rev --limit 10 --json; `help scan` lists them. A line that begins with # is a comment.";

const TEMPLATE: &str = "{subcommands}{after-help}";

#[derive(Parser)]
#[command(name = "", no_binary_name = true, help_template = TEMPLATE, after_help = NOTES)]
struct Line {
    #[command(subcommand)]
    statement: Statement,
}

/// A statement.
#[derive(clap::Subcommand)]
pub enum Statement {
    /// Print the values of keys
    Get(get::GetArgs),
    /// Set values
    Put(put::PutArgs),
    /// Delete rows
    Delete(delete::DeleteArgs),
    /// Print rows in key order
    Scan(scan::ScanArgs),
    /// List the versions of a row
    Versions(versions::VersionsArgs),
    /// Begin a transaction
    Begin,
    /// Commit the transaction
    Commit,
    /// Roll back the transaction, or with `to NAME` the writes after the savepoint
    Rollback {
        /// Nothing, or: to NAME
        #[arg(num_args = 0..=2, value_names = ["to", "NAME"])]
        to: Vec<String>,
    },
    /// Set a savepoint in the transaction
    Savepoint {
        /// Its name
        name: String,
    },
    /// Release a savepoint and the later ones, and keep the writes
    Release {
        /// Its name
        name: String,
    },
    /// List the keyspaces
    Keyspaces {
        /// Count the rows
        #[arg(long)]
        count: bool,
        /// Print JSON lines
        #[arg(long)]
        json: bool,
    },
    /// Create a keyspace
    Create {
        /// Its name
        name: String,
    },
    /// Show the row locks
    Locks {
        #[command(flatten)]
        encodings: EncodingArgs,
        /// Print JSON lines
        #[arg(long)]
        json: bool,
    },
    /// Show the statistics since the shell has opened the store
    Stats {
        /// Count all rows instead of estimating
        #[arg(long)]
        exact: bool,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// End the shell
    #[command(visible_alias = "exit")]
    Quit,
}

/// A parsed line.
pub enum Parsed {
    /// An empty line, or a comment.
    Empty,
    /// A request for help; its text.
    Help(String),
    Statement(Statement),
}

impl Parsed {
    /// Parses a line. The text of an error is one line.
    pub fn of(line: &str) -> Result<Self> {
        let mut words = shlex::split(line).ok_or_else(|| {
            Code::Usage.error("a quote is not closed, and a statement has one line; put --value-file reads more")
        })?;
        let Some(first) = words.first_mut() else { return Ok(Self::Empty) };
        *first = first.trim_end_matches(';').to_ascii_lowercase();
        if first.is_empty() {
            return Ok(Self::Empty);
        }
        let first = first.clone();
        let err = match Line::try_parse_from(words) {
            Ok(Line { statement: Statement::Rollback { to } })
                if !matches!(to.as_slice(), [] | [_, _]) || to.first().is_some_and(|to| to != "to") =>
            {
                return Err(Code::Usage.error("usage: rollback, or rollback to NAME"));
            }
            Ok(line) => return Ok(Self::Statement(line.statement)),
            Err(err) => err,
        };
        if err.exit_code() == 0 {
            return Ok(Self::Help(err.render().to_string().trim_end().to_owned()));
        }
        if !keywords().contains(&first) {
            return Err(Code::Usage.error(format!("there is no statement {first:?}; `help` lists them")));
        }
        Err(Code::Usage.error(usage_error::one_line(&err, &format!("help {first}"))))
    }
}

/// The first words of all statements.
pub fn keywords() -> Vec<String> {
    let mut keywords: Vec<String> =
        clap_command().get_subcommands().map(|statement| statement.get_name().to_owned()).collect();
    keywords.push("exit".into());
    keywords.sort();
    keywords
}

/// The statements with their arguments.
pub fn clap_command() -> clap::Command {
    let mut line = Line::command();
    line.build();
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

    use super::*;
    use crate::encoding::Encodings;

    fn error_of(line: &str) -> String {
        match Parsed::of(line) {
            Err(err) => err.to_string(),
            Ok(_) => panic!("{line} is valid"),
        }
    }

    fn put(line: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        match Parsed::of(line).unwrap() {
            Parsed::Statement(Statement::Put(args)) => {
                args.rows(args.encodings.or_default_from(Encodings::default())).unwrap()
            }
            _ => panic!("{line} is no put"),
        }
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(
            line: String, words in proptest::collection::vec("[a-z'\"# \\\\;\0-\u{7f}]{0,12}", 0..6),
        ) {
            let _ = Parsed::of(&line);
            for first in keywords() {
                let line = format!("{first} {}", words.join(" "));
                // Every error is one line.
                if let Err(err) = Parsed::of(&line) {
                    assert!(!err.to_string().is_empty() && !err.to_string().contains('\n'), "{err:?}");
                }
            }
        }

        #[test]
        fn quoted_words_are_kept_verbatim(key in "[^\0]{1,20}", value in "[^\0]{0,20}") {
            let line = format!("put rows -- {} {}", shlex::try_quote(&key).unwrap(), shlex::try_quote(&value).unwrap());
            assert_eq!(put(&line), [(key.into_bytes(), value.into_bytes())]);
        }
    }

    #[test]
    fn quoted_words_are_one() {
        assert_eq!(put("put fruit 'red apple' \"it's\""), [(b"red apple".into(), b"it's".into())]);
        assert!(matches!(Parsed::of("  # a comment").unwrap(), Parsed::Empty));
        assert!(matches!(Parsed::of(" ; ").unwrap(), Parsed::Empty));
        assert!(error_of("get fruit 'apple").contains("quote"));
    }

    #[test]
    fn errors_of_invalid_statements_point_to_help() {
        assert_eq!(
            error_of("put fruit"),
            "the following required arguments were not provided: <KEY VALUE>...; see `help put`"
        );
        assert_eq!(error_of("quit now"), "unexpected argument 'now' found; see `help quit`");
        assert_eq!(error_of("fetch it"), "there is no statement \"fetch\"; `help` lists them");
        for rollback in ["rollback to", "rollback a b", "rollback a"] {
            assert_eq!(error_of(rollback), "usage: rollback, or rollback to NAME");
        }
        for line in [
            "scan fruit a",
            "scan fruit --limit x",
            "scan",
            "versions fruit",
            "release",
            "put f --value-encoding xml a b",
        ] {
            error_of(line);
        }
    }

    #[test]
    fn every_statement_has_help() {
        let Parsed::Help(all) = Parsed::of("help").unwrap() else { panic!("no help") };
        for word in keywords() {
            assert!(all.contains(&word), "{word}: {all}");
            if !matches!(word.as_str(), "help" | "exit") {
                let Parsed::Help(help) = Parsed::of(&format!("help {word}")).unwrap() else {
                    panic!("no help: {word}")
                };
                assert!(help.contains(&format!("Usage: {word}")), "{help}");
            }
        }
    }
}
