//! Transfers: each reads and writes some accounts, and the sum of all balances is constant.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{RowGenerator, Work, skew_suffix, sum, with_thousands};
use crate::client::{Client, Total};
use crate::generator::{RowChooser, Skew, key, number};
use crate::peer::Session;

pub(super) const OPENING_BALANCE: u64 = 1_000_000;
const AMOUNT_MAX: u64 = 10;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transfers {
    pub accounts: u64,
    /// The number of accounts that a transfer reads and writes.
    pub rows_per_transfer: usize,
    pub skew: Skew,
}

impl fmt::Display for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "transfer, {} of {}{}", self.rows_per_transfer, with_thousands(self.accounts), skew_suffix(self.skew))
    }
}

impl Work for Transfers {
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()> {
        ensure!(self.rows_per_transfer >= 2, "a transfer needs two accounts");
        ensure!(self.rows_per_transfer as u64 <= self.accounts, "the store has fewer accounts than one transfer needs");
        session.load(values.rows_of(0..self.accounts, OPENING_BALANCE))
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        self.client_from(0, session, client)
    }

    fn verify(&self, session: &mut impl Session, _: &Total) -> Result<()> {
        verify(session, self.accounts)
    }
}

impl Transfers {
    /// Runs one client on the accounts whose numbers start at `first`.
    pub(super) fn client_from(&self, first: u64, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let rows = RowChooser::new(self.accounts, self.skew)?;
        while client.should_continue() {
            let rows_per_transfer = rows.draw_different(self.rows_per_transfer, &mut client.rng);
            let rows_per_transfer: Vec<u64> = rows_per_transfer.into_iter().map(|account| first + account).collect();
            // The accounts are in the order of their keys, so the payer is a random one of them.
            let payer = usize::try_from(client.rng.below(self.rows_per_transfer as u64))?;
            let amount = 1 + client.rng.below(AMOUNT_MAX);
            let value = client.rng.value(0, client.value_bytes);
            client.transact(session, value.len() + size_of_val(&key(0)), rows_per_transfer.len(), |txn| {
                let mut balances = Vec::with_capacity(rows_per_transfer.len());
                for &account in &rows_per_transfer {
                    let is_there = txn.get_for_update(&key(account), &mut |value| balances.push(number(value)))?;
                    ensure!(is_there, "account {account} is missing");
                }
                let others = rows_per_transfer.len() as u64 - 1;
                let paid = if balances[payer] >= amount * others { amount } else { 0 };
                for (place, &account) in rows_per_transfer.iter().enumerate() {
                    let balance = balances[place];
                    let new = if place == payer { balance - paid * others } else { balance + paid };
                    let mut value = value.clone();
                    value[..8].copy_from_slice(&new.to_be_bytes());
                    txn.put(&key(account), &value)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Checks the number of accounts and the sum of their balances.
pub(super) fn verify(session: &mut impl Session, accounts: u64) -> Result<()> {
    let (rows, sum) = sum(&session.reader(None)?)?;
    let right = accounts * OPENING_BALANCE;
    ensure!(rows == accounts, "{rows} accounts instead of {accounts}");
    ensure!(sum == right, "the sum of all accounts is {sum} instead of {right}");
    Ok(())
}
