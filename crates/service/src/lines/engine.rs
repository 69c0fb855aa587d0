//! What is asked and told about the engine below a store: its zones, and how fragmented it is. Plain values.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A defragmentation that is asked for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct DefragRequest {
    /// All zones with data, not only those of which much is dead or that hold short stretches.
    pub rewrite: bool,
    /// 0: no limit.
    pub bytes_per_second: u64,
    /// Only the plan is wanted.
    pub dry_run: bool,
}

/// How fragmented a store is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentationLine {
    /// Zones with data of files and keys.
    pub zones_used: u64,
    /// Zones that it would fill without a gap.
    pub zones_needed: u64,
    pub zone_bytes: u64,
    pub bytes_live: u64,
    pub stretch_bytes_mean: u64,
}

/// What a defragmentation would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefragPlanLine {
    pub now: FragmentationLine,
    /// To be emptied.
    pub zones: u64,
    /// How many of them come back.
    pub zones_freed: u64,
    /// To be copied.
    pub bytes: u64,
}

/// What a defragmentation has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefragmentedLine {
    pub before: FragmentationLine,
    pub after: FragmentationLine,
    pub bytes_moved: u64,
    pub took: Duration,
    /// False: it was told to end, or found too little space to go on.
    pub is_complete: bool,
}

/// What the zones of a store are used for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ZoneLines {
    pub zone_bytes: u64,
    /// One for each zone: how full of live data (percent), or one of the [`zone_codes`].
    pub codes: Vec<u8>,
    /// Free zones that are held back.
    pub reserved: u64,
    /// By name.
    pub figures: Vec<(String, u64)>,
}

/// What a zone is used for, where that is not data.
pub mod zone_codes {
    pub const SUPERBLOCKS: u8 = 101;
    pub const JOURNAL: u8 = 102;
    pub const MANIFEST: u8 = 103;
    pub const WRITING: u8 = 104;
    pub const FREE: u8 = 105;
}
