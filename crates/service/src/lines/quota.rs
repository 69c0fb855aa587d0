//! What is asked and told about quotas. Plain values.

use serde::{Deserialize, Serialize};

/// What is asked about quotas.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum QuotaRequest {
    /// Answered when everything has been counted; refused while transactions are open, unless they may be
    /// aborted.
    On {
        abort_open: bool,
    },
    Off,
    Set(QuotaOwner, LimitChanges),
    Get {
        owner: QuotaOwner,
        /// With the bytes that are its alone, which takes a while.
        exclusive: bool,
    },
    /// The same of all.
    Report {
        exclusive: bool,
    },
    /// Which directories belong to projects.
    ProjectTrees,
}

/// Whose quota.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum QuotaOwner {
    User(u32),
    Group(u32),
    Project(u32),
}

/// Limits to be set, or as they are; 0: none.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct LimitChanges {
    pub bytes_soft: Option<u64>,
    pub bytes_hard: Option<u64>,
    pub inodes_soft: Option<u64>,
    pub inodes_hard: Option<u64>,
    pub grace_seconds: Option<u64>,
}

/// What one user, group or project has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct QuotaRow {
    pub owner: QuotaOwner,
    pub bytes: u64,
    /// Of these, what would come free without it; `None`: that was not asked.
    pub bytes_exclusive: Option<u64>,
    pub inodes: u64,
    pub limits: LimitChanges,
    /// Until when the soft limit may be overstepped (seconds since 1970), if it is.
    pub bytes_until: Option<u64>,
    pub inodes_until: Option<u64>,
}
