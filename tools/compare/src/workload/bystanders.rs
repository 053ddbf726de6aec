//! Transfers of bystanders, between private rows, while other clients contend for ten rows. Only
//! the bystanders are measured.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::transfers::{OPENING_BALANCE, verify};
use super::{RowGenerator, Transfers, Work};
use crate::client::{Client, Total};
use crate::generator::Skew;
use crate::peer::Session;

/// The accounts of one owner: of a bystander, or of all contending clients together.
const HOT_ACCOUNTS: Transfers = Transfers { accounts: 10, rows_per_transfer: 2, skew: Skew::Uniform };
/// The number of bystanders for which rows are prepared.
const MAX_BYSTANDERS: u64 = 4;
/// The distance between the first rows of two successive owners.
const OWNER_STRIDE: u64 = 1 << 32;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bystanders {
    /// The number of contending clients.
    pub contending: u64,
}

impl fmt::Display for Bystanders {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.contending {
            0 => f.write_str("transfer on private rows, alone"),
            contending => {
                write!(f, "transfer on private rows, beside {contending} clients on {}", HOT_ACCOUNTS.accounts)
            }
        }
    }
}

impl Work for Bystanders {
    fn prepare(&self, session: &mut impl Session, values: &mut RowGenerator) -> Result<()> {
        for owner in 0..=MAX_BYSTANDERS {
            let first = owner * OWNER_STRIDE;
            session.load(values.rows_of(first..first + HOT_ACCOUNTS.accounts, OPENING_BALANCE))?;
        }
        Ok(())
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let owner = if client.is_background { 0 } else { 1 + client.number % MAX_BYSTANDERS };
        HOT_ACCOUNTS.client_from(owner * OWNER_STRIDE, session, client)
    }

    fn verify(&self, session: &mut impl Session, _: &Total) -> Result<()> {
        verify(session, (1 + MAX_BYSTANDERS) * HOT_ACCOUNTS.accounts)
    }
}
