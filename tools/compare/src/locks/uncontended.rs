//! One thread that takes a lock and drops it.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use percolite::Durability;

use super::postgres::Server;
use super::{Bench, Goal, Line};

const SHARDS: usize = 64;
const NAME: &str = "nightly";

/// What a program without a lock manager makes itself: names of this process alone, without a queue in order, time limits or tokens.
struct Map {
    shards: Vec<Mutex<HashMap<String, Arc<Mutex<()>>>>>,
    hasher: RandomState,
}

impl Map {
    fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }

    fn shard(&self, name: &str) -> Option<&Mutex<HashMap<String, Arc<Mutex<()>>>>> {
        self.shards.get(usize::try_from(self.hasher.hash_one(name) % SHARDS as u64).unwrap_or_default())
    }

    fn lock(&self, name: &str) -> Option<ArcMutexGuard<RawMutex, ()>> {
        let mutex = {
            let mut shard = self.shard(name)?.lock();
            match shard.get(name) {
                Some(mutex) => Arc::clone(mutex),
                None => Arc::clone(shard.entry(name.to_owned()).or_default()),
            }
        };
        Some(mutex.lock_arc())
    }

    /// Has the name go with its last user, or the map would only ever grow.
    fn forget(&self, name: &str, guard: ArcMutexGuard<RawMutex, ()>) -> Option<()> {
        drop(guard);
        let mut shard = self.shard(name)?.lock();
        if shard.get(name).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            shard.remove(name);
        }
        Some(())
    }
}

pub fn lines<'a>(bench: &'a Bench, server: Option<&'a Server>) -> Result<Vec<Line<'a>>> {
    let store = bench.open("uncontended", Durability::Buffered)?;
    let (map, turns) = (Arc::new(Map::new()), bench.turns);
    let ours = Arc::new(move || {
        timed(turns, || {
            drop(store.lock(NAME)?);
            Ok(())
        })
    });
    let alone = Arc::clone(&ours);
    let (against_going, going) = (Arc::clone(&ours), Arc::clone(&map));
    let against_staying = Arc::clone(&ours);
    let mut lines = vec![
        Line::alone("lock and drop, ns", Goal::AtMost(1000.0), move || alone()),
        Line::ratio("lock and drop, a sharded map whose names go", Goal::AtMost(4.0), move || {
            let theirs = timed(turns, || {
                let guard = black_box(going.lock(NAME)).context("no shard")?;
                going.forget(NAME, guard).context("no shard")
            });
            Ok((against_going()?, theirs?))
        }),
        Line::ratio("lock and drop, a sharded map whose names stay", Goal::None, move || {
            let theirs = timed(turns, || {
                drop(black_box(map.lock(NAME)));
                Ok(())
            });
            Ok((against_staying()?, theirs?))
        }),
    ];
    if let Some(server) = server {
        lines.push(Line::ratio("PostgreSQL's advisory lock, over lock and drop", Goal::AtLeast(20.0), move || {
            Ok((server.lock_and_unlock_nanos(bench.time)?, ours()?))
        }));
    }
    Ok(lines)
}

/// Nanoseconds of a turn.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn timed(turns: u64, mut turn: impl FnMut() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    for _ in 0..turns {
        turn()?;
    }
    Ok(began.elapsed().as_nanos() as f64 / turns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_map_go_with_the_last_who_wants_them() {
        let map = Map::new();
        let guard = map.lock(NAME).unwrap();
        assert!(map.shard(NAME).unwrap().lock().get(NAME).unwrap().try_lock().is_none());
        map.forget(NAME, guard).unwrap();
        assert!(map.shards.iter().all(|shard| shard.lock().is_empty()));
    }
}
