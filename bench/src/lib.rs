//! What the programs of this package share, and the engines' benchmark beside them.

pub mod cgroup;
pub mod counters;
pub mod figures;
pub mod goals;
pub mod host;
pub mod interrupt;
pub mod page;
pub mod report;
pub mod results;
pub mod source;
pub mod summary;
