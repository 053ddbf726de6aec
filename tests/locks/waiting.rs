//! Z1 to Z4: waiting.
