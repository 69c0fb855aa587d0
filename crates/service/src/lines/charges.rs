//! What memory is charged, as listed. Plain values.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the engine has charged and not given back.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ChargeLines {
    /// By pool, and in each the place with the most bytes first.
    pub places: Vec<ChargeLine>,
    /// Pools of which the owners are known.
    pub ownerless: Vec<OwnerlessLine>,
}

/// What was charged at one place in the code.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChargeLine {
    pub pool: String,
    /// Empty: places that were not told apart.
    pub file: String,
    pub line: u32,
    pub count: u64,
    pub bytes: u64,
    pub peak_bytes: u64,
    /// Of the oldest, at most.
    pub age: Duration,
}

/// What of a pool its owners do not account for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OwnerlessLine {
    pub pool: String,
    pub bytes: u64,
    /// What they are.
    pub owners: String,
}
