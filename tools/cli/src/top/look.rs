//! One second of a store, as tables or as a JSON document.

use std::time::{Duration, Instant};

use percolite::{Latencies, Latency, Live, SlowTransaction, Stats, Store};
use serde_json::{Value, json};

use crate::table;

/// So many of the live and of the slow are shown.
const SHOWN: usize = 5;
const ROW_WIDTH: usize = 40;

/// What a store said at one moment.
pub struct Look {
    pub at: Instant,
    stats: Stats,
    latencies: Latencies,
    live: Vec<Live>,
    slow: Vec<SlowTransaction>,
}

impl Look {
    pub fn at(store: &Store) -> Self {
        let (live, slow) = (store.live(), store.slow_transactions());
        Self { at: Instant::now(), stats: store.stats(), latencies: store.latencies(), live, slow }
    }
}

/// What happened between two looks.
pub struct Second<'a> {
    now: &'a Look,
    took: Duration,
    commits: f64,
    committed_since: f64,
    locked: f64,
    retries: f64,
    syncs: f64,
    rolled: f64,
    latencies: Latencies,
}

impl<'a> Second<'a> {
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    pub fn between(before: &Look, now: &'a Look) -> Self {
        let took = now.at - before.at;
        let rate = |count: fn(&Stats) -> u64| (count(&now.stats) - count(&before.stats)) as f64 / took.as_secs_f64();
        Self {
            now,
            took,
            commits: rate(Stats::commits),
            committed_since: rate(|stats| stats.conflicts_committed),
            locked: rate(|stats| stats.conflicts_locked),
            retries: rate(|stats| stats.retries),
            syncs: rate(|stats| stats.syncs),
            rolled: rate(|stats| stats.rolled_forward + stats.rolled_back),
            latencies: now.latencies.since(&before.latencies),
        }
    }

    fn commits_per_sync(&self) -> f64 {
        if self.syncs > 0.0 { self.commits / self.syncs } else { 0.0 }
    }

    fn measured(&self) -> [(&'static str, &'static str, &Latency); 5] {
        let latencies = &self.latencies;
        [
            ("whole transfer", "transact", &latencies.transact),
            ("waiting before it", "waiting", &latencies.waiting),
            ("durable commit", "commit", &latencies.commit_durable),
            ("until applied", "combining", &latencies.combining),
            ("sync of the log", "sync", &latencies.syncing),
        ]
    }

    /// Rates, latencies, who is live and who was slow.
    pub fn tables(&self) -> Vec<String> {
        let mut tables = vec![self.rates(), self.latencies()];
        if !self.now.live.is_empty() {
            tables.push(self.live());
        }
        if !self.now.slow.is_empty() {
            tables.push(self.slow());
        }
        tables
    }

    fn rates(&self) -> String {
        let rate = |rate: f64| indicatif::HumanFloatCount(rate.round()).to_string();
        let stats = &self.now.stats;
        let header = [
            "commits/s",
            "per sync",
            "conflicts/s with commits",
            "conflicts/s with locks",
            "retries/s",
            "rolled/s",
            "live views",
            "not durable",
        ];
        let behind = stats.visible_ts.millis().saturating_sub(stats.durable_ts.millis());
        let cells = [
            rate(self.commits),
            format!("{:.1}", self.commits_per_sync()),
            rate(self.committed_since),
            rate(self.locked),
            rate(self.retries),
            rate(self.rolled),
            stats.live_views.to_string(),
            format!("{behind} ms"),
        ];
        table::figures(header, vec![cells])
    }

    fn latencies(&self) -> String {
        let row = |(what, _, latency): (&str, &str, &Latency)| {
            let at = |percent| duration(latency.percentile(percent));
            [what.to_owned(), latency.count().to_string(), at(50.0), at(90.0), at(99.0), at(99.9), at(100.0)]
        };
        let header = ["in the last second", "times", "p50", "p90", "p99", "p99.9", "max"];
        table::figures(header, self.measured().map(row).into())
    }

    fn live(&self) -> String {
        let row = |live: &Live| {
            [
                format!("{:?}", live.kind).to_lowercase(),
                live.label.unwrap_or("-").to_owned(),
                live.owner.map_or_else(|| "-".into(), |owner| owner.to_string()),
                duration(live.age),
                live.rows.to_string(),
            ]
        };
        let header = ["live, oldest first", "label", "owner", "age", "rows written"];
        let mut rows: Vec<_> = self.now.live.iter().take(SHOWN).map(row).collect();
        if let more @ 1.. = self.now.live.len().saturating_sub(SHOWN) {
            rows.push([format!("and {more} more"), String::new(), String::new(), String::new(), String::new()]);
        }
        table::texts(header, rows)
    }

    fn slow(&self) -> String {
        let row = |slow: &SlowTransaction| {
            let mut parts = slow.spent.parts();
            parts.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
            let told = parts.iter().take(2).filter(|(_, took)| *took >= slow.total / 20);
            let parts: Vec<String> = told.map(|(what, took)| format!("{} {what}", duration(*took))).collect();
            let way = slow.conflicts.last().map_or_else(
                || "-".into(),
                |met| {
                    let keyspace = met.keyspace.as_deref().unwrap_or_default();
                    let row = table::shorten(&format!("{keyspace}/{}", table::key(met.row.key())), ROW_WIDTH);
                    format!("{row}, {}", met.label.map_or_else(|| owner(met), str::to_owned))
                },
            );
            [
                slow.label.unwrap_or("-").to_owned(),
                duration(slow.total),
                slow.attempts.to_string(),
                parts.join("\n"),
                way,
            ]
        };
        let header = ["slow, newest first", "took", "attempts", "mostly", "last in the way"];
        table::texts(header, self.now.slow.iter().rev().take(SHOWN).map(row).collect())
    }

    pub fn json(&self, locks: usize) -> Value {
        let stats = &self.now.stats;
        let latencies: serde_json::Map<_, _> =
            self.measured().map(|(_, key, latency)| (key.to_owned(), latency_json(latency))).into_iter().collect();
        json!({
            "seconds": self.took.as_secs_f64(),
            "commits_per_second": self.commits,
            "conflicts_per_second": self.committed_since + self.locked,
            "conflicts_committed_per_second": self.committed_since,
            "conflicts_locked_per_second": self.locked,
            "retries_per_second": self.retries,
            "syncs_per_second": self.syncs,
            "commits_per_sync": self.commits_per_sync(),
            "rolled_per_second": self.rolled,
            "latencies": latencies,
            "live_views": stats.live_views,
            "live": self.now.live.iter().map(live_json).collect::<Vec<_>>(),
            "slow": self.now.slow.iter().rev().take(SHOWN).map(slow_json).collect::<Vec<_>>(),
            "locks_met": locks,
            "visible_ts": stats.visible_ts.to_string(),
            "durable_ts": stats.durable_ts.to_string(),
        })
    }
}

fn owner(met: &percolite::Conflict) -> String {
    met.owner.map_or_else(|| "unknown".into(), |owner| format!("owner {owner}"))
}

/// With three digits or so.
fn duration(duration: Duration) -> String {
    match duration.as_millis() {
        10.. => format!("{duration:.0?}"),
        _ => format!("{duration:.1?}"),
    }
}

fn latency_json(latency: &Latency) -> Value {
    let at = |percent| latency.percentile(percent).as_secs_f64();
    json!({
        "count": latency.count(), "p50_s": at(50.0), "p90_s": at(90.0), "p99_s": at(99.0), "p999_s": at(99.9), "max_s": at(100.0),
    })
}

fn live_json(live: &Live) -> Value {
    json!({
        "kind": format!("{:?}", live.kind).to_lowercase(),
        "label": live.label,
        "owner": live.owner.map(|owner| owner.to_string()),
        "read_ts": live.read_ts.to_string(),
        "age_s": live.age.as_secs_f64(),
        "rows": live.rows,
        "bytes": live.bytes,
        "streaming": live.streaming,
        "expired": live.expired,
    })
}

fn slow_json(slow: &SlowTransaction) -> Value {
    let conflict = |met: &percolite::Conflict| {
        json!({
            "keyspace": met.keyspace,
            "key": table::key(met.row.key()),
            "owner": met.owner.map(|owner| owner.to_string()),
            "label": met.label,
            "what": met.to_string(),
        })
    };
    let parts = slow.spent.parts().into_iter().map(|(what, took)| (what.to_owned(), json!(took.as_secs_f64())));
    json!({
        "label": slow.label,
        "owner": slow.owner.to_string(),
        "start_ts": slow.start_ts.to_string(),
        "took_s": slow.total.as_secs_f64(),
        "attempts": slow.attempts,
        "seconds_on": parts.collect::<serde_json::Map<_, _>>(),
        "conflicts": slow.conflicts.iter().map(conflict).collect::<Vec<_>>(),
    })
}
