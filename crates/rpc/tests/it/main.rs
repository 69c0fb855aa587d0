//! The key-value socket: what it answers, what it refuses, and which clients can't hurt it.

#![expect(clippy::unwrap_used, reason = "in tests a failed unwrap is a failed test")]

mod calls;
mod hostile;
mod world;
