//! Sequences: numbers that no two callers get, without a conflict between their transactions.
//!
//! A row has the next number that no handle may return yet. A handle allocates a range: in a
//! transaction of its own it moves the row forward, and only when that commit is durable it hands
//! the range out, from memory. So a number that was handed out is below the row's value in every
//! state that a crash can leave, and a range whose commit failed or is undetermined is never used.
//!
//! While one thread allocates, the others that use the handle wait for it.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::limits::check_key;
use crate::store::options::{Durability, RetryPolicy, TxnOptions};
use crate::sync::Mutex;
use crate::waiter::Waiter;

const FIRST: u64 = 1;
const RANGE_SIZE: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

/// Hands out numbers, each at most once (PostgreSQL: a sequence with `CACHE`; Badger: `Sequence`).
/// From [`Store::sequence`]. Cheap to clone; clones share their numbers. It does not keep the store
/// open.
///
/// A number is not part of the transaction that uses it. Callers do not conflict, and a number
/// whose transaction is rolled back is not handed out again, so there are gaps.
///
/// **What is kept.** A row has the next number that is not allocated, as a `u64` of 8 bytes,
/// big-endian; an absent row means 1. A sequence allocates a range of
/// [1,000](Sequence::range_size) numbers in one durable commit to this row, whatever the store's
/// [`Durability`], and then hands them out from memory. So a call in 1,000 takes a sync, and the
/// others well below a microsecond.
///
/// **After a crash**, or when its last clone is dropped, the rest of a sequence's range is lost: at
/// most 1,000 numbers. No number comes twice, even if the commit that allocated a range is
/// [undetermined](ErrorKind::Undetermined): then none of the range is handed out.
///
/// **Order.** The numbers of one sequence and its clones grow from call to call. Two calls of
/// [`Store::sequence`], or two processes with a shared engine, have ranges of their own, so their
/// numbers interleave. Transactions commit in any order: a reader may see 8 before 7.
///
/// **Copies.** The row is a row like any other: dumps, checkpoints and replicas have it, and the
/// copy continues with a number that the original had not handed out at that time. Afterwards both
/// hand out the same numbers. A restore, accepting a data loss, or a write of the row by the
/// program sets the sequence back, and numbers above its value come again, so restore the row
/// together with the rows that use its numbers. Truncating or dropping its keyspace ends a
/// sequence: [`ErrorKind::KeyspaceNotFound`].
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// # let store = percolite::Store::in_memory()?;
/// let (orders, sequences) = (store.keyspace("orders")?, store.keyspace("sequences")?);
/// let numbers = store.sequence(&sequences, "orders")?;
/// let order = store.transact(|txn| {
///     let order = numbers.next()?;
///     txn.put(&orders, order.to_be_bytes(), "tea")?;
///     Ok::<_, percolite::Error>(order)
/// })?;
/// assert_eq!(order, 1);
/// assert_eq!(numbers.next()?, 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sequence {
    shared: Arc<Shared>,
    range_size: NonZeroU32,
}

/// What the clones of a sequence share.
struct Shared {
    /// A handle that does not keep the store open.
    store: Store,
    keyspace: Keyspace,
    key: Vec<u8>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The numbers that are allocated and not handed out. Its end stays when it is empty.
    unused: Range<u64>,
    /// Whether a thread allocates the next range.
    is_allocating: bool,
    /// The threads that wait for it.
    waiting: Vec<Arc<Waiter>>,
}

/// What a call does next.
enum Step {
    HandOut(u64),
    /// Allocate a range at or above this number.
    Allocate(u64),
    Wait(Arc<Waiter>),
}

impl Store {
    /// The sequence in a row. Nothing is read or written before the first number is requested. The
    /// row must be used for nothing else.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the key is empty or the keyspace is of another store;
    /// [`ErrorKind::TooLarge`], [`ErrorKind::KeyspaceNotFound`], [`ErrorKind::Closed`].
    pub fn sequence(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Sequence> {
        self.inner.check_open()?;
        keyspace.check_not_dropped(self.instance_id())?;
        check_key(key.as_ref())?;
        let shared = Shared {
            store: self.background_handle(),
            keyspace: keyspace.clone(),
            key: key.as_ref().to_vec(),
            state: Mutex::new(State::default()),
        };
        Ok(Sequence { shared: Arc::new(shared), range_size: RANGE_SIZE })
    }
}

impl Sequence {
    /// How many numbers one durable commit allocates, and a crash may lose. Default: 1,000. Applies
    /// to the ranges that this clone allocates.
    #[must_use]
    pub fn range_size(self, numbers: NonZeroU32) -> Self {
        Self { range_size: numbers, ..self }
    }

    /// The next number; the first is 1. May be called in a transaction, which is not affected. The
    /// number is durably allocated when the call returns: no later call returns it, whatever
    /// happens to the transaction, the process or the machine.
    ///
    /// Mostly the number comes from memory. A call that finds none left blocks until a range is
    /// allocated: for a transaction with a sync, which is retried for 30 seconds if other handles
    /// or processes allocate at the same time. In asynchronous code call it inside of `transact` or
    /// `AsyncStore::run_blocking`.
    ///
    /// # Errors
    /// - [`ErrorKind::Corruption`]: the row is not that of a sequence.
    /// - [`ErrorKind::InvalidArgument`]: no number is left below 2⁶⁴ - 1, or the store is open
    ///   read-only.
    /// - [`ErrorKind::KeyspaceNotFound`]: the keyspace was dropped or truncated.
    /// - Those of [`Store::transact`], if a range has to be allocated. No number was handed out.
    pub fn next(&self) -> Result<u64> {
        let Shared { store, keyspace, .. } = &*self.shared;
        loop {
            store.inner.check_open()?;
            keyspace.check_not_dropped(store.instance_id())?;
            match self.shared.step() {
                Step::HandOut(number) => return Ok(number),
                Step::Wait(waiter) => waiter.wait(),
                Step::Allocate(lowest) => {
                    let allocation = Allocation { shared: &self.shared };
                    allocation.end(self.shared.allocate(lowest, self.range_size)?);
                }
            }
        }
    }
}

impl Shared {
    fn step(&self) -> Step {
        let mut state = self.state.lock();
        if let Some(number) = state.unused.next() {
            return Step::HandOut(number);
        }
        if state.is_allocating {
            let waiter = Arc::new(Waiter::new(&*self.store.inner.env));
            state.waiting.push(Arc::clone(&waiter));
            return Step::Wait(waiter);
        }
        state.is_allocating = true;
        Step::Allocate(state.unused.end)
    }

    /// Allocates a range of numbers at or above `lowest`, durably.
    fn allocate(&self, lowest: u64, size: NonZeroU32) -> Result<Range<u64>> {
        let options =
            TxnOptions::with_label("sequence").durability(Durability::Sync).retry_policy(RetryPolicy::default());
        self.store.transact_with(options, |txn| {
            let stored = txn.get(&self.keyspace, &self.key)?.map(|value| self.decode(&value)).transpose()?;
            // If the row was set back, this handle still does not repeat its own numbers.
            let start = stored.unwrap_or(FIRST).max(lowest);
            let end = start.saturating_add(size.get().into());
            if start == end {
                return Err(Error::invalid(format!("the sequence in {} has no number left", self.row_name())));
            }
            txn.put(&self.keyspace, &self.key, end.to_be_bytes())?;
            Ok(start..end)
        })
    }

    fn decode(&self, value: &[u8]) -> Result<u64> {
        let number = value.try_into().map(u64::from_be_bytes);
        number.map_err(|_| ErrorKind::Corruption(format!("{} is not a sequence: not 8 bytes", self.row_name())).into())
    }

    fn row_name(&self) -> String {
        format!("keyspace {:?}, key \"{}\"", self.keyspace.name(), self.key.escape_ascii())
    }
}

/// The right to allocate the next range. When it is dropped, also by an error or a panic, the
/// threads that wait look again, and one of them may allocate.
struct Allocation<'a> {
    shared: &'a Shared,
}

impl Allocation<'_> {
    fn end(self, range: Range<u64>) {
        self.shared.state.lock().unused = range;
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.shared.state.lock();
            state.is_allocating = false;
            std::mem::take(&mut state.waiting)
        };
        for waiter in waiting {
            waiter.notify();
        }
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.shared.key.escape_ascii().to_string();
        let mut sequence = f.debug_struct("Sequence");
        sequence.field("keyspace", &self.shared.keyspace).field("key", &key).finish_non_exhaustive()
    }
}
