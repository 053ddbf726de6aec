//! What a transaction has written, in the order of its rows.
//!
//! A load writes one row behind the other, and most transactions write a few. For both a sorted vector is the cheaper place: a
//! row that comes last is compared with one other, where a map would search. Only rows that come far from the end of many others
//! move everything into a map, once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::row::{Mutation, RowKey};

/// So many rows at most change their places for another.
const MOVED_MAX: usize = 32;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Writes {
    sorted: Vec<(RowKey, Mutation)>,
    /// Has all of them, or none.
    scattered: BTreeMap<RowKey, Mutation>,
}

impl Writes {
    /// How many rows it has written.
    pub fn len(&self) -> usize {
        self.sorted.len() + self.scattered.len()
    }

    /// Whether it has written none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        self.sorted.clear();
        self.scattered.clear();
    }

    /// The rows in order, with what becomes of each.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&RowKey, &Mutation)> {
        self.sorted.iter().map(|(row, mutation)| (row, mutation)).chain(&self.scattered)
    }

    /// The rows in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &RowKey> {
        self.iter().map(|(row, _)| row)
    }

    /// What becomes of the rows, in their order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Mutation> {
        self.iter().map(|(_, mutation)| mutation)
    }

    /// Those of the row and above.
    pub fn range_from<'a>(&'a self, first: &RowKey) -> impl Iterator<Item = (&'a RowKey, &'a Mutation)> {
        let place = self.sorted.partition_point(|(row, _)| row < first);
        let sorted = self.sorted.get(place..).unwrap_or_default().iter().map(|(row, mutation)| (row, mutation));
        sorted.chain(self.scattered.range(first.clone()..))
    }

    /// What becomes of a row.
    pub fn get(&self, row: &RowKey) -> Option<&Mutation> {
        self.get_key_value(row).map(|(_, mutation)| mutation)
    }

    /// The same, with the row as it is kept here.
    pub fn get_key_value(&self, row: &RowKey) -> Option<(&RowKey, &Mutation)> {
        match self.place(row) {
            Ok(place) => self.sorted.get(place).map(|(row, mutation)| (row, mutation)),
            Err(_) => self.scattered.get_key_value(row),
        }
    }

    /// Sets what becomes of a row, if that is `admitted`, given what was to become of it. Looked for once: a load does little else.
    pub fn insert<E>(
        &mut self,
        row: RowKey,
        mutation: Mutation,
        admitted: impl FnOnce(&RowKey, Option<&Mutation>, &Mutation) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.scattered.is_empty() {
            match self.scattered.entry(row) {
                Entry::Vacant(place) => {
                    admitted(place.key(), None, &mutation)?;
                    place.insert(mutation);
                }
                Entry::Occupied(mut place) => {
                    admitted(place.key(), Some(place.get()), &mutation)?;
                    place.insert(mutation);
                }
            }
            return Ok(());
        }
        let place = self.place(&row);
        if let Ok(place) = place
            && let Some((row, before)) = self.sorted.get_mut(place)
        {
            admitted(row, Some(before), &mutation)?;
            *before = mutation;
            return Ok(());
        }
        admitted(&row, None, &mutation)?;
        match place {
            Err(place) if self.sorted.len() - place <= MOVED_MAX => self.sorted.insert(place, (row, mutation)),
            _ => {
                self.scatter();
                self.scattered.insert(row, mutation);
            }
        }
        Ok(())
    }

    /// Forgets what was to become of a row, and answers it.
    pub fn remove(&mut self, row: &RowKey) -> Option<Mutation> {
        match self.place(row) {
            Ok(place) if self.sorted.len() - place <= MOVED_MAX => Some(self.sorted.remove(place).1),
            Ok(_) => {
                self.scatter();
                self.scattered.remove(row)
            }
            Err(_) => self.scattered.remove(row),
        }
    }

    /// Where the row is among the sorted, or would be.
    #[inline]
    fn place(&self, row: &RowKey) -> Result<usize, usize> {
        match self.sorted.last() {
            Some((last, _)) if last < row => Err(self.sorted.len()),
            _ => self.sorted.binary_search_by(|(other, _)| other.cmp(row)),
        }
    }

    fn scatter(&mut self) {
        self.scattered = std::mem::take(&mut self.sorted).into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::row::KeyspaceId;

    fn row(number: u16) -> RowKey {
        RowKey::new(KeyspaceId(1), &number.to_be_bytes())
    }

    fn put(value: u16) -> Mutation {
        Mutation::Put(value.to_be_bytes().as_slice().into())
    }

    #[derive(Clone, Debug)]
    enum Call {
        Insert(u16),
        Refused(u16),
        Remove(u16),
        Clear,
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let row = 0_u16..200;
        let call = prop_oneof![
            20 => row.clone().prop_map(Call::Insert),
            2 => row.clone().prop_map(Call::Refused),
            5 => row.prop_map(Call::Remove),
            1 => Just(Call::Clear),
        ];
        // First in order, then in any.
        (0_u16..200, prop::collection::vec(call, 0..200))
            .prop_map(|(sorted, any)| (0..sorted).map(Call::Insert).chain(any).collect())
    }

    proptest! {
        #[test]
        fn it_is_a_map(calls in calls()) {
            let (mut writes, mut map) = (Writes::default(), BTreeMap::new());
            for (at, call) in (0_u16..).zip(calls) {
                match call {
                    Call::Insert(number) => {
                        let before = map.insert(row(number), put(at));
                        writes.insert(row(number), put(at), |_, replaced, mutation| {
                            assert_eq!((replaced, mutation), (before.as_ref(), &put(at)));
                            Ok::<_, Infallible>(())
                        }).unwrap();
                    }
                    Call::Refused(number) => {
                        prop_assert_eq!(writes.insert(row(number), put(at), |_, _, _| Err("refused")), Err("refused"));
                    }
                    Call::Remove(number) => prop_assert_eq!(writes.remove(&row(number)), map.remove(&row(number))),
                    Call::Clear => {
                        writes.clear();
                        map.clear();
                    }
                }
                prop_assert_eq!((writes.len(), writes.is_empty()), (map.len(), map.is_empty()));
            }
            prop_assert!(writes.iter().eq(&map));
            prop_assert!(writes.iter().rev().eq(map.iter().rev()));
            for number in 0..200 {
                prop_assert_eq!(writes.get_key_value(&row(number)), map.get_key_value(&row(number)));
                prop_assert!(writes.range_from(&row(number)).eq(map.range(row(number)..)));
            }
        }
    }

    #[test]
    fn rows_in_order_and_nearly_in_order_stay_in_the_vector() {
        let mut writes = Writes::default();
        for number in (0..5000).map(|number| number ^ 7) {
            writes.insert(row(number), put(0), |_, _, _| Ok::<_, Infallible>(())).unwrap();
        }
        assert_eq!((writes.sorted.len(), writes.scattered.len()), (5000, 0));
    }
}
