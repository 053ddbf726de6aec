//! Transfers: each reads some accounts and writes them, and the sum of all never changes.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Values, Work, grouped, skewed, sum};
use crate::client::{Client, Total};
use crate::dice::{Rows, Skew, key, number};
use crate::peer::Session;

pub(super) const OPENING_BALANCE: u64 = 1_000_000;
const AMOUNT_MAX: u64 = 10;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transfers {
    pub accounts: u64,
    /// How many of them a transfer reads and writes.
    pub touched: usize,
    pub skew: Skew,
}

impl fmt::Display for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "transfer, {} of {}{}", self.touched, grouped(self.accounts), skewed(self.skew))
    }
}

impl Work for Transfers {
    fn prepare(&self, session: &mut impl Session, values: &mut Values) -> Result<()> {
        ensure!(self.touched >= 2, "a transfer needs two accounts");
        ensure!(self.touched as u64 <= self.accounts, "there are fewer accounts than a transfer touches");
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
    /// One client among the accounts whose numbers begin here.
    pub(super) fn client_from(&self, first: u64, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let rows = Rows::new(self.accounts, self.skew)?;
        while client.goes_on() {
            let touched = rows.draw_different(self.touched, &mut client.dice);
            let touched: Vec<u64> = touched.into_iter().map(|account| first + account).collect();
            // Who pays is not always the one whose key comes first.
            let payer = usize::try_from(client.dice.below(self.touched as u64))?;
            let amount = 1 + client.dice.below(AMOUNT_MAX);
            let value = client.dice.value(0, client.value_bytes);
            client.commits(session, value.len() + size_of_val(&key(0)), touched.len(), |txn| {
                let mut balances = Vec::with_capacity(touched.len());
                for &account in &touched {
                    let is_there = txn.get_to_write(&key(account), &mut |value| balances.push(number(value)))?;
                    ensure!(is_there, "account {account} is missing");
                }
                let others = touched.len() as u64 - 1;
                let paid = if balances[payer] >= amount * others { amount } else { 0 };
                for (place, &account) in touched.iter().enumerate() {
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

/// That there are so many accounts, and nothing has come to them or gone.
pub(super) fn verify(session: &mut impl Session, accounts: u64) -> Result<()> {
    let (rows, sum) = sum(&session.reader(None)?)?;
    let right = accounts * OPENING_BALANCE;
    ensure!(rows == accounts, "{rows} accounts are there instead of {accounts}");
    ensure!(sum == right, "the sum of all accounts is {sum} instead of {right}");
    Ok(())
}
