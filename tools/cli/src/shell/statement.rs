//! The statements of the shell: those of the command line without the store, and those of transactions. Words are quoted as in other shells.

use clap::{CommandFactory as _, Parser};

use anyhow::Result;

use crate::encoding::EncodingArgs;
use crate::exit::Code;
use crate::{delete, get, put, scan, usage_error, versions};

const NOTES: &str = "\
Words with blanks go into quotes: put fruit 'red apple' \"it's sweet\". Options are those of the command line, as in \
scan fruit --rev --limit 10 --json, and `help scan` shows them. A line that begins with # is a comment.";

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
    /// Show values
    Get(get::GetArgs),
    /// Set values
    Put(put::PutArgs),
    /// Remove rows
    Delete(delete::DeleteArgs),
    /// Show rows in order
    Scan(scan::ScanArgs),
    /// Show what commits have made of a row
    Versions(versions::VersionsArgs),
    /// Begin a transaction: what is between takes effect at once, or not at all
    Begin,
    /// Have it take effect
    Commit,
    /// Take it back, or with `to NAME` what came after the savepoint
    Rollback {
        /// Nothing, or: to NAME
        #[arg(num_args = 0..=2, value_names = ["to", "NAME"])]
        to: Vec<String>,
    },
    /// Mark a point in the transaction
    Savepoint {
        /// Its name
        name: String,
    },
    /// Forget a savepoint and those after it, and take back nothing
    Release {
        /// Its name
        name: String,
    },
    /// Show the names of keyspaces
    Keyspaces {
        /// Count the rows
        #[arg(long)]
        count: bool,
        /// JSON lines
        #[arg(long)]
        json: bool,
    },
    /// Make a keyspace
    Create {
        /// Its name
        name: String,
    },
    /// Show the row locks that dead processes have left
    Locks {
        #[command(flatten)]
        encodings: EncodingArgs,
        /// JSON lines
        #[arg(long)]
        json: bool,
    },
    /// Show how the store stands since the shell has opened it
    Stats {
        /// Count all rows, and estimate none
        #[arg(long)]
        exact: bool,
        /// One JSON document
        #[arg(long)]
        json: bool,
    },
    /// End the shell
    #[command(visible_alias = "exit")]
    Quit,
}

/// What a line is.
pub enum Parsed {
    /// Empty, or a comment.
    Empty,
    /// Help, which is asked for.
    Help(String),
    Statement(Statement),
}

impl Parsed {
    pub fn of(line: &str) -> Result<Self> {
        let mut words = shlex::split(line).ok_or_else(|| Code::Usage.error("a quote is not closed"))?;
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
                return Err(Code::Usage.error("it is: rollback, or rollback to NAME"));
            }
            Ok(line) => return Ok(Self::Statement(line.statement)),
            Err(err) => err,
        };
        if err.exit_code() == 0 {
            return Ok(Self::Help(err.render().to_string().trim_end().to_owned()));
        }
        if !keywords().contains(&first) {
            return Err(Code::Usage.error(format!("there is no statement {first:?}; `help` shows them")));
        }
        Err(Code::Usage.error(usage_error::one_line(&err, &format!("help {first}"))))
    }
}

/// Each begins a statement.
pub fn keywords() -> Vec<String> {
    let mut words: Vec<String> =
        clap_command().get_subcommands().map(|statement| statement.get_name().to_owned()).collect();
    words.push("exit".into());
    words.sort();
    words
}

/// The statements, and all that they take.
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

    fn wrong(line: &str) -> String {
        match Parsed::of(line) {
            Err(err) => err.to_string(),
            Ok(_) => panic!("{line} makes sense"),
        }
    }

    fn put(line: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        match Parsed::of(line).unwrap() {
            Parsed::Statement(Statement::Put(what)) => {
                what.rows(what.encodings.or_default_from(Encodings::default())).unwrap()
            }
            _ => panic!("{line} puts nothing"),
        }
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_a_statement_panic(line: String, words in proptest::collection::vec("[a-z'\"# \\\\;\0-\u{7f}]{0,12}", 0..6)) {
            let _ = Parsed::of(&line);
            for first in keywords() {
                let line = format!("{first} {}", words.join(" "));
                // An error is one line, whatever was typed.
                if let Err(err) = Parsed::of(&line) {
                    assert!(!err.to_string().is_empty() && !err.to_string().contains('\n'), "{err:?}");
                }
            }
        }

        #[test]
        fn words_that_are_quoted_come_through_whatever_is_in_them(key in "[^\0]{1,20}", value in "[^\0]{0,20}") {
            let line = format!("put rows -- {} {}", shlex::try_quote(&key).unwrap(), shlex::try_quote(&value).unwrap());
            assert_eq!(put(&line), [(key.into_bytes(), value.into_bytes())]);
        }
    }

    #[test]
    fn quoted_words_are_one() {
        assert_eq!(put("put fruit 'red apple' \"it's\""), [(b"red apple".into(), b"it's".into())]);
        assert!(matches!(Parsed::of("  # a comment").unwrap(), Parsed::Empty));
        assert!(matches!(Parsed::of(" ; ").unwrap(), Parsed::Empty));
        assert!(wrong("get fruit 'apple").contains("quote"));
    }

    #[test]
    fn a_statement_that_makes_no_sense_is_told_where_help_is() {
        assert_eq!(
            wrong("put fruit"),
            "the following required arguments were not provided: <KEY VALUE>...; see `help put`"
        );
        assert_eq!(wrong("quit now"), "unexpected argument 'now' found; see `help quit`");
        assert_eq!(wrong("fetch it"), "there is no statement \"fetch\"; `help` shows them");
        for rollback in ["rollback to", "rollback a b", "rollback a"] {
            assert_eq!(wrong(rollback), "it is: rollback, or rollback to NAME");
        }
        for line in [
            "scan fruit a",
            "scan fruit --limit x",
            "scan",
            "versions fruit",
            "release",
            "put f --value-encoding xml a b",
        ] {
            wrong(line);
        }
    }

    #[test]
    fn every_statement_is_helped_with() {
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
