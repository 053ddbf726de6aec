#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, clippy::pedantic)]

#[path = "model_check/embedded.rs"]
mod embedded;
#[path = "model_check/explore.rs"]
mod explore;
#[path = "model_check/judge.rs"]
mod judge;
#[path = "model_check/rows.rs"]
mod rows;
#[path = "model_check/shared.rs"]
mod shared;

use percolite::row::Mutation;

use crate::embedded::Embedded;
use crate::explore::explore;
use crate::judge::Script;

fn two(rows: &[usize]) -> Script {
    Script { writes: rows.iter().map(|row| (*row, Mutation::Put(Vec::new()))).collect(), one_phase: false }
}
fn one(rows: &[usize]) -> Script {
    Script { one_phase: true, ..two(rows) }
}

#[test]
fn e1() {
    explore("e1: 2 clients, 1 crash", Embedded::new(2, vec![two(&[0, 1]), two(&[0, 1])], 1, 1, 2, &[]), 0);
}
#[test]
fn e2() {
    explore("e2: 2 clients, 2 crash", Embedded::new(2, vec![two(&[0, 1]), two(&[1, 0])], 1, 2, 2, &[]), 0);
}
#[test]
fn e3() {
    explore("e3: 3 clients", Embedded::new(2, vec![two(&[0, 1]), two(&[1, 0]), one(&[0,1])], 1, 1, 1, &[]), 0);
}

fn shared(rows: usize, scripts: Vec<Script>, readers: usize, ticks: u8, strays: u8, collects: bool) -> shared::Shared {
    shared::Shared { rows, scripts, readers, ticks, strays, collects, sights: explore::Sights::of(&[]) }
}
#[test]
fn s1() {
    explore("s1: 2 writers, 0 readers, 1 tick", shared(2, vec![two(&[0, 1]), two(&[0, 1])], 0, 1, 0, false), 0);
}
#[test]
fn s2() {
    explore("s2: 2 writers, 1 readers, 1 tick", shared(2, vec![two(&[0, 1]), two(&[0, 1])], 1, 1, 0, false), 0);
}
#[test]
fn s3() {
    explore("s3: 2 writers, 1 tick, 1 stray", shared(2, vec![two(&[0, 1]), two(&[0, 1])], 0, 1, 1, false), 0);
}
#[test]
fn s4() {
    explore("s4: 1 writers, 2 readers, 1 tick, 1 stray", shared(2, vec![two(&[0, 1])], 2, 1, 1, false), 0);
}
#[test]
fn s5() {
    explore("s5: 2 writers, 1 readers, 1 tick, 1 stray", shared(2, vec![two(&[0, 1]), two(&[0, 1])], 1, 1, 1, false), 0);
}
#[test]
fn s6() {
    explore("s6: 2 writers, 1 tick, 1 stray, collects", shared(2, vec![two(&[0, 1]), two(&[0, 1])], 0, 1, 1, true), 0);
}
