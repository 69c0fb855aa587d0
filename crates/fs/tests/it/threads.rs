//! Several threads.
