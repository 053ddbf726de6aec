//! A bank whose transfers are dropped at random times, thousands of times. Afterwards the sum is
//! right, every acknowledged transfer is there, and no lock or permit is held.

use std::time::Duration;

use percolite::{AsyncStore, CommitProtocol, Keyspace, Result, Store, TxnOptions};

use crate::common::{assert_no_permit_is_lost, both_runtimes, drop_after_polls};
use crate::support::{Dice, Home};

const ACCOUNTS: u64 = 4;
const OPENING_BALANCE: u64 = 1000;
const ADMISSION: usize = 3;
const TASKS: u64 = 8;

#[derive(Clone)]
struct Bank {
    store: AsyncStore,
    accounts: Keyspace,
    transfers: Keyspace,
}

impl Bank {
    fn open(store: Store) -> Self {
        let (accounts, transfers) = (store.keyspace("accounts").unwrap(), store.keyspace("transfers").unwrap());
        let fill = |txn: &mut percolite::Txn| -> Result<()> {
            (0..ACCOUNTS)
                .try_for_each(|account| txn.put(&accounts, account.to_be_bytes(), OPENING_BALANCE.to_be_bytes()))
        };
        store.transact(fill).unwrap();
        Self { store: store.into(), accounts, transfers }
    }

    /// Moves 1 between accounts and records the transfer.
    async fn transfer(&self, from: u64, to: u64, name: [u64; 2], protocol: CommitProtocol) -> Result<()> {
        let Self { accounts, transfers, .. } = self.clone();
        let options = TxnOptions::default().commit_protocol(protocol);
        let work = move |txn: &mut percolite::Txn| {
            for (account, add) in [(from, -1), (to, 1)] {
                let key = account.to_be_bytes();
                let balance = number(&txn.get(&accounts, key)?.unwrap());
                txn.put(&accounts, key, balance.wrapping_add_signed(add).to_be_bytes())?;
            }
            txn.put(&transfers, name.map(u64::to_be_bytes).concat(), "")
        };
        self.store.transact_with(options, work).await
    }

    /// Makes transfers, most of which are dropped. Returns those that were acknowledged.
    async fn cancel_many(self, task: u64, seed: u64, transfers: u64) -> Vec<[u64; 2]> {
        let mut dice = Dice(seed);
        let mut acknowledged = Vec::new();
        for number in 0..transfers {
            let from = dice.next() % ACCOUNTS;
            let to = (from + 1 + dice.next() % (ACCOUNTS - 1)) % ACCOUNTS;
            let protocol = if dice.one_in(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
            let transfer = self.transfer(from, to, [task, number], protocol);
            let answer = match dice.below(8) {
                0 => Some(transfer.await),
                1..4 => {
                    let limit = Duration::from_micros(dice.next() % 500);
                    tokio::time::timeout(limit, transfer).await.ok()
                }
                _ => drop_after_polls(dice.below(5), transfer).await,
            };
            match answer {
                Some(answer) => {
                    answer.unwrap();
                    acknowledged.push([task, number]);
                }
                // Lets other tasks run on a current_thread runtime.
                None => tokio::task::yield_now().await,
            }
        }
        acknowledged
    }

    /// Checks the bank after all attempts have ended.
    fn check(&self, acknowledged: &[[u64; 2]]) {
        let store = self.store.store();
        assert_eq!(store.row_locks().unwrap().count(), 0);
        let snapshot = store.snapshot().unwrap();
        let sum: u64 = snapshot.range(&self.accounts, ..).map(|row| number(row.unwrap().value())).sum();
        assert_eq!(sum, ACCOUNTS * OPENING_BALANCE);
        for transfer in acknowledged {
            let key = transfer.map(u64::to_be_bytes).concat();
            assert!(snapshot.contains_key(&self.transfers, key).unwrap(), "{transfer:?} is missing");
        }
        assert_no_permit_is_lost(store, &self.transfers, ADMISSION);
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

fn storm(home: impl Fn() -> Home, transfers: u64) {
    let seed: u64 = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    for runtime in both_runtimes(6) {
        let home = home();
        let bank = Bank::open(home.open(Store::builder().admission_limit(ADMISSION)));
        let acknowledged = runtime.block_on(async {
            let tasks = (0..TASKS).map(|task| tokio::spawn(bank.clone().cancel_many(task, seed ^ task, transfers)));
            let mut acknowledged = Vec::new();
            for task in tasks.collect::<Vec<_>>() {
                acknowledged.extend(task.await.unwrap());
            }
            acknowledged
        });
        // Waits for the attempts whose futures were dropped.
        drop(runtime);
        println!("{} of {} transfers were acknowledged", acknowledged.len(), TASKS * transfers);
        bank.check(&acknowledged);
    }
}

#[test]
fn dropped_transfers_keep_the_sum_of_the_bank() {
    storm(Home::embedded, 4000);
}

#[cfg(feature = "rocks")]
#[test]
fn dropped_transfers_keep_the_sum_of_the_bank_on_disk() {
    storm(Home::rocks, 200);
}
