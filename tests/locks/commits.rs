//! F5: transactions under a lock.
