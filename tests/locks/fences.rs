//! F1 to F4: fences and tokens.
