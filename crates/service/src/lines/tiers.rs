//! What is asked and told about the devices of a store. Plain values.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What is asked about devices.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum TierRequest {
    List,
    Add(NewDeviceLine),
    /// `waits`: until each is empty, or can't be emptied.
    Drain {
        ids: Vec<u32>,
        waits: bool,
    },
    Refill {
        id: u32,
    },
    Remove {
        id: u32,
    },
    /// How content is placed; with a name, from now on.
    Placement {
        policy: Option<String>,
        /// It is for later mounts, too.
        keeps: bool,
    },
    /// Most bytes that are moved between tiers each second, until the unmount; 0: any number.
    Limit {
        bytes_per_second: u64,
    },
    /// How often what lies where was lately read, in about so many cells.
    Heat {
        cells_max: u32,
    },
}

/// Where content goes, and what moves to where it is wished to lie.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementLine {
    /// Of what is wished nowhere.
    pub policy: String,
    /// What lies elsewhere than it is wished to, when this was last looked for.
    pub bytes_left: u64,
    /// How long ago that was; `None`: it was not looked for yet.
    pub looked_ago: Option<Duration>,
    /// Since the store was opened.
    pub bytes_moved: u64,
    /// Just now.
    pub is_moving: bool,
    /// How long that took which was moved.
    pub took: Duration,
    /// Most bytes that are moved each second; 0: any number.
    pub limit: u64,
    /// Why the rest does not move.
    pub trouble: Option<String>,
    /// What was lately read so many times is hot; 0: nothing is.
    pub hot_from: u8,
    /// How much fast devices may be written to, if that is limited.
    pub budget: Option<BudgetLine>,
}

/// How often what lies where was lately read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeatLines {
    /// Whether anything was counted before this was asked.
    pub was_counted: bool,
    /// From this count on something is called hot.
    pub hot_from: u8,
    /// Fast ones first.
    pub devices: Vec<DeviceHeatLine>,
}

/// The same of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHeatLine {
    pub id: u32,
    /// As raw bytes; `None`: it is missing.
    pub path: Option<Vec<u8>>,
    /// `fast` or `slow`.
    pub tier: String,
    pub bytes_total: u64,
    /// Content of files there.
    pub bytes_counted: u64,
    pub bytes_hot: u64,
    /// What each of the cells stands for.
    pub cell_bytes: u64,
    /// From its start on.
    pub cells: Vec<HeatCellLine>,
}

/// What there is in a part of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeatCellLine {
    Free,
    /// No content of files.
    Other,
    /// How often it was lately read.
    Counted(u8),
}

/// How much fast devices are written to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetLine {
    /// What may be written in a day.
    pub bytes_per_day: u64,
    /// What was written in the last 24 hours.
    pub bytes_last_day: u64,
    /// For so long content goes to slow devices; zero: it need not.
    pub spent_for: Duration,
}

/// A file or block device that is to become one of the store's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewDeviceLine {
    /// Absolute, as raw bytes.
    pub path: Vec<u8>,
    pub is_slow: bool,
    pub size_bytes: Option<u64>,
    pub force: bool,
}

/// A device of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLine {
    /// The first one has 0.
    pub id: u32,
    /// As raw bytes; `None`: it is missing.
    pub path: Option<Vec<u8>>,
    /// `fast` or `slow`.
    pub tier: String,
    pub bytes_total: u64,
    /// In zones that hold nothing.
    pub bytes_free: u64,
    /// What is stored there.
    pub bytes_live: u64,
    /// Nothing new goes there.
    pub drain: Option<DrainLine>,
    /// Since the store was opened.
    pub traffic: TrafficLine,
    /// Reads, writes and flushes that have failed since the store was opened.
    pub failures: u64,
    /// The first of them.
    pub failure: Option<String>,
}

impl DeviceLine {
    /// Whether it holds nothing at all.
    pub fn is_empty(&self) -> bool {
        self.bytes_free == self.bytes_total
    }
}

/// What was read from a device and written to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficLine {
    pub reads: u64,
    /// Those that began where another one had ended.
    pub reads_in_row: u64,
    pub bytes_read: u64,
    pub writes: u64,
    pub writes_in_row: u64,
    pub bytes_written: u64,
    pub flushes: u64,
}

/// How far a device has been drained since the store was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainLine {
    /// Just now.
    pub is_moving: bool,
    pub bytes_moved: u64,
    /// How long that took.
    pub took: Duration,
    /// Why it does not get on.
    pub trouble: Option<String>,
}
