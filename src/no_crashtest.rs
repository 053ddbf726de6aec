//! The seam of the crash harness in every build but the harness's own: nothing.

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
