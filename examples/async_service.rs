//! A small service on tokio: many tasks take orders at once, a report reads a snapshot meanwhile, and a caller who loses patience
//! is told how things stand.
//!
//! `cargo run --release --features tokio --example async_service`

use anyhow::{Context, ensure};
use percolite::{AsyncStore, Keyspace, TxnOptions};

const CUSTOMERS: u32 = 40;

/// Cheap to clone, as the state of a web framework's handlers must be.
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

    /// Either the stock sinks and there is an order, or neither.
    async fn order(&self, customer: u32, article: &'static str) -> anyhow::Result<u32> {
        // The closure may run again and on another thread: it owns what it needs.
        let Self { stock, orders, .. } = self.clone();
        let attempt = move |txn: &mut percolite::Txn| {
            let left = number(txn.get(&stock, article)?)?;
            ensure!(left > 0, "{article}: sold out");
            txn.put(&stock, article, (left - 1).to_be_bytes())?;
            txn.insert(&orders, customer.to_be_bytes(), article)?;
            Ok(left - 1)
        };
        self.store.transact(attempt).await
    }
}

fn number(bytes: Option<Vec<u8>>) -> anyhow::Result<u32> {
    let bytes = bytes.context("no such article")?;
    Ok(u32::from_be_bytes(bytes.as_slice().try_into()?))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let shop = Shop::open(folder.path().join("shop")).await?;
    let stock = shop.stock.clone();
    shop.store.transact(move |txn| txn.put(&stock, "teapot", 30_u32.to_be_bytes())).await?;
    let before = shop.store.snapshot().await?;

    let orders = (0..CUSTOMERS).map(|customer| {
        let shop = shop.clone();
        tokio::spawn(async move { shop.order(customer, "teapot").await })
    });
    let mut sold = 0;
    for order in orders.collect::<Vec<_>>() {
        match order.await? {
            Ok(_) => sold += 1,
            Err(why) => println!("no order: {why}"),
        }
    }

    let mut listed = 0;
    let mut scan = shop.store.range(&shop.orders, ..);
    while let Some(row) = scan.next().await {
        let (_customer, _article) = row?;
        listed += 1;
    }
    let left = number(shop.store.get(&shop.stock, "teapot").await?)?;
    println!(
        "{sold} sold, {listed} listed, {left} left; before: {}",
        number(before.get(&shop.stock, "teapot").await?)?
    );
    ensure!((sold, listed, left) == (30, 30, 0), "the books do not agree");

    // A limit that tells, rather than a timeout around the future, after which the commit may have happened or not.
    let retry = Some(percolite::RetryPolicy { max_attempts: 2, ..Default::default() });
    let (rival, stock) = (shop.store.store().clone(), shop.stock.clone());
    let always_second = move |txn: &mut percolite::Txn| {
        txn.put(&stock, "teapot", [0; 4])?;
        let mut first = rival.begin()?;
        first.put(&stock, "teapot", [0; 4])?;
        first.commit()
    };
    let options = TxnOptions { retry_policy: retry, ..TxnOptions::default() };
    if let Err(why) = shop.store.transact_with(options, always_second).await {
        println!("{why}");
    }
    drop((before, scan));
    Ok(shop.store.close().await?)
}
