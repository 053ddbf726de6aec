//! The letters once more, for tasks.
