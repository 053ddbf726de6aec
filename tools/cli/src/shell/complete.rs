//! What Tab offers: statements, and behind some of them the names of keyspaces.

use percolite::Store;
use reedline::{Completer, Span, Suggestion};

use super::statement::{WITH_KEYSPACE, WORDS};

pub struct Words {
    store: Store,
}

impl Words {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    fn candidates(&self, before: &[&str]) -> Vec<String> {
        match before {
            [] => WORDS.map(str::to_owned).to_vec(),
            [first] if WITH_KEYSPACE.contains(first) => {
                let names = self.store.keyspaces().unwrap_or_default();
                names.into_iter().filter_map(|name| shlex::try_quote(&name).ok().map(Into::into)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Completer for Words {
    fn complete(&mut self, line: &str, position: usize) -> Vec<Suggestion> {
        let typed = line.get(..position).unwrap_or(line);
        let start = typed.rfind(char::is_whitespace).map_or(0, |blank| blank + 1);
        let (before, word) = typed.split_at(start);
        let before: Vec<&str> = before.split_whitespace().collect();
        let found = self.candidates(&before).into_iter().filter(|candidate| candidate.starts_with(word));
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
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn statements_come_first_and_keyspaces_behind_those_that_take_one() {
        let store = Store::in_memory().unwrap();
        store.keyspace("fruit").unwrap();
        store.keyspace("red fruit").unwrap();
        let mut words = Words::new(store);
        let mut offered =
            |line: &str| words.complete(line, line.len()).into_iter().map(|found| found.value).collect::<Vec<_>>();
        assert_eq!(offered("co"), ["commit"]);
        assert_eq!(offered("get "), ["fruit", "'red fruit'"]);
        assert_eq!(offered("put fr"), ["fruit"]);
        assert!(offered("get fruit a").is_empty() && offered("commit ").is_empty());
    }
}
