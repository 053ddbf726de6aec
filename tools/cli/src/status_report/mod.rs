//! What a running store tells of itself, as tables or as a JSON document: in all, or between two moments.

mod locks;

use std::time::Duration;

use indicatif::HumanCount;
use percolite::{
    ActiveTransactionStatus, EngineStats, Latencies, LatencyHistogram, SlowTransactionStatus, Stats, StoreStatus,
};
use serde_json::{Value, json};

pub use self::locks::{named_lock_tables, not_listed, row_lock_json, row_lock_table};
use crate::lock::render;
use crate::table;

/// So many of the live, of the slow and of locks by name are shown.
const MAX_LISTED: usize = 5;
const ROW_WIDTH: usize = 40;

/// Whose status it is, and how old.
pub fn header(status: &StoreStatus) -> String {
    let said = format!(
        "process {} has had it open for {}; this is what it said {} ago",
        status.pid,
        indicatif::HumanDuration(status.uptime),
        short_duration(age(status))
    );
    let every = status
        .publish_interval
        .map(|every| format!(", and it does so every {}", short_duration(every)))
        .unwrap_or_default();
    let failed = status.failure.as_ref().map(|err| format!("\nthe store has failed: {err}")).unwrap_or_default();
    format!("{said}{every}{failed}")
}

/// How old it is, by this machine's clock.
pub fn age(status: &StoreStatus) -> Duration {
    status.taken_at.elapsed().unwrap_or_default()
}

/// Everything since the store was opened.
pub fn tables(status: &StoreStatus) -> Vec<String> {
    let mut tables = vec![counter_table(status), latency_table("since it was opened", &status.latencies)];
    tables.extend(detail_tables(status));
    tables
}

/// The document as it was published, and its age.
pub fn to_json(status: &StoreStatus) -> serde_json::Result<Value> {
    let mut document = serde_json::to_value(status)?;
    if let Some(fields) = document.as_object_mut() {
        fields.insert("age_s".into(), json!(age(status).as_secs_f64()));
    }
    Ok(document)
}

fn counter_table(status: &StoreStatus) -> String {
    let stats = &status.stats;
    let count = |count: u64| HumanCount(count).to_string();
    let behind = stats.visible_ts.millis().saturating_sub(stats.durable_ts.millis());
    let mut rows = vec![
        ("transactions begun", count(stats.transactions_started)),
        (
            "commits",
            format!(
                "{}: {} in one phase, {} in two, {} large",
                count(stats.commits()),
                count(stats.commits_one_phase),
                count(stats.commits_two_phase),
                count(stats.commits_large)
            ),
        ),
        ("syncs", format!("{}, {:.1} commits each", count(stats.wal_syncs), stats.commits_per_sync())),
        (
            "conflicts",
            format!(
                "{}: {} with commits, {} with row locks, {} taken for dead",
                count(stats.conflicts),
                count(stats.conflicts_newer_version),
                count(stats.conflicts_locked),
                count(stats.conflicts_rolled_back)
            ),
        ),
        ("retries", format!("{}; {} given up", count(stats.retries), count(stats.retries_exhausted))),
        (
            "row locks of others",
            format!(
                "{} rolled forward and {} back one by one; {} of the dead resolved in the background",
                count(stats.locks_rolled_forward),
                count(stats.locks_rolled_back),
                count(stats.orphan_locks_resolved)
            ),
        ),
        ("locks by name", render::format_lock_stats(&status.lock_stats)),
        ("stalled writes", stall_text(stats)),
        ("slow transactions", count(stats.slow_transactions)),
        ("ended at the age limit", count(stats.snapshots_expired)),
        ("large, rows still locked", cleanup_text(stats)),
        ("not durable yet", format!("{behind} ms")),
        ("history", history_text(stats)),
    ];
    rows.extend(status.engine.as_ref().map(|engine| ("memory", memory_text(engine))));
    table::text_table(
        ["since it was opened", ""],
        rows.into_iter().map(|(what, told)| [what.to_owned(), told]).collect(),
    )
}

/// Those whose rows are being unlocked behind their end.
fn cleanup_text(stats: &Stats) -> String {
    let ended = HumanCount(stats.cleanup_rows);
    match stats.cleanup_pending {
        0 => "0".into(),
        some => {
            format!("{}; {ended} of {} rows unlocked so far", HumanCount(some), HumanCount(stats.large_rows_locked))
        }
    }
}

fn history_text(stats: &Stats) -> String {
    let Some((from, kept)) = stats.history_start_ts.zip(stats.history_retention) else { return "none is kept".into() };
    let from = table::format_time(from.millis(), "%Y-%m-%d %H:%M:%S UTC");
    let collected = HumanCount(stats.gc_versions);
    format!(
        "from {from} on, kept for {}; {collected} replaced versions collected",
        crate::duration::format_duration(kept)
    )
}

fn memory_text(engine: &EngineStats) -> String {
    let bytes = indicatif::HumanBytes;
    format!(
        "cache {} of {}, write buffers {}, open tables {}",
        bytes(engine.block_cache_bytes),
        bytes(engine.block_cache_capacity_bytes),
        bytes(engine.memtable_bytes),
        bytes(engine.table_reader_bytes)
    )
}

fn stall_text(stats: &Stats) -> String {
    let times = HumanCount(stats.write_stalls);
    let waited = if stats.write_stalls > 0 {
        format!(", which waited for {} in all", short_duration(stats.write_stall_time))
    } else {
        String::new()
    };
    format!("{times}{waited}{}", current_stall_text(stats))
}

fn current_stall_text(stats: &Stats) -> String {
    stats.current_write_stall.map(|now| format!("; one waits now, for {}", short_duration(now))).unwrap_or_default()
}

/// Who is live, who was slow, and what is locked.
fn detail_tables(status: &StoreStatus) -> Vec<String> {
    let mut tables = Vec::new();
    if !status.active.is_empty() {
        tables.push(active_table(&status.active, status.active_total));
    }
    if !status.slow.is_empty() {
        tables.push(slow_table("slow, newest first", status.slow.iter().rev()));
        tables.push(slow_table("slowest of all", &status.slowest));
    }
    tables.push(row_lock_table(&status.row_locks).unwrap_or_else(|| "no row locks were met".into()));
    tables.extend(named_lock_tables(status, MAX_LISTED));
    tables
}

/// What happened between two statuses of a store.
pub struct StatusDelta<'a> {
    now: &'a StoreStatus,
    elapsed: Duration,
    commits: f64,
    newer_version_conflicts: f64,
    lock_conflicts: f64,
    retries: f64,
    syncs: f64,
    resolved: f64,
    write_stalls: f64,
    /// For which part of the time there was a write that waited.
    write_stall_ratio: f64,
    latencies: Latencies,
}

impl<'a> StatusDelta<'a> {
    /// `None` when they are not of one life of the store, or of one moment.
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    pub fn of(before: &StoreStatus, now: &'a StoreStatus) -> Option<Self> {
        let took = now.uptime.checked_sub(before.uptime).filter(|took| before.pid == now.pid && !took.is_zero())?;
        let rate = |count: fn(&Stats) -> u64| {
            count(&now.stats).saturating_sub(count(&before.stats)) as f64 / took.as_secs_f64()
        };
        Some(Self {
            now,
            elapsed: took,
            commits: rate(Stats::commits),
            newer_version_conflicts: rate(|stats| stats.conflicts_newer_version),
            lock_conflicts: rate(|stats| stats.conflicts_locked),
            retries: rate(|stats| stats.retries),
            syncs: rate(|stats| stats.wal_syncs),
            resolved: rate(|stats| {
                stats.locks_rolled_forward + stats.locks_rolled_back + stats.orphan_locks_resolved + stats.cleanup_rows
            }),
            write_stalls: rate(|stats| stats.write_stalls),
            write_stall_ratio: now
                .stats
                .write_stall_time
                .saturating_sub(before.stats.write_stall_time)
                .div_duration_f64(took),
            latencies: now.latencies.since(&before.latencies),
        })
    }

    fn commits_per_sync(&self) -> f64 {
        if self.syncs > 0.0 { self.commits / self.syncs } else { 0.0 }
    }

    /// Rates, latencies, who is live and who was slow.
    pub fn tables(&self) -> Vec<String> {
        let mut tables = vec![self.rate_table()];
        tables.extend(self.stall_text());
        tables.extend(self.now.engine.as_ref().map(memory_text));
        tables.push(latency_table(&format!("in the last {}", short_duration(self.elapsed)), &self.latencies));
        tables.extend(detail_tables(self.now));
        tables
    }

    fn rate_table(&self) -> String {
        let rate = |rate: f64| indicatif::HumanFloatCount(rate.round()).to_string();
        let stats = &self.now.stats;
        let header = [
            "commits/s",
            "per sync",
            "conflicts/s with commits",
            "conflicts/s with row locks",
            "retries/s",
            "rolled/s",
            "live views",
            "not durable",
        ];
        let behind = stats.visible_ts.millis().saturating_sub(stats.durable_ts.millis());
        let cells = [
            rate(self.commits),
            format!("{:.1}", self.commits_per_sync()),
            rate(self.newer_version_conflicts),
            rate(self.lock_conflicts),
            rate(self.retries),
            rate(self.resolved),
            stats.open_views.to_string(),
            format!("{behind} ms"),
        ];
        table::numeric_table(header, vec![cells])
    }

    /// In words, if there was any.
    fn stall_text(&self) -> Option<String> {
        (self.write_stalls > 0.0 || self.write_stall_ratio > 0.0).then(|| {
            let (refused, percent) = (self.write_stalls.ceil(), self.write_stall_ratio * 100.0);
            let now = current_stall_text(&self.now.stats);
            format!("the tables have fallen behind: {refused} writes/s stall, and {percent:.0} % of the time one waited{now}")
        })
    }

    pub fn json(&self) -> Value {
        let StoreStatus { pid, stats, engine, active: live, slow, slowest, row_locks, .. } = self.now;
        let latencies: serde_json::Map<_, _> = latency_rows(&self.latencies)
            .map(|(_, key, latency)| (key.to_owned(), latency_json(latency)))
            .into_iter()
            .collect();
        json!({
            "pid": pid,
            "age_s": age(self.now).as_secs_f64(),
            "seconds": self.elapsed.as_secs_f64(),
            "commits_per_second": self.commits,
            "conflicts_per_second": self.newer_version_conflicts + self.lock_conflicts,
            "conflicts_committed_per_second": self.newer_version_conflicts,
            "conflicts_locked_per_second": self.lock_conflicts,
            "retries_per_second": self.retries,
            "syncs_per_second": self.syncs,
            "commits_per_sync": self.commits_per_sync(),
            "rolled_per_second": self.resolved,
            "write_stalls_per_second": self.write_stalls,
            "write_stalled_share": self.write_stall_ratio,
            "write_stalled_now_s": stats.current_write_stall.map(|now| now.as_secs_f64()),
            "latencies": latencies,
            "live_views": stats.open_views,
            "engine": engine,
            "live": live,
            "slow": slow.iter().rev().take(MAX_LISTED).collect::<Vec<_>>(),
            "slowest": slowest.iter().take(MAX_LISTED).collect::<Vec<_>>(),
            "row_locks_met": row_locks.len(),
            "row_locks": row_locks.iter().map(row_lock_json).collect::<Vec<_>>(),
            "held_locks": self.now.held_locks_total,
            "lock_waits": self.now.lock_waits_total,
            "longest_lock_wait_s": self.now.longest_lock_wait.as_secs_f64(),
            "longest_lock_waits": render::by_wait_time(&self.now.lock_waits).into_iter().take(MAX_LISTED).map(render::to_json).collect::<Vec<_>>(),
            "visible_ts": stats.visible_ts.to_string(),
            "visible_time": table::format_timestamp(stats.visible_ts),
            "durable_ts": stats.durable_ts.to_string(),
        })
    }
}

fn latency_rows(latencies: &Latencies) -> [(&'static str, &'static str, &LatencyHistogram); 5] {
    [
        ("whole transact", "transact", &latencies.transact),
        ("waiting before it", "waiting", &latencies.admission_wait),
        ("durable commit", "commit", &latencies.commit_durable),
        ("until applied", "combining", &latencies.commit_apply),
        ("sync of the log", "sync", &latencies.wal_sync),
    ]
}

fn latency_table(when: &str, latencies: &Latencies) -> String {
    let row = |(what, _, latency): (&str, &str, &LatencyHistogram)| {
        let at = |percent| short_duration(latency.percentile(percent));
        [what.to_owned(), latency.count().to_string(), at(50.0), at(90.0), at(99.0), at(99.9), at(100.0)]
    };
    let header = [when, "times", "p50", "p90", "p99", "p99.9", "max"];
    table::numeric_table(header, latency_rows(latencies).map(row).into())
}

fn latency_json(latency: &LatencyHistogram) -> Value {
    let at = |percent| latency.percentile(percent).as_secs_f64();
    json!({
        "count": latency.count(), "p50_s": at(50.0), "p90_s": at(90.0), "p99_s": at(99.0), "p999_s": at(99.9), "max_s": at(100.0),
    })
}

/// A table of transactions and snapshots that are not over.
pub fn active_table<'a>(live: impl IntoIterator<Item = &'a ActiveTransactionStatus>, total: u64) -> String {
    let row = |live: &ActiveTransactionStatus| {
        [
            live.kind.clone(),
            live.label.clone().unwrap_or_else(|| "-".into()),
            live.owner_id.clone().unwrap_or_else(|| "-".into()),
            short_duration(live.age),
            if live.is_large {
                format!("{}, and {} streamed", HumanCount(live.buffered_rows), HumanCount(live.locked_rows))
            } else {
                HumanCount(live.buffered_rows).to_string()
            },
        ]
    };
    let mut rows: Vec<_> = live.into_iter().take(MAX_LISTED).map(row).collect();
    if let more @ 1.. = total.saturating_sub(rows.len() as u64) {
        rows.push([format!("and {more} more"), String::new(), String::new(), String::new(), String::new()]);
    }
    table::text_table(["live, oldest first", "label", "owner", "age", "rows written"], rows)
}

/// A table of transactions that were slow.
pub fn slow_table<'a>(which: &str, slow: impl IntoIterator<Item = &'a SlowTransactionStatus>) -> String {
    let row = |slow: &SlowTransactionStatus| {
        let mut parts: Vec<(&String, Duration)> = slow
            .breakdown
            .iter()
            .map(|(what, took)| (what, Duration::try_from_secs_f64(*took).unwrap_or_default()))
            .collect();
        parts.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let told = parts.iter().take(2).filter(|(_, took)| *took >= slow.duration / 20);
        let parts: Vec<String> = told.map(|(what, took)| format!("{} {what}", short_duration(*took))).collect();
        let way = slow.conflicts.last().map_or_else(
            || "-".into(),
            |met| {
                let row = row_name(met.keyspace.as_deref(), &met.key);
                let owner = met.owner.as_ref().map_or_else(|| "unknown".into(), |owner| format!("owner {owner}"));
                format!("{row}, {}", met.label.clone().unwrap_or(owner))
            },
        );
        [
            slow.label.clone().unwrap_or_else(|| "-".into()),
            short_duration(slow.duration),
            slow.attempts.to_string(),
            parts.join("\n"),
            way,
        ]
    };
    let header = [which, "took", "attempts", "mostly", "last in the way"];
    table::text_table(header, slow.into_iter().take(MAX_LISTED).map(row).collect())
}

fn row_name(keyspace: Option<&str>, key: &str) -> String {
    table::truncate(&format!("{}/{key}", keyspace.unwrap_or_default()), ROW_WIDTH)
}

/// With three digits or so.
fn short_duration(duration: Duration) -> String {
    match duration.as_millis() {
        10.. => format!("{duration:.0?}"),
        _ => format!("{duration:.1?}"),
    }
}
