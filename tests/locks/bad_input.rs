//! What no call may do: an error that names the mistake, nothing changed, everything else works.
