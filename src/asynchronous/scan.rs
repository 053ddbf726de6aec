//! Scans as asynchronous streams of rows, or of their keys.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec::IntoIter;

use futures_core::Stream;

use super::blocking::{JoinHandle, join_result, spawn_blocking};
use crate::error::Result;
use crate::store::{Row, Scan, Store};

/// The [rows](Row) of a range, in the order of their keys: a [`Stream`]. The stream reads one page
/// at a time (32 rows at first, then up to 512 or about 1 MiB) on one of the runtime's blocking
/// threads.
///
/// Nothing is read before the first row is requested, and no page is read ahead. After an error the
/// stream ends. The scan owns its snapshot. If the scan is dropped while a page is being read, the
/// snapshot is released after that read.
#[must_use = "nothing is read until a row is requested"]
pub struct AsyncScan {
    state: State,
    page: IntoIter<Row>,
    backwards: bool,
    /// Whether the pages have the rows without their values.
    keys_only: bool,
    /// For the check before each row that the store is still open. This is a background handle,
    /// which does not keep the store open. `None` after the end.
    store: Option<Store>,
}

impl fmt::Debug for AsyncScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut scan = f.debug_struct("AsyncScan");
        scan.field("backwards", &self.backwards).field("has_ended", &self.store.is_none()).finish_non_exhaustive()
    }
}

enum State {
    /// The read of the first page opens the scan, on a blocking thread, because opening may block.
    Unopened(Box<dyn FnOnce() -> Result<Scan> + Send>),
    Open(Box<Scan>),
    Reading(JoinHandle<PageRead>),
    Ended,
}

/// A page, and the scan for the next page. An empty page is the end, and has no scan.
type PageRead = Result<(Vec<Row>, Option<Box<Scan>>)>;

impl AsyncScan {
    pub(super) fn new(store: &Store, open: impl FnOnce() -> Result<Scan> + Send + 'static) -> Self {
        let (state, page) = (State::Unopened(Box::new(open)), Vec::new().into_iter());
        Self { state, page, backwards: false, keys_only: false, store: Some(store.background_handle()) }
    }

    /// The keys of the remaining rows, without their values: see [`Scan::keys`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> percolite::Result<()> {
    /// # let store = percolite::AsyncStore::from(percolite::Store::in_memory()?);
    /// # let photos = store.keyspace("photos").await?;
    /// # let rows = photos.clone();
    /// # store.transact(move |txn| {
    /// #     ["a", "b", "c"].iter().try_for_each(|key| txn.put(&rows, key, vec![0; 1 << 20]))
    /// # }).await?;
    /// let mut names = store.range(&photos, "b"..).keys();
    /// assert_eq!(names.next().await.transpose()?.as_deref(), Some(&b"b"[..]));
    /// # Ok(()) }
    /// ```
    pub fn keys(self) -> AsyncKeys {
        AsyncKeys { rows: Self { keys_only: true, ..self } }
    }

    /// Reverses the order. Must be called before the first row is requested; otherwise the rest of
    /// a page that has been read still comes first, in the old order.
    pub fn rev(mut self) -> Self {
        self.backwards = !self.backwards;
        self
    }

    /// The next row; `None` at the end. Dropping the future loses no row.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`](crate::Snapshot::get). [`Cancelled`](crate::ErrorKind::Cancelled)
    /// if the runtime is shut down. [`InvalidArgument`](crate::ErrorKind::InvalidArgument) outside
    /// of a runtime.
    pub async fn next(&mut self) -> Option<Result<Row>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    fn read(&self, open: impl FnOnce() -> Result<Box<Scan>> + Send + 'static) -> Result<State> {
        let (backwards, keys_only) = (self.backwards, self.keys_only);
        let read = move || {
            let mut scan = open()?;
            let page = scan.next_page(backwards, keys_only)?;
            Ok(if page.is_empty() { (page, None) } else { (page, Some(scan)) })
        };
        Ok(State::Reading(spawn_blocking(read)?))
    }
}

impl Stream for AsyncScan {
    type Item = Result<Row>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(row) = self.page.next() {
                let checked = self.store.as_ref().map_or(Ok(()), Store::check_open);
                if checked.is_err() {
                    (self.state, self.page, self.store) = (State::Ended, Vec::new().into_iter(), None);
                }
                return Poll::Ready(Some(checked.map(|()| row)));
            }
            // `Ended` stays in place if the read fails: after an error the stream has no more rows.
            let next = match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => {
                    self.store = None;
                    return Poll::Ready(None);
                }
                State::Unopened(open) => self.read(move || open().map(Box::new)),
                State::Open(scan) => self.read(move || Ok(scan)),
                State::Reading(mut reading) => {
                    let Poll::Ready(read) = Pin::new(&mut reading).poll(context) else {
                        self.state = State::Reading(reading);
                        return Poll::Pending;
                    };
                    join_result(read).flatten().map(|(page, rest)| {
                        self.page = page.into_iter();
                        rest.map_or(State::Ended, State::Open)
                    })
                }
            };
            match next {
                Ok(state) => self.state = state,
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

/// The keys of an [`AsyncScan`], in their order: a [`Stream`] like it. See [`AsyncScan::keys`].
#[derive(Debug)]
#[must_use = "nothing is read until a key is requested"]
pub struct AsyncKeys {
    rows: AsyncScan,
}

impl AsyncKeys {
    /// Reverses the order, as [`AsyncScan::rev`] does.
    pub fn rev(self) -> Self {
        Self { rows: self.rows.rev() }
    }

    /// The next key; `None` at the end. Dropping the future loses no key.
    ///
    /// # Errors
    /// Those of [`AsyncScan::next`].
    pub async fn next(&mut self) -> Option<Result<Vec<u8>>> {
        Some(self.rows.next().await?.map(key))
    }
}

impl Stream for AsyncKeys {
    type Item = Result<Vec<u8>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.rows).poll_next(context).map(|row| row.map(|row| row.map(key)))
    }
}

fn key(row: Row) -> Vec<u8> {
    row.into_parts().0
}
