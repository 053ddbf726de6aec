//! The percolite command line.
fn main() {}
