//! M1 to M4: who is granted, and in which order.
