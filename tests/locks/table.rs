//! T1: the table, the counters, the limits.
