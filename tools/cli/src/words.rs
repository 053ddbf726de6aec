//! The words of the help pages, explained on each page that uses them.
//!
//! The words are those of the glossary, in shorter sentences, and words of RocksDB and PostgreSQL
//! that the output has. A page is searched for them when it is displayed, so that no page can use
//! a word that it does not explain.

use clap::Command;

/// Words and what they mean.
const WORDS: [(&str, &str); 37] = [
    ("active transaction", "a transaction or snapshot that has not ended"),
    ("admission", "the limit of attempts that run at once, while there are conflicts"),
    ("attempt", "one run of a transaction; a conflict leads to the next"),
    ("block cache", "memory for blocks of tables that were read"),
    ("cell", "a key and a value as they are stored"),
    ("checkpoint", "a second store, the state of one moment; mostly hard links"),
    ("compaction", "the rewriting of tables, which removes what nothing reads"),
    ("conflict", "two transactions write a row at once: the second fails, and is tried again"),
    ("data loss", "acknowledged commits that the WAL has lost"),
    ("durability lag", "how far the newest durable commit is behind the newest visible one"),
    ("durable", "surviving a power cut"),
    ("fencing token", "a token, as a service outside of the store checks it"),
    ("fingerprint", "the number of one data loss"),
    ("history", "replaced versions that are kept for a time: see retention"),
    ("keyspace", "a named map of rows"),
    ("large transaction", "one that locks its rows in the store before it commits"),
    ("lease", "a hold on a named lock that ends after its time"),
    ("memtable", "memory for commits that are not in tables yet"),
    ("named lock", "a lock on a name, taken by a program; it locks no row"),
    ("orphan", "a row lock whose process ended in the middle of a commit"),
    ("owner", "the number of a transaction or of a holder"),
    ("primary", "the row whose state decides a transaction of several rows"),
    ("read_ts", "the timestamp up to which all commits are seen"),
    ("resolve", "to bring a row lock to the outcome of its transaction"),
    ("roll forward", "to make the lock of a committed transaction a version"),
    ("row lock", "a lock of a transaction on a row that it writes, mostly for milliseconds"),
    ("segment", "a file of the WAL"),
    ("snapshot", "the state of one moment"),
    ("start_ts", "the timestamp that names a transaction"),
    ("sync", "a call that makes what was written durable"),
    ("table", "a sorted file of RocksDB"),
    ("token", "the number of a hold on a named lock; a later hold has a greater one"),
    ("transaction record", "how a transaction ended, kept at its primary while it has locks"),
    ("version", "a value that a row had from one commit to the next"),
    ("view", "the state that a transaction or snapshot reads"),
    ("WAL", "the write-ahead log: each commit is written there first"),
    ("write stall", "a write that waits, because the flush of memory into tables has not kept up"),
];

/// The command and its subcommands, with an explanation of the words on each page.
pub fn explain(mut command: Command) -> Command {
    command.build();
    explain_built(command)
}

fn explain_built(mut command: Command) -> Command {
    let page = page_words(&command.clone().render_help().to_string());
    let used = WORDS.into_iter().filter(|(word, _)| has_word(&page, word));
    let lines: Vec<String> = used.map(|(word, meaning)| format!("  {word:<18}  {meaning}")).collect();
    if !lines.is_empty() {
        let before = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let words = format!("{before}\n\nWords (docs/glossary.md has more):\n{}", lines.join("\n"));
        command = command.after_help(words.trim_start().to_owned());
    }
    command.mut_subcommands(explain_built)
}

/// The words of a page, each with a blank around it, in lower case.
fn page_words(page: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    // The names of options and paths use words in other senses.
    let prose = page
        .split_whitespace()
        .filter(|word| !word.trim_start_matches('[').starts_with("--") && !word.starts_with('~'));
    let words = prose.flat_map(|word| word.split(|c| !is_part(c))).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_lowercase).collect();
    format!(" {} ", words.join(" "))
}

/// Whether the page has the word, or its plural.
fn has_word(page: &str, word: &str) -> bool {
    let word = word.to_lowercase();
    ["", "s", "d"].iter().any(|end| page.contains(&format!(" {word}{end} ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    const GLOSSARY: &str = include_str!("../../../docs/glossary.md");

    /// Words of the glossary that the pages use in their usual meaning, or in the name of an
    /// option, or explain in the sentence itself.
    const USUAL: [&str; 13] = [
        "batch",
        "case",
        "column",
        "fence",
        "grant",
        "kill",
        "owner id",
        "release",
        "request",
        "round",
        "secondary",
        "ttl",
        "tables",
    ];

    fn terms() -> Vec<String> {
        let rows = GLOSSARY.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        let terms = rows.flat_map(|terms| terms.split(", ")).map(|term| term.trim().trim_matches('`').to_lowercase());
        terms.filter(|term| term != "term").collect()
    }

    fn pages(command: &Command) -> Vec<(String, String)> {
        let own = (command.get_name().to_owned(), command.clone().render_help().to_string());
        std::iter::once(own).chain(command.get_subcommands().filter(|one| !one.is_hide_set()).flat_map(pages)).collect()
    }

    #[test]
    fn every_word_of_the_glossary_that_a_page_uses_is_explained_there() {
        let terms = terms();
        assert!(terms.len() > 100, "{}", terms.len());
        let mut unexplained = Vec::new();
        for (name, page) in pages(&explain(Cli::command())) {
            let (before, explained) = page.split_once("Words (docs/glossary.md has more):\n").unwrap_or((&page, ""));
            for term in terms.iter().filter(|term| has_word(&page_words(before), term)) {
                let is_explained = explained.lines().any(|line| {
                    let word = line.trim_start().split("  ").next().unwrap().to_lowercase();
                    has_word(&page_words(term), &word)
                });
                if !is_explained && !USUAL.contains(&term.as_str()) {
                    unexplained.push(format!("{name}: {term}"));
                }
            }
        }
        assert_eq!(unexplained, [""; 0]);
    }

    #[test]
    fn words_are_sorted_and_fit_in_a_line() {
        assert!(WORDS.is_sorted_by_key(|(word, _)| word.to_lowercase()));
        for (word, meaning) in WORDS {
            assert!(word.len() <= 18 && meaning.len() <= 80, "{word}");
        }
    }
}
