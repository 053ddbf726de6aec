//! The checker of locks against a naive definition: on all histories of three grants and four
//! commits, and on all orders in which three grants are requested, begin and end.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use percolite::LockMode;
use percolite_crashtest::lock_checker::{
    FencedOp, GrantInterval, LockHistory, check, conflict, fencing_violations, replay,
};
use percolite_crashtest::lock_workload::event::{LockCommit, LockEvent, LockRead, LogicalTime};

const TOKENS: [u64; 3] = [10, 20, 30];
/// Before, between and after the tokens.
const TIMES: [u64; 4] = [5, 15, 25, 35];

fn at(time: u64) -> LogicalTime {
    LogicalTime { incarnation: 0, time, tick: 0 }
}

fn grant(mode: LockMode, token: u64, [requested_at, from, until]: [u64; 3]) -> GrantInterval {
    let (requested_at, from, until) = (Some(at(requested_at)), at(from), at(until));
    GrantInterval { name: "a".into(), mode, token, requested_at, from, until, id: None, no_wait: false }
}

fn modes() -> impl Iterator<Item = [LockMode; 3]> {
    let of = |exclusive: bool| if exclusive { LockMode::Exclusive } else { LockMode::Shared };
    (0..8_u8).map(move |bits| [of(bits & 1 > 0), of(bits & 2 > 0), of(bits & 4 > 0)])
}

/// Whether the commits violate "lock: fencing" or "lock: visibility", by their definitions.
fn violates_fencing(grants: &[GrantInterval], commits: &[FencedOp]) -> bool {
    let mode = |token: u64| grants.iter().find(|grant| grant.token == token).unwrap().mode;
    let excludes = |one: u64, other: u64| conflict(mode(one), mode(other));
    commits.iter().any(|this| {
        let ts = this.commit_ts.unwrap();
        let next =
            grants.iter().map(|grant| grant.token).filter(|token| *token > this.token && excludes(*token, this.token));
        let in_turn = ts > this.token && next.into_iter().all(|token| ts < token);
        let mut earlier = commits.iter().filter(|other| other.token < this.token && excludes(other.token, this.token));
        !in_turn || !earlier.all(|other| other.commit_ts.unwrap() <= this.read_ts)
    })
}

#[test]
fn matches_definition_on_3_grants_4_commits() {
    let mut menu = Vec::new();
    for token in TOKENS {
        for commit_ts in TIMES {
            for read_ts in TIMES {
                menu.push(FencedOp {
                    name: "a".into(),
                    token,
                    read_ts,
                    commit_ts: Some(commit_ts),
                    ..FencedOp::default()
                });
            }
        }
    }
    let (mut histories, mut wrong) = (0_u64, 0_u64);
    for modes in modes() {
        let grants: Vec<GrantInterval> =
            modes.into_iter().zip(TOKENS).map(|(mode, token)| grant(mode, token, [0; 3])).collect();
        // The order of the four commits does not matter, so each set of four is tried in one order.
        for a in 0..menu.len() {
            for b in a..menu.len() {
                for c in b..menu.len() {
                    for d in c..menu.len() {
                        let commits = [a, b, c, d].map(|at| menu[at].clone());
                        let found = !fencing_violations(&grants, &commits, &[]).is_empty();
                        assert_eq!(found, violates_fencing(&grants, &commits), "{grants:?} {commits:?}");
                        (histories, wrong) = (histories + 1, wrong + u64::from(found));
                    }
                }
            }
        }
    }
    assert!(histories > 1_000_000 && wrong > 0 && wrong < histories, "{wrong} of {histories}");
}

/// Whether the grants violate "lock: mutual exclusion" or "lock: token order", by their
/// definitions.
fn violates_exclusion(grants: &[GrantInterval]) -> bool {
    let pairs = grants.iter().flat_map(|one| grants.iter().map(move |other| (one, other)));
    let mut pairs = pairs.filter(|(one, other)| !std::ptr::eq(*one, *other) && conflict(one.mode, other.mode));
    pairs.any(|(one, other)| {
        let together = one.token != other.token && one.from < other.until && other.from < one.until;
        let late = Some(one.from) < other.requested_at && one.token >= other.token;
        together || late || one.token == other.token
    })
}

#[test]
fn matches_definition_on_all_orders_of_3_grants() {
    let mut orders = Vec::new();
    interleave([[0; 3]; 3], [0; 3], 1, &mut orders);
    assert_eq!(orders.len(), 1680);
    let (mut histories, mut wrong) = (0_u64, 0_u64);
    for modes in modes() {
        for order in &orders {
            for tokens in 0..27 {
                let tokens = [tokens % 3, tokens / 3 % 3, tokens / 9].map(|at| TOKENS[at]);
                let grants: Vec<GrantInterval> = (0..3).map(|nth| grant(modes[nth], tokens[nth], order[nth])).collect();
                let records = LockHistory { grants, ..LockHistory::default() };
                let found = !check(&records).is_empty();
                assert_eq!(found, violates_exclusion(&records.grants), "{:?}", records.grants);
                (histories, wrong) = (histories + 1, wrong + u64::from(found));
            }
        }
    }
    assert!(histories > 300_000 && wrong > 0 && wrong < histories, "{wrong} of {histories}");
}

/// All orders of nine events: each of three grants is requested, begins and ends.
fn interleave(times: [[u64; 3]; 3], used: [usize; 3], now: u64, orders: &mut Vec<[[u64; 3]; 3]>) {
    if now == 10 {
        orders.push(times);
        return;
    }
    for grant in (0..3).filter(|grant| used[*grant] < 3) {
        let (mut times, mut used) = (times, used);
        times[grant][used[grant]] = now;
        used[grant] += 1;
        interleave(times, used, now + 1, orders);
    }
}

#[test]
fn requests_without_wait_pass_no_waiter() {
    let numbered = |mode, token, id, no_wait| GrantInterval {
        id: Some(id),
        no_wait,
        ..grant(mode, token, [token, token, token + 1])
    };
    let passed = |no_wait| {
        let grants = vec![numbered(LockMode::Exclusive, 20, 1, false), numbered(LockMode::Shared, 10, 2, no_wait)];
        check(&LockHistory { grants, ..LockHistory::default() })
    };
    assert_eq!(passed(true).len(), 1);
    assert_eq!(passed(false), []);
}

fn taken(request: u64, mode: LockMode, token: u64) -> [LockEvent; 2] {
    let (name, at) = ("name".to_owned(), LogicalTime::default());
    [
        LockEvent::Requested { request, name, mode, no_wait: false, at },
        LockEvent::Granted { request, token, id: Some(request), at, term: None },
    ]
}

#[test]
fn a_token_of_two_excluding_grants_is_a_violation() {
    for (later, token, violations) in
        [(LockMode::Exclusive, 10, 1), (LockMode::Exclusive, 20, 0), (LockMode::Shared, 10, 0)]
    {
        let events = [taken(1, LockMode::Shared, 10), taken(2, later, token)].concat();
        let found: Vec<_> = replay(&events).violations.iter().map(|violation| violation.invariant.clone()).collect();
        assert_eq!(found, vec!["lock: token order"; violations], "{later} {token}");
    }
}

#[test]
fn only_an_excluding_holder_must_see_durable_commits() {
    for (later, violations) in [(LockMode::Shared, 0), (LockMode::Exclusive, 1)] {
        let mut events = [taken(1, LockMode::Shared, 10), taken(2, later, 20)].concat();
        let commit = LockCommit { number: 1, name: "name".into(), token: 10, durable: true, ..LockCommit::default() };
        events.push(LockEvent::Commit(Box::new(commit)));
        events.push(LockEvent::Read(LockRead { name: "name".into(), token: 20, seen: 1, ..LockRead::default() }));
        events.push(LockEvent::NotCommitted { number: 1 });
        assert_eq!(replay(&events).violations.len(), violations, "{later}");
    }
}

#[test]
fn a_snapshot_of_durable_data_shows_buffered_commits_of_earlier_grants() {
    for (read_ts, violations) in [(14, 1), (15, 0)] {
        for durable in [false, true] {
            let mut events = [taken(1, LockMode::Exclusive, 10), taken(2, LockMode::Exclusive, 20)].concat();
            let name = || "name".to_owned();
            let commit = LockCommit { number: 1, name: name(), token: 10, fenced: true, read_ts: 10, ..<_>::default() };
            events.push(LockEvent::Commit(Box::new(commit)));
            events.push(LockEvent::Committed { number: 1, ts: 15 });
            events.push(LockEvent::Read(LockRead { name: name(), token: 20, read_ts, durable, ..LockRead::default() }));
            let fenced = replay(&events);
            let found = fencing_violations(&fenced.grants, &fenced.fenced, &fenced.reads);
            assert_eq!(found.len(), violations, "read at {read_ts}, durable: {durable}: {found:?}");
        }
    }
}
