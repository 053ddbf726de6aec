//! What several files of this test need.
