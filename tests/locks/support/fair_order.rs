//! Checks after a run that at most one batch of readers has passed each writer in the queue of one
//! lock.

use std::collections::{BTreeMap, BTreeSet};

use percolite::Timestamp;

/// A grant, as recorded by its holder.
pub struct Turn {
    /// The thread or task, which has one request at a time.
    pub holder: usize,
    pub writes: bool,
    /// The number of the request, in request order.
    pub id: u64,
    /// Orders the grants: a holder gets its token while it has the lock, so of two grants that
    /// exclude each other the later one has the higher token.
    pub token: Timestamp,
}

/// Checks that each writer waited at most for the requests ahead of it and for one batch of readers
/// that passed it. All requests must have been granted. Returns the number of requests that passed
/// a writer.
#[track_caller]
pub fn assert_one_batch_passes(mut turns: Vec<Turn>) -> usize {
    turns.sort_by_key(|turn| turn.token);
    let readers = holders(&turns, |turn| !turn.writes);
    let all = holders(&turns, |_| true);
    let mut passed = 0;
    for (place, writer) in turns.iter().enumerate().filter(|(_, turn)| turn.writes) {
        let (earlier, later) = (&turns[..place], &turns[place + 1..]);
        assert!(later.iter().all(|turn| turn.id > writer.id), "a writer has passed a request");
        let by: Vec<usize> = (0..place).filter(|at| turns[*at].id > writer.id).collect();
        // Only the newest request of each holder counts: the holder's earlier ones had ended when
        // it made that one.
        let ahead: BTreeMap<usize, u64> =
            earlier.iter().filter(|turn| turn.id < writer.id).map(|turn| (turn.holder, turn.id)).collect();
        let ahead = ahead.len() - usize::from(ahead.contains_key(&writer.holder));
        // A batch has at most one request of each reader, and at least one of these requests was
        // ahead of the writer. So the requests that passed the writer are fewer than the readers.
        assert!(by.len() < readers.max(1), "{} readers have passed a writer", by.len());
        assert!(ahead + by.len() < all + readers, "a writer has waited for {ahead} and {}", by.len());
        if let Some(first) = by.first() {
            let batch = around(&turns, *first);
            assert!(by.iter().all(|at| batch.contains(at)), "two batches have passed a writer");
            let batch = &turns[batch];
            assert!(batch.iter().any(|turn| turn.id < writer.id), "no reader of the batch was ahead of the writer");
            assert_eq!(holders(batch, |_| true), batch.len(), "a reader came twice to a batch while a writer waited");
        }
        passed += by.len();
    }
    passed
}

fn holders(turns: &[Turn], are: impl Fn(&Turn) -> bool) -> usize {
    turns.iter().filter(|turn| are(turn)).map(|turn| turn.holder).collect::<BTreeSet<_>>().len()
}

/// The range of readers between two writers that contains `place`.
fn around(turns: &[Turn], place: usize) -> std::ops::Range<usize> {
    let start = turns[..place].iter().rposition(|turn| turn.writes).map_or(0, |at| at + 1);
    let end = turns[place..].iter().position(|turn| turn.writes).map_or(turns.len(), |at| place + at);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a list of requests, which are in the order of their grants. Each has its holder, in
    /// upper case for a writer, and its number.
    fn check(turns: &[(&str, u64)]) -> usize {
        let turn = |(at, (who, id)): (usize, &(&str, u64))| Turn {
            holder: usize::from(who.as_bytes()[0]),
            writes: who.starts_with(char::is_uppercase),
            id: *id,
            token: Timestamp::from_u64(at as u64 + 1),
        };
        assert_one_batch_passes(turns.iter().enumerate().map(turn).collect())
    }

    #[test]
    fn one_batch_may_pass_after_a_reader_ahead() {
        assert_eq!(check(&[("A", 1), ("a", 2), ("b", 4), ("c", 5), ("B", 3), ("a", 6)]), 2);
        assert_eq!(check(&[("A", 1), ("a", 2), ("b", 5), ("B", 3), ("C", 4)]), 2);
    }

    #[test]
    #[should_panic(expected = "two batches")]
    fn two_batches_fail_the_check() {
        check(&[("A", 1), ("a", 2), ("b", 5), ("C", 3), ("c", 6), ("B", 4)]);
    }

    #[test]
    #[should_panic(expected = "was ahead of the writer")]
    fn a_batch_without_an_earlier_reader_fails() {
        check(&[("A", 1), ("a", 4), ("b", 5), ("B", 3), ("c", 6)]);
    }

    #[test]
    #[should_panic(expected = "twice to a batch")]
    fn a_reader_twice_in_a_batch_fails() {
        check(&[("A", 1), ("a", 2), ("b", 4), ("a", 5), ("B", 3), ("c", 6)]);
    }

    #[test]
    #[should_panic(expected = "has passed a request")]
    fn a_writer_that_passes_a_request_fails() {
        check(&[("A", 1), ("a", 2), ("C", 4), ("B", 3)]);
    }
}
