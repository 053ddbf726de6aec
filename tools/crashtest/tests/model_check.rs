#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, clippy::pedantic)]

#[path = "model_check/embedded.rs"]
mod embedded;
#[path = "model_check/explore.rs"]
mod explore;
#[path = "model_check/judge.rs"]
mod judge;
#[path = "model_check/rows.rs"]
mod rows;

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
