//! The key-value socket: what it answers, what it refuses, and who can't hurt it.

mod calls;
mod hostile;
mod world;
