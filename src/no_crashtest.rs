//! The interface to the crash harness in builds without it: `mutated!` expands to `false`, the
//! other macros to nothing.

macro_rules! crash_point {
    ($point:ident $(if $condition:expr)?) => {};
}

macro_rules! mutated {
    ($mutant:ident) => {
        false
    };
}

macro_rules! yield_point {
    ($(if $condition:expr)?) => {};
}
