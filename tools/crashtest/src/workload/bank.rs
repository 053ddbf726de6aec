//! Transfers between accounts: the sum of all balances is constant.

use percolite::Error;

use super::{State, Workload, describe_rows, number, number_in, with_prefix};
use crate::recorded_txn::RecordedTxn;

const ACCOUNTS: usize = 8;
const OPENING: i64 = 100;

pub struct Bank;

impl Workload for Bank {
    fn name(&self) -> &'static str {
        "bank"
    }

    fn load(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        if txn.get("b/0")?.is_some() {
            return Ok(());
        }
        (0..ACCOUNTS).try_for_each(|account| txn.put(&format!("b/{account}"), &OPENING.to_string()))
    }

    fn transaction(&self, txn: &mut RecordedTxn<'_>) -> Result<(), Error> {
        match txn.rng().below(16) {
            0 => return txn.scan("b/").map(drop),
            1 => {
                let accounts: Vec<String> = (0..ACCOUNTS).map(|account| format!("b/{account}")).collect();
                return txn.multi_get(&accounts).map(drop);
            }
            _ => {}
        }
        let from = txn.rng().below(ACCOUNTS);
        let to = (from + 1 + txn.rng().below(ACCOUNTS - 1)) % ACCOUNTS;
        let (from, to) = (format!("b/{from}"), format!("b/{to}"));
        let (Some(payer), Some(payee)) = (txn.get(&from)?, txn.get(&to)?) else { return Ok(()) };
        let (payer, payee) = (number_in(Some(&payer)), number_in(Some(&payee)));
        let amount = i64::try_from(txn.rng().below(20)).unwrap_or_default().min(payer);
        txn.put(&from, &(payer - amount).to_string())?;
        txn.put(&to, &(payee + amount).to_string())
    }

    fn check(&self, state: &State) -> Result<(), String> {
        let mut sum = 0;
        let mut accounts = 0;
        for (key, body) in with_prefix(state, "b/") {
            sum += number(body).map_err(|error| format!("account {key}: {error}"))?;
            accounts += 1;
        }
        let expected = i64::try_from(ACCOUNTS).unwrap_or_default() * OPENING;
        // Before the accounts are loaded there are none.
        if accounts == 0 || (accounts == ACCOUNTS && sum == expected) {
            Ok(())
        } else {
            let rows = describe_rows(state, with_prefix(state, "b/").map(|(key, _)| key));
            Err(format!("{accounts} accounts have the sum {sum}; expected {ACCOUNTS} with the sum {expected}: {rows}"))
        }
    }
}
