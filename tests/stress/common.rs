//! Seeds, a watchdog, and reads that are checked against each other.

use std::io::Write as _;
use std::sync::{Mutex, Once};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percolite::{CommitProtocol, Durability, ErrorKind, Keyspace, Result, Row, Scan, Snapshot, Txn, TxnOptions, Value};

use crate::support::Dice;

/// After this time the watchdog ends the process. All tests together take far less.
const HANG: Duration = Duration::from_secs(120);

static RUNNING: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// A test that is running, and its seed.
pub struct Run {
    name: &'static str,
    pub seed: u64,
}

impl Run {
    pub fn begin(name: &'static str) -> Self {
        static WATCHDOG: Once = Once::new();
        WATCHDOG.call_once(|| {
            std::thread::spawn(|| {
                std::thread::sleep(HANG);
                say(&format!("HANG: still running after {HANG:?}: {:?}", RUNNING.lock().unwrap()));
                std::process::abort();
            });
        });
        let seed = std::env::var("PERCOLITE_SEED").ok().map(|seed| seed.parse().unwrap());
        let seed = seed.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into());
        say(&format!("{name}: PERCOLITE_SEED={seed}"));
        RUNNING.lock().unwrap().push(name);
        Self { name, seed }
    }

    /// Dice for one of the run's threads.
    pub fn dice(&self, thread: usize) -> Dice {
        let mut dice = Dice(self.seed);
        Dice(dice.next() ^ (thread as u64).wrapping_mul(0xa076_1d64_78bd_642f))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        RUNNING.lock().unwrap().retain(|name| *name != self.name);
    }
}

/// Prints a line that the test harness does not capture.
pub fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").unwrap();
}

/// Waits for background work. The watchdog ends a wait that does not succeed.
pub fn wait_until(what: &str, happened: impl Fn() -> bool) {
    for round in 0.. {
        if happened() {
            return;
        }
        if round == 5000 {
            say(&format!("waiting until {what}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A random protocol and durability.
pub fn any_options(dice: &mut Dice) -> TxnOptions {
    TxnOptions::default()
        .commit_protocol(if dice.one_in(2) { CommitProtocol::TwoPhase } else { CommitProtocol::Auto })
        .durability(if dice.one_in(2) { Durability::Buffered } else { Durability::Sync })
}

/// Repeats a call after an I/O error: the network failed, and nothing was committed.
pub fn insist<T>(mut work: impl FnMut() -> Result<T>) -> T {
    for _ in 0..10_000 {
        match work() {
            Ok(answer) => return answer,
            Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("ten thousand calls failed")
}

/// A number as a value. Some values are padded, so that they are stored out of line.
pub fn number(number: u64, dice: &mut Dice) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    if dice.one_in(3) {
        value.resize(300, number as u8);
    }
    value
}

/// The number in a value. The padding must match.
pub fn read_number(value: &[u8]) -> u64 {
    let number = u64::from_be_bytes(value[..8].try_into().unwrap());
    assert!(value.len() == 8 || value.len() == 300, "a value of {} bytes", value.len());
    assert!(value[8..].iter().all(|byte| *byte == number as u8), "a value with the padding of another value");
    number
}

/// What transactions and snapshots have in common.
pub trait Reads {
    fn one(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>>;
    fn all(&self, keyspace: &Keyspace) -> Scan;
}

impl Reads for Txn {
    fn one(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        self.get(keyspace, key)
    }
    fn all(&self, keyspace: &Keyspace) -> Scan {
        self.range(keyspace, ..)
    }
}

impl Reads for Snapshot {
    fn one(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        self.get(keyspace, key)
    }
    fn all(&self, keyspace: &Keyspace) -> Scan {
        self.range(keyspace, ..)
    }
}

pub type Rows = Vec<(Vec<u8>, Value)>;

/// All rows of a keyspace. They are read forwards, backwards, from both ends in turn and one by
/// one, with the same result.
pub fn every_way(reader: &impl Reads, keyspace: &Keyspace) -> Rows {
    let rows: Vec<Row> = insist(|| reader.all(keyspace).collect());
    let mut back: Vec<Row> = insist(|| reader.all(keyspace).rev().collect());
    back.reverse();
    assert!(back == rows, "a backward scan has other rows");
    let both = insist(|| {
        let (mut scan, mut front, mut back) = (reader.all(keyspace), Vec::new(), Vec::new());
        while let Some(row) = scan.next().transpose()? {
            front.push(row);
            back.extend(scan.next_back().transpose()?);
        }
        front.extend(back.into_iter().rev());
        Ok(front)
    });
    assert!(both == rows, "a scan from both ends has other rows");
    for row in &rows {
        let found = insist(|| reader.one(keyspace, row.key()));
        assert!(found.as_deref() == Some(row.value()), "a get differs from the scan: {row:?}");
    }
    rows.into_iter().map(Row::into_parts).collect()
}
