//! Crash tests of percolite.
