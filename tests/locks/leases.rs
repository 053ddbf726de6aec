//! L1 to L4, G1: leases.
