//! Renders the published status of a store as tables or as JSON: totals since it was opened, or the
//! rates between two statuses.

mod locks;
mod transactions;
mod warnings;

use std::time::Duration;

use indicatif::HumanCount;
use percolite::{EngineStats, Latencies, LatencyHistogram, Stats, StoreStatus, Timestamp};
use serde_json::{Value, json};

pub use self::locks::{named_lock_tables, not_listed, row_lock_json, row_lock_table};
pub use self::transactions::{active_table, slow_table};
use self::transactions::{retrying_table, row_name};
use crate::lock::render;
use crate::{advice, table};

/// The maximum number of rows in each table of transactions or named locks.
const MAX_LISTED: usize = 5;
/// In place of a figure that was not measured.
pub const NOT_MEASURED: &str = "-";

/// The process, the age of the status, and the store's failure if it has failed.
pub fn header(status: &StoreStatus) -> String {
    let (uptime, age) = (indicatif::HumanDuration(status.uptime), short_duration(age(status)));
    let interval = status.publish_interval.map(|interval| format!(", every {}", short_duration(interval)));
    let failure = status.failure.as_ref().map(|err| format!("\nthe store has failed: {}", advice::of_library(err)));
    format!(
        "process {} has had the store open for {uptime}; status published {age} ago{}{}",
        status.pid,
        interval.unwrap_or_default(),
        failure.unwrap_or_default()
    )
}

/// The age of the status, by this machine's clock.
pub fn age(status: &StoreStatus) -> Duration {
    status.taken_at.elapsed().unwrap_or_default()
}

/// The totals since the store was opened, and its current activity.
pub fn tables(status: &StoreStatus) -> Vec<String> {
    let mut tables: Vec<String> = warnings::of(status, None).into_iter().collect();
    tables.extend([counter_table(status), latency_table("since open", &status.latencies)]);
    tables.extend(detail_tables(status));
    tables
}

/// The published status as a JSON document, with its age.
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
    let commits_per_sync = (stats.wal_syncs > 0).then(|| stats.commits_per_sync());
    let mut rows = vec![
        ("transactions started", count(stats.transactions_started)),
        (
            "commits",
            format!(
                "{}: {} one-phase, {} two-phase, {} large",
                count(stats.commits()),
                count(stats.commits_one_phase),
                count(stats.commits_two_phase),
                count(stats.commits_large)
            ),
        ),
        ("WAL syncs", format!("{}, {} commits per sync", count(stats.wal_syncs), per_sync(commits_per_sync))),
        (
            "conflicts",
            format!(
                "{}: {} with newer versions, {} with row locks, {} rolled back by others",
                count(stats.conflicts),
                count(stats.conflicts_newer_version),
                count(stats.conflicts_locked),
                count(stats.conflicts_rolled_back)
            ),
        ),
        ("retries", format!("{}, {} calls exhausted them", count(stats.retries), count(stats.retries_exhausted))),
        (
            "row locks resolved",
            format!(
                "{} rolled forward, {} rolled back, {} orphans by the background",
                count(stats.locks_rolled_forward),
                count(stats.locks_rolled_back),
                count(stats.orphan_locks_resolved)
            ),
        ),
        ("named locks", render::format_lock_stats(&status.lock_stats)),
        ("write stalls", stall_text(stats)),
        ("slow transactions", count(stats.slow_transactions)),
        ("snapshots expired", count(stats.snapshots_expired)),
        ("lock cleanup pending", cleanup_text(stats)),
        ("durability lag", durability_lag(stats)),
        ("history", history_text(stats)),
    ];
    if let Some(engine) = &status.engine {
        rows.extend([("memory", memory_text(engine)), ("oldest snapshot keeps", kept_text(status, engine))]);
        rows.push(("disk", disk_text(engine)));
    }
    let rows = rows.into_iter().map(|(name, text)| [name.to_owned(), text]).collect();
    table::text_table(["since open", ""], rows)
}

/// How far the durable timestamp is behind the visible one. A shared engine has neither.
fn durability_lag(stats: &Stats) -> String {
    if stats.visible_ts == Timestamp::ZERO {
        return NOT_MEASURED.into();
    }
    format!("{} ms", stats.visible_ts.millis().saturating_sub(stats.durable_ts.millis()))
}

/// The commits per sync; `None` without a sync.
fn per_sync(commits: Option<f64>) -> String {
    commits.map_or_else(|| NOT_MEASURED.into(), |commits| format!("{commits:.1}"))
}

/// The large transactions whose row locks are not all removed yet.
fn cleanup_text(stats: &Stats) -> String {
    let (pending, unlocked) = (HumanCount(stats.cleanup_pending), HumanCount(stats.cleanup_rows));
    match stats.cleanup_pending {
        0 => "0".into(),
        _ => format!("{pending}; {unlocked} of {} rows unlocked so far", HumanCount(stats.large_rows_locked)),
    }
}

fn history_text(stats: &Stats) -> String {
    let Some((start, retention)) = stats.history_start_ts.zip(stats.history_retention) else {
        return "no history".into();
    };
    let start = table::format_time(start.millis(), "%Y-%m-%d %H:%M:%S UTC");
    let (retention, removed) = (crate::duration::format_duration(retention), HumanCount(stats.gc_versions));
    format!("from {start}, retention {retention}; {removed} replaced versions removed by GC")
}

fn memory_text(engine: &EngineStats) -> String {
    let bytes = indicatif::HumanBytes;
    format!(
        "block cache {} of {}, memtables {}, open tables {}",
        bytes(engine.block_cache_bytes),
        bytes(engine.block_cache_capacity_bytes),
        bytes(engine.memtable_bytes),
        bytes(engine.table_reader_bytes)
    )
}

/// What the oldest open snapshot keeps from being removed, and whose it is.
fn kept_text(status: &StoreStatus, engine: &EngineStats) -> String {
    let bytes = indicatif::HumanBytes;
    // The list begins with the oldest state. What has expired keeps nothing.
    let holder = status.active.iter().find(|active| !active.is_expired).map_or_else(String::new, |holder| {
        let label = holder.label.as_ref().map(|label| format!(" {label:?}")).unwrap_or_default();
        format!(" ({}{label} of {} ago)", holder.kind, short_duration(holder.age))
    });
    format!(
        "what {} batches have replaced since{holder}; memtables {}; replaced tables {}",
        HumanCount(engine.batches_since_oldest_snapshot),
        bytes(engine.snapshot_memtable_bytes),
        bytes(engine.obsolete_table_bytes)
    )
}

fn disk_text(engine: &EngineStats) -> String {
    let bytes = indicatif::HumanBytes;
    match (engine.disk_free_bytes, engine.disk_total_bytes) {
        (Some(free), Some(total)) => format!("{} of {} free", bytes(free), bytes(total)),
        _ => NOT_MEASURED.into(),
    }
}

fn stall_text(stats: &Stats) -> String {
    let total = if stats.write_stalls > 0 {
        format!(", {} in total", short_duration(stats.write_stall_time))
    } else {
        String::new()
    };
    format!("{}{total}{}", HumanCount(stats.write_stalls), current_stall_text(stats))
}

fn current_stall_text(stats: &Stats) -> String {
    stats.current_write_stall.map(|now| format!("; one in progress for {}", short_duration(now))).unwrap_or_default()
}

/// Active transactions, slow transactions, row locks and named locks.
fn detail_tables(status: &StoreStatus) -> Vec<String> {
    let mut tables = Vec::new();
    if !status.retrying.is_empty() {
        tables.push(retrying_table(&status.retrying, status.retrying_total));
    }
    if !status.active.is_empty() {
        tables.push(active_table(&status.active, status.active_total));
    }
    if !status.slow.is_empty() {
        tables.push(slow_table("slow, newest first", status.slow.iter().rev()));
        tables.push(slow_table("slowest", &status.slowest));
    }
    tables.push(row_lock_table(&status.row_locks).unwrap_or_else(|| "no row locks".into()));
    tables.extend(named_lock_tables(status, MAX_LISTED));
    tables
}

/// The activity between two statuses of a store: rates per second, and latencies.
pub struct StatusDelta<'a> {
    now: &'a StoreStatus,
    elapsed: Duration,
    commits: f64,
    newer_version_conflicts: f64,
    lock_conflicts: f64,
    retries: f64,
    wal_syncs: f64,
    resolved: f64,
    orphans_resolved: f64,
    write_stalls: f64,
    /// The part of the time in which a write was stalled.
    write_stall_ratio: f64,
    latencies: Latencies,
}

impl<'a> StatusDelta<'a> {
    /// The activity since `before`. `None` if the two statuses are the same, or of different
    /// incarnations.
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    pub fn of(before: &StoreStatus, now: &'a StoreStatus) -> Option<Self> {
        let elapsed = now.uptime.checked_sub(before.uptime)?;
        if before.pid != now.pid || elapsed.is_zero() {
            return None;
        }
        let rate = |count: fn(&Stats) -> u64| {
            count(&now.stats).saturating_sub(count(&before.stats)) as f64 / elapsed.as_secs_f64()
        };
        Some(Self {
            now,
            elapsed,
            commits: rate(Stats::commits),
            newer_version_conflicts: rate(|stats| stats.conflicts_newer_version),
            lock_conflicts: rate(|stats| stats.conflicts_locked),
            retries: rate(|stats| stats.retries),
            wal_syncs: rate(|stats| stats.wal_syncs),
            resolved: rate(|stats| {
                stats.locks_rolled_forward + stats.locks_rolled_back + stats.orphan_locks_resolved + stats.cleanup_rows
            }),
            orphans_resolved: rate(|stats| stats.orphan_locks_resolved),
            write_stalls: rate(|stats| stats.write_stalls),
            write_stall_ratio: now
                .stats
                .write_stall_time
                .saturating_sub(before.stats.write_stall_time)
                .div_duration_f64(elapsed),
            latencies: now.latencies.since(&before.latencies),
        })
    }

    /// `None` if there was no sync.
    fn commits_per_sync(&self) -> Option<f64> {
        (self.wal_syncs > 0.0).then(|| self.commits / self.wal_syncs)
    }

    /// Rates and latencies since the previous status, and the current activity.
    pub fn tables(&self) -> Vec<String> {
        let mut tables: Vec<String> = warnings::of(self.now, Some(self.orphans_resolved)).into_iter().collect();
        tables.push(self.rate_table());
        tables.extend(self.stall_text());
        if let Some(engine) = &self.now.engine {
            tables.push(format!("{}; disk {}", memory_text(engine), disk_text(engine)));
            tables.push(format!("the oldest snapshot keeps {}", kept_text(self.now, engine)));
        }
        tables.push(latency_table(&format!("in the last {}", short_duration(self.elapsed)), &self.latencies));
        tables.extend(detail_tables(self.now));
        tables
    }

    fn rate_table(&self) -> String {
        let rate = |rate: f64| indicatif::HumanFloatCount(rate.round()).to_string();
        let stats = &self.now.stats;
        let header = [
            "commits/s",
            "commits/sync",
            "version conflicts/s",
            "lock conflicts/s",
            "retries/s",
            "resolved/s",
            "open views",
            "durability lag",
        ];
        let cells = [
            rate(self.commits),
            per_sync(self.commits_per_sync()),
            rate(self.newer_version_conflicts),
            rate(self.lock_conflicts),
            rate(self.retries),
            rate(self.resolved),
            stats.open_views.to_string(),
            durability_lag(stats),
        ];
        table::numeric_table(header, vec![cells])
    }

    /// The write stalls, if there was any.
    fn stall_text(&self) -> Option<String> {
        (self.write_stalls > 0.0 || self.write_stall_ratio > 0.0).then(|| {
            let (stalls, percent) = (self.write_stalls.ceil(), self.write_stall_ratio * 100.0);
            let current = current_stall_text(&self.now.stats);
            format!("write stalls: {stalls}/s, {percent:.0} % of the time{current}")
        })
    }

    /// The JSON of `top`.
    pub fn json(&self) -> Value {
        let StoreStatus { pid, stats, engine, active, retrying, slow, slowest, row_locks, .. } = self.now;
        let longest_waits = render::by_wait_time(&self.now.lock_waits).into_iter().take(MAX_LISTED);
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
            "conflicts_newer_version_per_second": self.newer_version_conflicts,
            "conflicts_locked_per_second": self.lock_conflicts,
            "retries_per_second": self.retries,
            "wal_syncs_per_second": self.wal_syncs,
            "commits_per_sync": self.commits_per_sync(),
            "locks_resolved_per_second": self.resolved,
            "orphan_locks_left": stats.orphan_locks_left(),
            "orphan_locks_s_left": warnings::time_left(stats, self.orphans_resolved).map(|left| left.as_secs_f64()),
            "clock_behind_s": warnings::clock_behind(self.now).as_secs_f64(),
            "write_stalls_per_second": self.write_stalls,
            "write_stall_ratio": self.write_stall_ratio,
            "current_write_stall_s": stats.current_write_stall.map(|now| now.as_secs_f64()),
            "latencies": latencies,
            "open_views": stats.open_views,
            "engine": engine,
            "active": active,
            "retrying_total": self.now.retrying_total,
            "retrying": retrying,
            "slow": slow.iter().rev().take(MAX_LISTED).collect::<Vec<_>>(),
            "slowest": slowest.iter().take(MAX_LISTED).collect::<Vec<_>>(),
            "row_locks": row_locks.iter().map(row_lock_json).collect::<Vec<_>>(),
            "held_locks_total": self.now.held_locks_total,
            "lock_waits_total": self.now.lock_waits_total,
            "longest_lock_wait_s": self.now.longest_lock_wait.as_secs_f64(),
            "longest_lock_waits": longest_waits.map(render::to_json).collect::<Vec<_>>(),
            "visible_ts": stats.visible_ts.to_string(),
            "visible_time": table::format_timestamp(stats.visible_ts),
            "durable_ts": stats.durable_ts.to_string(),
        })
    }
}

/// The latencies with their names in tables and in JSON.
fn latency_rows(latencies: &Latencies) -> [(&'static str, &'static str, &LatencyHistogram); 5] {
    [
        ("transact, total", "transact", &latencies.transact),
        ("admission wait", "admission_wait", &latencies.admission_wait),
        ("durable commit", "commit_durable", &latencies.commit_durable),
        ("commit apply", "commit_apply", &latencies.commit_apply),
        ("WAL sync", "wal_sync", &latencies.wal_sync),
    ]
}

fn latency_table(when: &str, latencies: &Latencies) -> String {
    let row = |(name, _, latency): (&str, &str, &LatencyHistogram)| {
        let is_measured = latency.count() > 0;
        let at = |percent| {
            if is_measured { short_duration(latency.percentile(percent)) } else { NOT_MEASURED.into() }
        };
        [name.to_owned(), latency.count().to_string(), at(50.0), at(90.0), at(99.0), at(99.9), at(100.0)]
    };
    let header = [when, "count", "p50", "p90", "p99", "p99.9", "max"];
    table::numeric_table(header, latency_rows(latencies).map(row).into())
}

fn latency_json(latency: &LatencyHistogram) -> Value {
    let at = |percent| (latency.count() > 0).then(|| latency.percentile(percent).as_secs_f64());
    json!({
        "count": latency.count(),
        "p50_s": at(50.0),
        "p90_s": at(90.0),
        "p99_s": at(99.0),
        "p999_s": at(99.9),
        "max_s": at(100.0),
    })
}

/// A duration with about three digits.
fn short_duration(duration: Duration) -> String {
    match duration.as_millis() {
        10.. => format!("{duration:.0?}"),
        _ => format!("{duration:.1?}"),
    }
}
