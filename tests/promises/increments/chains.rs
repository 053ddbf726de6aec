//! Chains of increments from random histories: each increment must lead to what a full dump has.

use percolite::engine::sim::SimStorage;
use percolite::{CommitProtocol, OnExisting, Store, Timestamp};
use proptest::prelude::*;

use super::*;

/// A step at the source.
#[derive(Clone, Debug)]
enum Step {
    /// One transaction. For each row: keyspace, key, and the length of the value to put; `None`
    /// deletes the row.
    Write(Vec<(usize, u8, Option<u16>)>),
    /// A large transaction: keyspace, and a number from which its keys and values are made.
    Large(usize, u8),
    Drop(usize),
    Truncate(usize),
    Rename(usize, usize),
    /// Restores the source's first dump over the source itself, which replaces its keyspaces.
    Restore,
    Crash,
    Dump,
    /// A dump as of an older timestamp.
    DumpPast,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keyspace = 0_usize..4;
    let write = (keyspace.clone(), 0_u8..12, prop::option::weighted(0.7, prop_oneof![0_u16..20, 250_u16..600]));
    let step = prop_oneof![
        8 => prop::collection::vec(write, 1..6).prop_map(Step::Write),
        2 => (keyspace.clone(), any::<u8>()).prop_map(|(keyspace, salt)| Step::Large(keyspace, salt)),
        1 => keyspace.clone().prop_map(Step::Drop),
        1 => keyspace.clone().prop_map(Step::Truncate),
        2 => (keyspace.clone(), keyspace).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => Just(Step::Restore),
        1 => Just(Step::Crash),
        4 => Just(Step::Dump),
        2 => Just(Step::DumpPast),
    ];
    prop::collection::vec(step, 1..40)
}

/// The source, and its dumps with the rows that each must have.
struct Source {
    memory: SimStorage,
    store: Store,
    two_phase: bool,
    dumps: Vec<(Vec<u8>, Rows)>,
    writes: u64,
}

impl Source {
    fn new(two_phase: bool) -> Self {
        let memory = SimStorage::new();
        let store = Self::open(&memory, two_phase);
        let mut source = Self { memory, store, two_phase, dumps: Vec::new(), writes: 0 };
        source.dump(None);
        source
    }

    fn open(memory: &SimStorage, two_phase: bool) -> Store {
        let protocol = if two_phase { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
        Store::builder()
            .history_retention(HISTORY)
            .commit_protocol(protocol)
            .large_transaction_bytes(4000)
            .open_in_memory(memory)
            .unwrap()
    }

    fn dump(&mut self, at: Option<Timestamp>) {
        let snapshot = at.map_or_else(|| self.store.snapshot(), |at| self.store.snapshot_at(at)).unwrap();
        let dump = match self.dumps.last() {
            None => full(&snapshot),
            Some((before, _)) => after(&snapshot, before),
        };
        self.dumps.push((dump, content_of(&snapshot)));
    }

    fn take(&mut self, step: &Step) {
        let name = |number: usize| format!("keyspace {number}");
        self.writes += 1;
        let tag = self.writes;
        match step {
            Step::Write(writes) => {
                let keyspaces: Vec<_> = (0..4).map(name).collect();
                let opened: BTreeMap<usize, _> = writes
                    .iter()
                    .map(|(number, ..)| (*number, self.store.keyspace(&keyspaces[*number]).unwrap()))
                    .collect();
                self.store
                    .transact(|txn| {
                        writes.iter().try_for_each(|(number, key, value)| match value {
                            Some(length) => {
                                let value = format!("{tag}/{}", "x".repeat(usize::from(*length)));
                                txn.put(&opened[number], [*key + 1], value)
                            }
                            None => txn.delete(&opened[number], [*key + 1]),
                        })
                    })
                    .unwrap();
            }
            Step::Large(number, salt) => {
                let keyspace = self.store.keyspace(&name(*number)).unwrap();
                self.store
                    .transact(|txn| {
                        (0..40_u8).try_for_each(|row| {
                            let key = [row.wrapping_add(*salt) % 64 + 1];
                            if row % 5 == 0 {
                                txn.delete(&keyspace, key)
                            } else {
                                txn.put(&keyspace, key, vec![*salt; 200])
                            }
                        })
                    })
                    .unwrap();
            }
            Step::Drop(number) => drop(self.store.drop_keyspace(&name(*number))),
            Step::Truncate(number) => drop(self.store.truncate_keyspace(&name(*number))),
            Step::Rename(from, to) => drop(self.store.rename_keyspace(&name(*from), &name(*to))),
            Step::Restore => drop(self.store.restore(self.dumps[0].0.as_slice(), OnExisting::Replace, |_| ()).unwrap()),
            Step::Crash => {
                self.memory.crash(0);
                self.store = Self::open(&self.memory, self.two_phase);
            }
            Step::Dump => self.dump(None),
            Step::DumpPast => {
                let at = self.store.snapshot().unwrap().read_ts();
                self.take(&Step::Large(0, u8::try_from(tag % 50).unwrap()));
                self.take(&Step::Write(vec![(1, 3, None), (1, 4, Some(7)), (2, 3, Some(300)), (3, 1, None)]));
                self.dump(Some(at));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn a_chain_of_increments_equals_full_dumps(steps in steps(), two_phase: bool, small: bool) {
        let mut source = Source::new(two_phase);
        steps.iter().for_each(|step| source.take(step));
        source.dump(None);
        let large_bytes = if small { 1000 } else { 32 << 20 };
        let copy = Store::builder().large_transaction_bytes(large_bytes).in_memory().unwrap();
        for (number, (dump, content)) in source.dumps.iter().enumerate() {
            copy.restore(dump.as_slice(), OnExisting::Fail, |_| ()).unwrap();
            prop_assert_eq!(&self::content(&copy), content, "dump {} of {}", number, source.dumps.len());
        }
        let whole = Store::in_memory().unwrap();
        restore(&whole, &full(&source.store.snapshot().unwrap()));
        prop_assert_eq!(content(&whole), content(&copy));
        prop_assert!(copy.verify(|_| ()).unwrap().is_ok());
    }
}
