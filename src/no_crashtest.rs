//! The interface to the crash harness in builds without it: the macros expand to nothing.

macro_rules! crash_point {
    ($point:ident $(if $condition:expr)?) => {};
}

macro_rules! yield_point {
    ($(if $condition:expr)?) => {};
}

pub const fn leader_rounds_max() -> usize {
    crate::tunables::LEADER_ROUNDS_MAX
}
