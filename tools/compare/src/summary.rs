//! The summary of a run: the metrics of each store at each setting, and their tables.

use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::format::{count, time};
use crate::peer::StoreKind;
use crate::spec::{Conditions, Metrics, Setting};
use crate::statistics::{Entry, Outcomes, Spread};

/// The metrics of one store at one setting.
#[derive(Serialize)]
pub struct Summary {
    pub setting: Setting,
    /// The setting as text.
    pub title: String,
    pub store: StoreKind,
    /// Operations per second.
    pub rate: Option<Spread>,
    /// percolite's rate divided by the rate of this store in the same round.
    pub percolite_ratio: Option<Spread>,
    /// The medians over the rounds. But counts are sums, and `peak_bytes` is the maximum.
    pub median: Option<Metrics>,
    pub failed: Option<String>,
}

/// The summaries of a run.
pub fn summarize(entries: &[Entry], outcomes: &Outcomes, conditions: &Conditions, rounds: u64) -> Vec<Summary> {
    let one = |entry: &Entry| {
        let all = outcomes.metrics(entry, conditions, rounds);
        let median =
            |of: fn(&Metrics) -> f64| Spread::of(all.iter().map(|one| of(one)).collect()).map(|spread| spread.median);
        let median_of = |of: fn(&Metrics) -> Option<f64>| {
            Spread::of(all.iter().filter_map(|one| of(one)).collect()).map(|spread| spread.median)
        };
        let ours = Entry { store: StoreKind::Percolite, ..entry.clone() };
        let against = std::slice::from_ref(entry);
        Summary {
            title: entry.setting.to_string(),
            setting: entry.setting.clone(),
            store: entry.store,
            rate: Spread::of(all.iter().map(|one| one.rate).collect()),
            percolite_ratio: Spread::of(outcomes.ratios(&ours, against, conditions, rounds)),
            median: (!all.is_empty()).then(|| Metrics {
                rate: median(|one| one.rate).unwrap_or_default(),
                operations: all.iter().map(|one| one.operations).sum(),
                commits: all.iter().map(|one| one.commits).sum(),
                aborts_per_commit: median_of(|one| one.aborts_per_commit),
                cpu: median(|one| one.cpu).unwrap_or_default(),
                p50: median(|one| one.p50).unwrap_or_default(),
                p95: median(|one| one.p95).unwrap_or_default(),
                p99: median(|one| one.p99).unwrap_or_default(),
                p999: median(|one| one.p999).unwrap_or_default(),
                write_amplification: median_of(|one| one.write_amplification),
                dirtied_amplification: median_of(|one| one.dirtied_amplification),
                concurrent_load: median_of(|one| one.concurrent_load),
                peak_bytes: all.iter().map(|one| one.peak_bytes).max().unwrap_or_default(),
                ..Metrics::default()
            }),
            failed: outcomes.failure(entry, conditions, rounds).map(str::to_owned),
        }
    };
    entries.iter().map(one).collect()
}

/// The headers of the metrics. The last column exists only for workloads with a concurrent load.
const COLUMNS: [&str; 11] = [
    "ops/s",
    "min..max",
    "percolite/this",
    "aborts/commit",
    "cpu/op",
    "p50",
    "p99",
    "p99.9",
    "write amplification",
    "peak memory",
    "rows loaded",
];

/// The headers of a group's table.
pub fn columns(group: &[Summary]) -> &'static [&'static str] {
    let has_loaded = |one: &Summary| one.median.as_ref().is_some_and(|median| median.concurrent_load.is_some());
    let without = COLUMNS.len() - 1;
    if group.iter().any(has_loaded) { &COLUMNS } else { &COLUMNS[..without] }
}

fn write_amplification(median: &Metrics) -> Option<String> {
    let to_disk = median.write_amplification.map(|ratio| format!("{ratio:.1}"));
    to_disk.or_else(|| median.dirtied_amplification.map(|ratio| format!("{ratio:.1} dirtied")))
}

/// A row of the table, in the order of [`columns`]. The last cell has no header if [`columns`]
/// leaves out the last column.
pub fn row(summary: &Summary) -> [String; COLUMNS.len()] {
    let or_none = |text: Option<String>| text.unwrap_or_default();
    let (rate, median) = (summary.rate, summary.median.as_ref());
    [
        or_none(rate.map(|rate| count(rate.median))),
        or_none(rate.map(|rate| format!("{}..{}", count(rate.min), count(rate.max)))),
        or_none(summary.percolite_ratio.map(|ratio| ratio.to_string())),
        or_none(median.and_then(|one| one.aborts_per_commit).map(|aborts| format!("{aborts:.3}"))),
        or_none(median.map(|one| time(one.cpu))),
        or_none(median.map(|one| time(one.p50))),
        or_none(median.map(|one| time(one.p99))),
        or_none(median.map(|one| time(one.p999))),
        or_none(median.and_then(write_amplification)),
        or_none(median.map(|one| format!("{} MiB", one.peak_bytes >> 20))),
        or_none(median.and_then(|one| one.concurrent_load).map(|rate| format!("{}/s", count(rate)))),
    ]
}

/// Title and table of each setting.
pub fn show(summaries: &[Summary]) -> Vec<(String, Table)> {
    let groups = summaries.chunk_by(|one, next| one.setting == next.setting);
    let table = |group: &[Summary]| {
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        let columns = columns(group);
        table.set_header(std::iter::once(&"store").chain(columns));
        for summary in group {
            let mut cells = vec![summary.store.name().to_owned()];
            match &summary.failed {
                Some(error) => cells.push(format!("FAILED: {error}")),
                None => cells.extend(row(summary).into_iter().take(columns.len())),
            }
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let first = group.first().map(|one| (one.title.clone(), one.setting.work.unit()));
        (first.map_or_else(String::new, |(title, unit)| format!("{title}: {unit} per second")), table)
    };
    groups.map(table).collect()
}
