//! Reads of the past: rows as they were before the last few times that each was overwritten.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Values, Work, grouped};
use crate::client::{Client, Total};
use crate::dice::{Rows, Skew, key, number};
use crate::peer::{Moment, Read as _, Session};

/// The states of the store that there are.
const STATES: u64 = 8;
const ROWS_A_COMMIT: u64 = 1000;
/// Above all rows: what the moments were.
const MOMENTS: u64 = 1 << 48;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TimeTravel {
    pub rows: u64,
}

impl fmt::Display for TimeTravel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "time-travel read, {STATES} versions of {} rows", grouped(self.rows))
    }
}

impl TimeTravel {
    fn moments(session: &mut impl Session) -> Result<Vec<Moment>> {
        let mut moments = Vec::new();
        session.reader(None)?.scan(&key(MOMENTS), usize::MAX >> 1, |_, value| moments.push(number(value)))?;
        Ok(moments)
    }
}

impl Work for TimeTravel {
    fn prepare(&self, session: &mut impl Session, values: &mut Values) -> Result<()> {
        for state in 0..STATES {
            let mut from = 0;
            while from < self.rows {
                let to = (from + ROWS_A_COMMIT).min(self.rows);
                let some: Vec<_> = values.rows_of(from..to, state).collect();
                session.transact(&mut |txn| some.iter().try_for_each(|(key, value)| txn.put(key, value)))?;
                from = to;
            }
            let moment = session.moment()?;
            session.transact(&mut |txn| txn.put(&key(MOMENTS + state), &moment.to_be_bytes()))?;
        }
        Ok(())
    }

    fn client(&self, session: &mut impl Session, client: &mut Client) -> Result<()> {
        let moments = Self::moments(session)?;
        let rows = Rows::new(self.rows, Skew::Uniform)?;
        while client.goes_on() {
            let state = client.dice.below(STATES);
            let row = rows.draw(&mut client.dice);
            client.reads(|| {
                let mut found = u64::MAX;
                let moment = moments.get(usize::try_from(state)?).copied();
                session.reader(moment)?.get(&key(row), |value| found = number(value))?;
                ensure!(found == state, "row {row} was {found} instead of {state}");
                Ok(())
            })?;
        }
        Ok(())
    }

    fn verify(&self, session: &mut impl Session, _: &Total) -> Result<()> {
        let moments = Self::moments(session)?;
        ensure!(moments.len() as u64 == STATES, "{} moments are there instead of {STATES}", moments.len());
        for (state, moment) in moments.into_iter().enumerate() {
            let reader = session.reader(Some(moment))?;
            for row in 0..self.rows {
                let mut found = u64::MAX;
                reader.get(&key(row), |value| found = number(value))?;
                ensure!(found == state as u64, "row {row} was {found} instead of {state}");
            }
        }
        Ok(())
    }
}
