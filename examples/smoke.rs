use percolite::*;
use std::time::Instant;
fn run(store: &Store, clients: usize, n: u64, millis: u64, protocol: CommitProtocol) -> f64 {
    let ks = store.keyspace("accounts").unwrap();
    let v = vec![1u8; 100];
    for chunk in (0..n).collect::<Vec<_>>().chunks(1000) {
        store
            .transact(|t| {
                for i in chunk {
                    t.put(&ks, i.to_be_bytes(), &v)?;
                }
                Ok::<_, Error>(())
            })
            .unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let total = std::sync::atomic::AtomicU64::new(0);
    let t0 = Instant::now();
    std::thread::scope(|s| {
        for c in 0..clients {
            let (ks, stop, total, v) = (&ks, &stop, &total, &v);
            s.spawn(move || {
                let mut x = 88172645463325252u64 ^ (c as u64 + 1).wrapping_mul(0x9E3779B97F4A7C15);
                let mut done = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    let a = x % n;
                    let b = (x >> 32) % n;
                    store
                        .transact_with(TxnOptions { protocol: Some(protocol), ..Default::default() }, |t| {
                            t.get(ks, a.to_be_bytes())?;
                            t.get(ks, b.to_be_bytes())?;
                            t.put(ks, a.to_be_bytes(), v)?;
                            t.put(ks, b.to_be_bytes(), v)
                        })
                        .unwrap();
                    done += 1;
                }
                total.fetch_add(done, std::sync::atomic::Ordering::Relaxed);
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(millis));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    total.load(std::sync::atomic::Ordering::Relaxed) as f64 / t0.elapsed().as_secs_f64()
}
fn main() {
    for durability in [Durability::Buffered, Durability::Sync] {
        for n in [10_000, 10] {
            for clients in [1, 16, 64] {
                for protocol in [CommitProtocol::Auto, CommitProtocol::TwoPhase] {
                    let dir = tempfile::tempdir().unwrap();
                    let store = Store::builder().durability(durability).open(dir.path()).unwrap();
                    let r = run(&store, clients, n, 1500, protocol);
                    let s = store.stats();
                    println!(
                        "{durability:?} {n} accounts {clients} clients {protocol:?}: {r:.0}/s conflicts {} syncs {}",
                        s.conflicts, s.syncs
                    );
                }
            }
        }
    }
}
