//! Transfers between rows of one's own, while others fight for a few. Those with rows of their own are what is counted.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::transfers::{OPENING_BALANCE, verify};
use super::{Transfers, Values, Work};
use crate::client::{Client, Total};
use crate::dice::Skew;
use crate::peer::Session;

/// Of each bystander, and for all others together.
const FEW: Transfers = Transfers { accounts: 10, touched: 2, skew: Skew::Uniform };
/// There are rows for so many bystanders.
const BYSTANDERS_MAX: u64 = 4;
/// From the first row of one to that of the next.
const FAR: u64 = 1 << 32;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bystanders {
    /// How many fight.
    pub others: u64,
}

impl fmt::Display for Bystanders {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.others {
            0 => f.write_str("transfer on rows of one's own, alone"),
            others => write!(f, "transfer on rows of one's own, beside {others} others on {}", FEW.accounts),
        }
    }
}

impl Work for Bystanders {
    fn prepare(&self, session: &mut impl Session, values: &mut Values) -> Result<()> {
        for owner in 0..=BYSTANDERS_MAX {
            let first = owner * FAR;
            session.load(values.rows_of(first..first + FEW.accounts, OPENING_BALANCE))?;
        }
        Ok(())
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let owner = if client.is_extra { 0 } else { 1 + client.number % BYSTANDERS_MAX };
        FEW.client_from(owner * FAR, session, client)
    }

    fn verify(&self, session: &mut impl Session, _: &Total) -> Result<()> {
        verify(session, (1 + BYSTANDERS_MAX) * FEW.accounts)
    }
}
