//! A small run report with all kinds of content, including hostile text, in all three forms.

use std::fs;

use super::*;
use crate::layer_result::{Failure, LayerResult};
use crate::run_report::{MutantResult, MutantTrial};
use crate::violation::Violation;

const HOSTILE: &str = "<script>alert(\"&'</script>\u{1b}[2J";

fn sample() -> RunReport {
    let mut sim = LayerResult { cases: 5000, transactions: 250_000, acknowledged: 200_000, ..LayerResult::new("sim") };
    sim.unacknowledged_commits = 17;
    sim.seconds = 60.0;
    sim.count_visits("sim, embedded", "commit.ts", 12_345);
    sim.count_visits("sim, embedded", "open.before", 0);
    sim.count_visits("sim, shared", "no.such-point", 1);
    let mut kill =
        LayerResult { cases: 3, transactions: 30, acknowledged: 20, seconds: 6.0, ..LayerResult::new("kill") };
    kill.metrics.insert(RECOVERY_LOCKS.into(), vec![0.0, 10.0, 1000.0]);
    kill.metrics.insert(RECOVERY_SECONDS.into(), vec![0.01, 0.02, 0.4]);
    let mut sweep =
        LayerResult { cases: 4, transactions: 40, acknowledged: 6, seconds: 2.0, ..LayerResult::new("log-damage") };
    sweep.metrics.insert(LOG_OFFSET.into(), vec![0.0, 100.0, 200.0, 300.0]);
    sweep.metrics.insert(LOG_ACKNOWLEDGED.into(), vec![0.0, 0.0, 1.0, 2.0]);
    sweep.metrics.insert(LOG_RECOVERED.into(), vec![0.0, 1.0, 1.0, 2.0]);
    let cut = LayerResult { skipped: Some("no loop devices".into()), ..LayerResult::new("powercut") };
    RunReport {
        version: "0.1.0".into(),
        started: "2026-01-02T03:04:05Z".into(),
        command: "quick".into(),
        seconds: 68.0,
        interrupted: false,
        layers: vec![sim, kill, sweep, cut],
        mutants: vec![mutant(Some("sim"))],
        coverage_gaps: Vec::new(),
    }
}

fn mutant(layer: Option<&str>) -> MutantResult {
    MutantResult {
        mutant: "reads-latest".into(),
        description: "reads show the newest state instead of the snapshot".into(),
        found_by: layer.map(Into::into),
        invariant: layer.map(|_| "isolation".into()),
        seconds: 1.5,
        replay: layer.map(|_| "mutant-replay-line".into()),
        trials: vec![MutantTrial {
            layer: "sim".into(),
            found: u64::from(layer.is_some()),
            cases: 9,
            seconds: 1.5,
            replay: layer.map(|_| "mutant-replay-line".into()),
        }],
    }
}

fn failing() -> RunReport {
    let mut run = sample();
    run.layers[0].failures.push(Failure {
        replay: format!("percolite-crashtest replay sim:embedded/7 {HOSTILE}"),
        violations: vec![Violation::new("durability", format!("key {HOSTILE}\nlost {}", "x".repeat(3000)))],
        saved_in: Some("kept/sim-7".into()),
    });
    run.coverage_gaps.push(format!("commit.ts {HOSTILE}"));
    run.mutants[0].description = HOSTILE.into();
    run.layers[3].skipped = Some(HOSTILE.into());
    run.layers[1].count_visits(HOSTILE, HOSTILE, 5);
    run.layers[1].metrics.insert(HOSTILE.into(), vec![1.0]);
    run.command = HOSTILE.into();
    run
}

#[test]
fn reports_round_trip() {
    let dir = std::env::temp_dir().join(format!("percolite-report-{}", std::process::id()));
    let [path, page] = write(&failing(), &dir).unwrap();
    let duplicates = read(&path).unwrap();
    assert!(fs::read_to_string(page).unwrap().ends_with("</html>"));
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(serde_json::to_value(&duplicates).unwrap(), serde_json::to_value(failing()).unwrap());
    assert_eq!(json(&duplicates).unwrap(), json(&failing()).unwrap());
}

#[test]
fn the_page_loads_nothing() {
    for run in [RunReport::default(), sample(), failing()] {
        let page = html::page(&run).unwrap();
        let rest = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for resource in ["http:", "https:", "src=", "href", "url(", "@import", "<script", "<link"] {
            assert!(!rest.contains(resource), "{resource}");
        }
    }
}

#[test]
fn text_is_escaped() {
    let page = html::page(&failing()).unwrap();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert(&quot;&amp;'"));
    // Attributes with run data are in double quotes, and only another double quote would end one.
    assert_eq!(page.matches("alert(\"").count(), 0);
    let text = terminal::summary(&failing());
    assert!(text.contains("<script>") && !text.contains('\u{1b}'));
}

#[test]
fn a_failure_can_be_replayed_from_any_form() {
    let page = html::page(&failing()).unwrap();
    assert!(page.contains("<pre class=\"replay\">percolite-crashtest replay sim:embedded/7"));
    assert!(page.contains("durability") && page.contains("kept/sim-7") && page.contains("more characters"));
    let text = terminal::summary(&failing());
    assert!(text.starts_with("FAILED: 1 failure, 1 gap; skipped: powercut\n"), "{text}");
    for part in [
        "replay:    percolite-crashtest replay sim:embedded/7",
        "durability",
        "saved in:  kept/sim-7",
        "more characters",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn repeated_runs_are_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let [report, _] = write(&sample(), dir.path()).unwrap();
    // The report of a single run equals that run.
    let (once, duplicates) = merge::once(vec![sample(), failing(), read(&report).unwrap()]).unwrap();
    assert_eq!((once.len(), duplicates), (2, 1));
    assert_eq!(merge::merge(once).layers[0].cases, 10_000);
}

#[test]
fn an_interrupted_run_does_not_pass() {
    let mut run = sample();
    run.layers.push(LayerResult::new("io-errors"));
    run.mark_interrupted();
    assert_eq!(run.layers.len(), 4, "a layer without a case is dropped");
    assert!(!run.passed() && json(&run).unwrap().contains("\"passed\": false"));
    assert!(
        terminal::summary(&run).starts_with("INTERRUPTED: no violation before the interruption; skipped: powercut\n")
    );
    let whole = merge::merge(vec![sample(), run]);
    assert!(whole.interrupted && !whole.passed());
    let mut broken = failing();
    broken.mark_interrupted();
    assert!(terminal::summary(&broken).starts_with("FAILED: 1 failure, 1 gap, and then it was interrupted"));
}

#[test]
fn kills_are_shown_beside_visits() {
    let mut run = sample();
    run.layers[1].count_visits("kill, auto", "commit.ts", 70);
    run.layers[1].hits.entry("kill, auto".into()).or_default().insert("commit.ts".into(), 4321);
    let mut whole = merge::merge(vec![run.clone(), sample(), failing()]);
    whole.add(run.layers.swap_remove(1));
    assert_eq!(whole.layers[1].kills(), 8642);
    assert!(html::page(&whole).unwrap().contains("<td class=\"cell heat3\">8,642</td>"));
    assert!(terminal::summary(&whole).contains("8,642"));
}

#[test]
fn a_mutant_is_shown_in_each_layer() {
    let mut run = sample();
    let kill = MutantTrial { layer: "kill".into(), found: 0, cases: 54, seconds: 9.0, replay: None };
    let cut =
        MutantTrial { layer: "powercut".into(), found: 2, cases: 7, seconds: 3.5, replay: Some("first-cut".into()) };
    run.mutants[0].trials.extend([kill, cut]);
    let page = html::page(&run).unwrap();
    assert!(page.contains("no<br><small>0 of 54</small>") && page.contains("3.5 s<br><small>2 of 7</small>"), "{page}");
    assert!(page.contains("first-cut"));
    let text = terminal::summary(&run);
    let row = text.lines().find(|line| line.contains("reads-latest")).unwrap();
    let cells: Vec<&str> = row.split(['│', '┆']).map(str::trim).collect();
    assert_eq!(cells[1..6], ["reads-latest", "1.5 s", "no", "3.5 s", "isolation"]);
    assert!(text.contains("reads-latest: first-cut"));
}

#[test]
fn merge_adds_runs() {
    let mut second = failing();
    second.started = "2026-01-01T00:00:00Z".into();
    second.layers[3] = LayerResult { cases: 20, transactions: 200, acknowledged: 100, ..LayerResult::new("powercut") };
    let mut first = sample();
    first.mutants = vec![mutant(None)];
    let whole = merge::merge(vec![first, second]);
    assert_eq!([whole.layers.len(), whole.mutants.len(), whole.coverage_gaps.len()], [4, 1, 1]);
    assert_eq!((whole.layers[0].cases, whole.layers[0].failures.len()), (10_000, 1));
    assert_eq!(whole.layers[0].visits["sim, embedded"]["commit.ts"], 24_690);
    assert_eq!(whole.layers[1].metrics[RECOVERY_LOCKS].len(), 6);
    assert_eq!((whole.layers[3].skipped.as_deref(), whole.layers[3].cases), (None, 20));
    assert_eq!((whole.version.as_str(), whole.started.as_str()), ("0.1.0", "2026-01-01T00:00:00Z"));
    let mutant = &whole.mutants[0];
    let trial = &mutant.trials[0];
    assert_eq!((mutant.found_by.as_deref(), mutant.trials.len()), (Some("sim"), 1));
    assert_eq!((trial.found, trial.cases, trial.replay.as_deref()), (1, 18, Some("mutant-replay-line")));
    assert!((trial.seconds - 3.0).abs() < 1e-9, "the time without a finding and the time to the first");
}

#[test]
fn the_result_says_what_is_missing() {
    let sentence = |run: &RunReport| {
        let result = RunResult::of(run);
        format!("{} {}", result.word(), result.summary())
    };
    assert_eq!(sentence(&sample()), "PASSED all invariants held; skipped: powercut");
    assert_eq!(sentence(&RunReport::default()), "FAILED nothing was run");
    let mut run = sample();
    run.layers.drain(..3);
    run.mutants.clear();
    assert_eq!(sentence(&run), "FAILED nothing was run; skipped: powercut");
    run = sample();
    run.layers[1].acknowledged = 0;
    run.mutants = vec![mutant(None)];
    assert_eq!(sentence(&run), "FAILED kill checked no commits, 1 surviving mutant; skipped: powercut");
}

#[test]
fn sections_that_were_not_run_say_so() {
    let not_run = |run: &RunReport| html::page(run).unwrap().matches("Not run.").count();
    assert_eq!(not_run(&sample()), 0);
    assert_eq!(not_run(&RunReport::default()), 6);
    let mut uneven = sample();
    uneven.layers[1].metrics.insert(RECOVERY_LOCKS.into(), vec![1.0]);
    assert_eq!(not_run(&uneven), 0);
    assert_eq!(html::page(&uneven).unwrap().matches("No data.").count(), 1);
}

#[test]
fn names_of_layers_and_mutants_are_not_broken_over_lines() {
    let mut run = sample();
    for layer in &mut run.layers {
        layer.not_run.push("the mount of the loop device needs a privilege that this process does not have".into());
        (layer.cases, layer.transactions, layer.acknowledged) = (12_345_678, 12_345_678, 12_345_678);
    }
    run.mutants[0].mutant = "history-shows-later-locks".into();
    let text = terminal::summary(&run);
    assert!(text.contains("\u{2502} log-damage "), "{text}");
    assert!(text.contains("12,345,678 \u{2506}12,345,678 "), "{text}");
    assert!(text.contains("\u{2502} history-shows-later-locks "), "{text}");
}

#[test]
fn visit_cells_are_distinguished() {
    let page = html::page(&sample()).unwrap();
    assert!(page.contains("<td class=\"cell heat4\">12,345</td>"));
    assert!(page.contains("<td class=\"cell zero\">0</td>"));
    assert!(page.contains("<td class=\"cell absent\">–</td>"));
    assert!(page.contains("title=\"a commit timestamp alone commits nothing\""));
    assert!(page.contains("not a crash point of this version"));
}
