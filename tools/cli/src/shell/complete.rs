//! Completion with Tab: statements, keyspaces, options and their values.

use clap::Command;
use percolite::Store;
use reedline::{Completer, Span, Suggestion};

use super::statement::{clap_command, keywords};

pub struct StatementCompleter {
    store: Store,
    statements: Command,
}

impl StatementCompleter {
    pub fn new(store: Store) -> Self {
        Self { store, statements: clap_command() }
    }

    fn candidates(&self, before: &[&str], word: &str) -> Vec<String> {
        let Some((first, rest)) = before.split_first() else { return keywords() };
        if *first == "help" && rest.is_empty() {
            return keywords();
        }
        let Some(statement) = self.statements.find_subcommand(first) else { return Vec::new() };
        let long = |name: &str| statement.get_arguments().find(|option| option.get_long() == name.strip_prefix("--"));
        if let Some(option) = rest.last().filter(|last| last.starts_with("--")).and_then(|last| long(last)) {
            let values = option.get_possible_values();
            if option.get_action().takes_values() {
                return values.iter().map(|value| value.get_name().to_owned()).collect();
            }
        }
        if word.starts_with('-') {
            return statement.get_arguments().filter_map(|option| Some(format!("--{}", option.get_long()?))).collect();
        }
        let takes_keyspace = statement.get_positionals().any(|found| found.get_id() == "keyspace");
        if takes_keyspace && rest.iter().all(|word| word.starts_with('-')) {
            let names = self.store.keyspace_names().unwrap_or_default();
            return names.into_iter().filter_map(|name| shlex::try_quote(&name).ok().map(Into::into)).collect();
        }
        Vec::new()
    }
}

impl Completer for StatementCompleter {
    fn complete(&mut self, line: &str, position: usize) -> Vec<Suggestion> {
        let typed = line.get(..position).unwrap_or(line);
        let start = typed.rfind(char::is_whitespace).map_or(0, |blank| blank + 1);
        let (before, word) = typed.split_at(start);
        let before: Vec<&str> = before.split_whitespace().collect();
        let found = self.candidates(&before, word).into_iter().filter(|candidate| candidate.starts_with(word));
        let suggestion = |value| Suggestion {
            value,
            span: Span::new(start, position),
            append_whitespace: true,
            ..Suggestion::default()
        };
        found.map(suggestion).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    #[test]
    fn statements_come_first_then_keyspaces_and_options() {
        let store = Store::in_memory().unwrap();
        store.keyspace("fruit").unwrap();
        store.keyspace("red fruit").unwrap();
        let mut completer = StatementCompleter::new(store);
        let mut offered = |line: &str| -> Vec<String> {
            completer.complete(line, line.len()).into_iter().map(|suggestion| suggestion.value).collect()
        };
        assert_eq!(offered("co"), ["commit"]);
        assert_eq!(offered("st"), ["stats"]);
        assert_eq!(offered("help sc"), ["scan"]);
        assert_eq!(offered("get "), ["fruit", "'red fruit'"]);
        assert_eq!(offered("put fr"), ["fruit"]);
        assert_eq!(offered("scan --rev fr"), ["fruit"]);
        assert_eq!(offered("scan fruit --re"), ["--rev"]);
        assert_eq!(offered("get fruit --value-encoding "), ["text", "hex", "base64", "json"]);
        assert_eq!(offered("scan fruit --key-encoding b"), ["base64"]);
        for nothing in ["get fruit a", "commit ", "keyspaces ", "fetch ", "scan fruit --limit "] {
            assert!(offered(nothing).is_empty(), "{nothing}");
        }
    }
}
