//! What the programs of this package share, and the engines' benchmark beside them.

pub mod calls;
pub mod cgroup;
pub mod counters;
pub mod daemon;
pub mod disk;
pub mod figures;
pub mod goals;
pub mod host;
pub mod image;
pub mod interrupt;
pub mod json;
pub mod latencies;
pub mod memory;
pub mod mount;
pub mod options;
pub mod outcome;
pub mod page;
pub mod programs;
pub mod report;
pub mod results;
pub mod slow_disk;
pub mod source;
pub mod summary;
pub mod units;
pub mod values;
pub mod zipf;
