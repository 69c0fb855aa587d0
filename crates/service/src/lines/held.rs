//! Locks in memory, as listed. Plain values.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the threads of the daemon hold and wait for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HeldLines {
    /// By the order of locks, the holders of each before those that wait for it.
    pub held: Vec<HeldLine>,
    /// Numbers of threads that wait for each other, each for the next; empty if none do.
    pub cycle: Vec<u32>,
}

/// A thread that holds a lock or waits for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeldLine {
    /// The name of its class, and the place of that in the order.
    pub lock: String,
    pub rank: u16,
    /// Tells locks of one class apart.
    pub address: u64,
    pub thread: u32,
    pub thread_name: String,
    /// It does not have the lock yet.
    pub waits: bool,
    pub is_shared: bool,
    /// At least.
    pub age: Duration,
    /// Where it was asked for.
    pub file: String,
    pub line: u32,
}
