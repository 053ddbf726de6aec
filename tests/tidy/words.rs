//! Words that are not to come back, and a glossary whose words are used.

use crate::{DOCUMENTS, RUST, Source, check, sources};

/// Write a word of docs/glossary.md instead, or a plain sentence with the thing as its subject.
const BANNED: &[&str] = &[
    "nobody",
    "somebody",
    "anybody",
    "whoever",
    "in vain",
    "so many",
    "so long as",
    "housekeeper",
    "housekeeping",
    "hand-down",
    "handed down",
    "hands down",
    "unapplied",
    "combiner",
    "told",
    "hears",
    "unrest",
    "sees to",
    "folder",
    "folders",
    "unadmitted",
    "be_punctual",
    "line_up",
    "entrance",
    "commons",
];

/// This file tests missing permissions as a user whose usual name is the first of the words.
const USER_NOBODY: &[&str] = &["tools/cli/tests/commands/errors.rs"];

#[test]
fn words_of_our_own_do_not_come_back() {
    let mut broken = Vec::new();
    let rust = sources(RUST, ".rs").into_iter().filter(|source| !source.path.starts_with("tests/tidy/"));
    for Source { path, text } in rust.chain(sources(DOCUMENTS, ".md")) {
        for (line, number) in text.lines().zip(1..) {
            let line = line.to_lowercase();
            let words = BANNED.iter().filter(|word| has_word(&line, word));
            broken.extend(words.map(|word| (path.clone(), format!(":{number}: {word}"))));
        }
    }
    check("the field's words, in plain sentences", &broken, USER_NOBODY);
}

fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |char: Option<char>| char.is_some_and(char::is_alphanumeric);
    line.match_indices(word)
        .any(|(at, _)| !is_letter(line[..at].chars().next_back()) && !is_letter(line[at + word.len()..].chars().next()))
}

#[test]
fn glossary_has_only_words_that_are_used() {
    let glossary = &sources(&["docs/glossary.md"], ".md")[0].text;
    let used = sources(RUST, ".rs").into_iter().map(|source| source.text.to_lowercase().replace('_', " "));
    let used = used.collect::<Vec<_>>().join("\n");
    let terms = glossary.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let (mut broken, mut count) = (Vec::new(), 0);
    for term in terms.flat_map(|cell| cell.split(", ")).map(|term| term.trim_matches('`').to_lowercase()) {
        count += 1;
        if !used.contains(&term.replace('_', " ")) && !used.contains(&term.replace(' ', "")) {
            broken.push(("docs/glossary.md".to_string(), format!(": {term} is nowhere in the code")));
        }
    }
    assert!(count > 60, "only {count} terms were found");
    check("the glossary is about the code", &broken, &[]);
}
