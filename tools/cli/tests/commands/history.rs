//! versions, retention, and --at.

use percolite::{Store, Timestamp};

use crate::common::Sandbox;

#[test]
fn past_states_can_be_read_with_history() {
    let sandbox = Sandbox::with_shop();
    sandbox.run("get --at 1s shop fruit apple").fails(1, "keeps no history; percolite retention shop --set 7d");
    assert_eq!(sandbox.ok("retention shop"), "no history\n");
    let report = sandbox.ok("retention shop --set 7d");
    assert!(report.starts_with("history starts at "), "{report}");
    assert!(report.ends_with(", retention 7d\n"), "{report}");
    assert_eq!(sandbox.json("retention shop --json")[0]["history_retention_s"], 604_800.0);
    assert!(sandbox.ok("retention shop --set 36h").ends_with("retention 1d 12h\n"));
    sandbox.ok("retention shop --set 7d");
    // The setting is stored: it applies to later openings.
    sandbox.ok("put shop fruit apple green");
    sandbox.ok("delete shop fruit apple");
    let deleted = sandbox.json("stats shop --json")[0]["newest_ts"].as_str().unwrap().parse::<Timestamp>().unwrap();
    sandbox.ok("keyspaces shop --drop fruit");

    sandbox.run("get shop fruit apple").fails(3, "not found");
    let newest = sandbox.json("stats shop --json")[0]["newest_ts"].as_str().unwrap().to_owned();
    sandbox.run(&format!("get --at {newest} shop fruit apple")).fails(3, "there was no keyspace");
    let store = Store::builder().read_only(true).open(sandbox.path().join("shop")).unwrap();
    let from = store.stats().history_start_ts.unwrap();
    let then = store.snapshot_at(from).unwrap().keyspaces().unwrap();
    assert_eq!(then.len(), 1);
    let snapshot = store.snapshot_at(deleted).unwrap();
    let versions: Vec<_> = snapshot.versions(&then[0], "apple").unwrap().map(Result::unwrap).collect();
    let values: Vec<_> = versions.iter().map(|version| version.value.as_deref()).collect();
    assert_eq!(values, [None, Some(&b"green"[..]), Some(&b"red"[..])]);
    drop((snapshot, store));

    let before = versions[0].commit_ts.previous();
    assert_eq!(sandbox.ok(&format!("get --at {before} shop fruit apple")), "green\n");
    assert_eq!(sandbox.ok(&format!("get --at {from} shop fruit apple")), "red\n");
    assert_eq!(sandbox.ok(&format!("scan --at {from} shop fruit --count")), "2\n");
    let report = sandbox.json(&format!("versions --at {before} shop fruit apple --json"));
    assert_eq!((report.len(), &report[0]["value"], &report[1]["value"]), (2, &"green".into(), &"red".into()));
    assert_eq!(report[0]["commit_ts"], versions[1].commit_ts.to_string());
    let time = report[0]["commit_time"].as_str().unwrap();
    // `commit_time` is the start of a millisecond. So it is before the commit, except if the commit
    // has the first timestamp of that millisecond.
    let is_first = versions[1].commit_ts == Timestamp::from_millis(versions[1].commit_ts.millis());
    let then = if is_first { "green\n" } else { "red\n" };
    assert_eq!(sandbox.ok(&format!("get --at {time} shop fruit apple")), then);
    let shown = sandbox.ok(&format!("versions --at {before} shop fruit apple"));
    assert!(shown.contains("green") && shown.contains("red") && shown.contains("\tput\t"), "{shown}");
    sandbox.run(&format!("versions --at {before} shop fruit kiwi")).fails(3, "has no versions in");
    assert_eq!(sandbox.ok(&format!("versions --at {before} shop fruit apple --limit 0 --json")), "");
    sandbox.ok(&format!("versions --at {before} shop fruit apple --limit 0"));
    assert_eq!(sandbox.json(&format!("versions --at {before} shop fruit apple --limit 1 --json")).len(), 1);
    sandbox.ok(&format!("dump --at {from} shop old.dump"));
    sandbox.ok("restore copy old.dump");
    assert_eq!(sandbox.ok("get copy fruit apple"), "red\n");
    sandbox
        .run("get --at 400d shop fruit apple")
        .fails(1, &format!("is older than the history, which begins at {from:#}"));
    sandbox.run("get --at 2999-01-01T00:00Z shop fruit apple").fails(1, "is in the future");

    assert_eq!(sandbox.ok("retention shop --disable"), "no history\n");
    sandbox.run(&format!("get --at {before} shop fruit apple")).fails(1, "keeps no history");
}

/// After a process was killed, the timestamps of its store are ahead of the clock.
#[test]
fn at_0s_is_the_newest_state_even_ahead_of_the_clock() {
    let sandbox = Sandbox::new();
    sandbox.ok("put --create killed fruit apple red");
    sandbox.ok("retention killed --set 7d");
    sandbox.kill_after("killed", ["put fruit apple green".to_owned()]);
    sandbox.ok("put killed fruit apple blue");
    let ms = sandbox.json("versions killed fruit apple --json")[0]["commit_ms"].as_u64().unwrap();
    let now = || Timestamp::from(std::time::SystemTime::now()).millis();
    let ahead = ms > now();
    assert_eq!(sandbox.ok("get --at 0s killed fruit apple"), "blue\n");
    assert_eq!(sandbox.json("versions --at 0s killed fruit apple --json").len(), 3);
    sandbox.ok("dump --at 0s killed killed.dump");
    sandbox.ok("restore copy killed.dump");
    assert_eq!(sandbox.ok("get copy fruit apple"), "blue\n");
    // On a slow machine the clock may have caught up by now; then no note is printed.
    let ran = sandbox.run("get --at 2020-01-01T00:00Z killed fruit apple");
    if ahead && ms > now() {
        assert!(ran.err.starts_with("note: the store's timestamps are "), "{}", ran.err);
    }
}
