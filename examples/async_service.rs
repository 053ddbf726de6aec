//! A small service on tokio: many tasks order concurrently, a snapshot still shows the state before
//! the orders, and a call with a bounded number of attempts returns an error.
//!
//! ```text
//! cargo run --release --features tokio --example async_service
//! ```

use anyhow::{Context, ensure};
use percolite::{AsyncStore, Keyspace, TxnOptions, Value};

const CUSTOMERS: u32 = 40;

/// The state that the handlers of a web framework would share. Clones are cheap and refer to the
/// same store.
#[derive(Clone)]
struct Shop {
    store: AsyncStore,
    stock: Keyspace,
    orders: Keyspace,
}

impl Shop {
    async fn open(path: std::path::PathBuf) -> anyhow::Result<Self> {
        let store = AsyncStore::open(path).await?;
        let (stock, orders) = (store.keyspace("stock").await?, store.keyspace("orders").await?);
        Ok(Self { store, stock, orders })
    }

    /// Decrements the stock and records the order, in one transaction. Returns the number of
    /// articles left.
    async fn order(&self, customer: u32, article: &'static str) -> anyhow::Result<u32> {
        // The closure runs on another thread, and again after a conflict, so it owns its captures.
        let Self { stock, orders, .. } = self.clone();
        let attempt = move |txn: &mut percolite::Txn| {
            let left = decode(txn.get(&stock, article)?)?;
            // An error of the closure rolls the transaction back; only conflicts are retried.
            ensure!(left > 0, "{article}: sold out");
            txn.put(&stock, article, (left - 1).to_be_bytes())?;
            txn.insert(&orders, customer.to_be_bytes(), article)?;
            Ok(left - 1)
        };
        self.store.transact(attempt).await
    }
}

fn decode(number: Option<Value>) -> anyhow::Result<u32> {
    let number = number.context("no such article")?;
    Ok(u32::from_be_bytes(number[..].try_into()?))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let shop = Shop::open(dir.path().join("shop")).await?;
    let stock = shop.stock.clone();
    shop.store.transact(move |txn| txn.put(&stock, "teapot", 30_u32.to_be_bytes())).await?;
    let before = shop.store.snapshot().await?;

    // 40 customers, 30 teapots: whatever the order of the tasks, 30 orders succeed.
    let orders = (0..CUSTOMERS).map(|customer| {
        let shop = shop.clone();
        tokio::spawn(async move { shop.order(customer, "teapot").await })
    });
    let mut sold = 0;
    for order in orders.collect::<Vec<_>>() {
        match order.await? {
            Ok(_) => sold += 1,
            Err(err) => println!("no order: {err}"),
        }
    }

    // A scan is a stream of rows.
    let mut listed = 0;
    let mut scan = shop.store.range(&shop.orders, ..);
    while let Some(row) = scan.next().await {
        row?;
        listed += 1;
    }
    let left = decode(shop.store.get(&shop.stock, "teapot").await?)?;
    println!(
        "{sold} sold, {listed} listed, {left} left; in the snapshot from before: {}",
        decode(before.get(&shop.stock, "teapot").await?)?
    );
    ensure!((sold, listed, left) == (30, 30, 0), "stock and orders do not match");

    // Bound a transaction with a retry policy, not with a timeout around the future: after such a
    // timeout it is unknown whether the transaction was committed. Here each attempt conflicts with
    // a transaction that commits first.
    let retry = Some(percolite::RetryPolicy::default().max_attempts(2));
    let (store, stock) = (shop.store.store().clone(), shop.stock.clone());
    let conflicting = move |txn: &mut percolite::Txn| {
        txn.put(&stock, "teapot", [0; 4])?;
        let mut first = store.begin()?;
        first.put(&stock, "teapot", [0; 4])?;
        first.commit()
    };
    let options = TxnOptions::default().retry_policy(retry);
    if let Err(err) = shop.store.transact_with(options, conflicting).await {
        println!("{err}");
    }
    drop((before, scan));
    Ok(shop.store.close().await?)
}
