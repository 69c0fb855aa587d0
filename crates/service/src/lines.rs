//! What front ends tell of transactions, snapshots, locks, quotas, places and what is there. Plain values.
//!
//! Thread safety: values. Invariant: the order of fields and variants is that of the control protocol, which
//! they are part of.

#![expect(missing_docs, reason = "names and types say what the fields are, where nothing else is said")]

mod charges;
mod engine;
mod held;
mod locks;
mod operations;
mod quota;
mod tiers;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use charges::{ChargeLine, ChargeLines, OwnerlessLine};
pub use engine::{DefragPlanLine, DefragRequest, DefragmentedLine, FragmentationLine, ZoneLines, zone_codes};
pub use held::{HeldLine, HeldLines};
pub use locks::{DoomLine, LockLine, LockLines, LockPlaceParts, PartyLine, WaiterLine};
pub use operations::{OperationLine, OperationLines, TraceLine, TraceRequest};
pub use quota::{LimitChanges, QuotaOwner, QuotaRequest, QuotaRow};
pub use tiers::{
    BudgetLine, DeviceHeatLine, DeviceLine, DrainLine, HeatCellLine, HeatLines, NewDeviceLine, PlacementLine,
    TierRequest, TrafficLine,
};

/// A part of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlaceLine {
    /// Everything.
    All,
    /// What is at and below a path from the root of the store, as raw bytes.
    Path(Vec<u8>),
    /// A keyspace, a slash, and what the keys begin with.
    Keys(Vec<u8>),
}

/// What of a change is done: `kvfs_fs::Selection`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SelectionLine {
    pub only: Vec<PlaceLine>,
    pub skip: Vec<PlaceLine>,
    pub force: Vec<PlaceLine>,
    pub keep: Vec<PlaceLine>,
}

/// What is told of a file or key before or after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FactsLine {
    File {
        mode: u32,
        uid: u32,
        gid: u32,
        bytes: u64,
        target: Option<Vec<u8>>,
    },
    /// The beginning of a value, and the length of all of it.
    Key {
        value: Vec<u8>,
        bytes: u64,
    },
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingLine {
    /// A path, a key, or a part of the engine.
    pub place: String,
    pub detail: String,
}

impl From<String> for FindingLine {
    /// What the engine tells begins with the place.
    fn from(finding: String) -> Self {
        match finding.split_once(": ") {
            Some((place, detail)) => Self { place: place.to_owned(), detail: detail.to_owned() },
            None => Self { place: "store".to_owned(), detail: finding },
        }
    }
}

/// Whether a store and its device work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthLine {
    /// Why writes, or all operations, fail until the store is mounted again.
    pub failure: Option<String>,
    /// Reads, writes and flushes of the device that have failed since the store was opened.
    pub device_failures: u64,
    /// The first of them.
    pub device_failure: Option<String>,
    /// Trees that are being removed behind `kvfs rm -r`, and names of such trees that have gone since the
    /// store was opened.
    pub trees_removing: u64,
    pub names_removed: u64,
    /// Branches that were unmounted, and could not be checkpointed yet.
    pub branches_not_kept: u64,
}

impl HealthLine {
    /// In a sentence; `None`: nothing has failed.
    pub fn trouble(&self) -> Option<String> {
        let device = self.device_failure.as_ref().map(|first| {
            format!("the device has failed {} times since, first {first}", self.device_failures)
        });
        let not_kept = (self.branches_not_kept > 0).then(|| {
            let count = self.branches_not_kept;
            format!(
                "what was done in {count} unmounted branch(es) is not kept yet; `kvfs branch list` shows which, and why"
            )
        });
        let failure = self.failure.as_ref().map(|why| format!("no more writes are accepted: {why}"));
        let all: Vec<_> = [failure.or(device), not_kept].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// A named snapshot, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SnapshotLine {
    pub name: String,
    pub position: u64,
    /// Since 1970.
    pub created: Duration,
    /// Shown to root and the store's owner alone.
    pub is_private: bool,
}

/// A committed transaction, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CommittedLine {
    pub id: u64,
    pub uid: u32,
    pub pid: u32,
    pub label: String,
    /// Since 1970.
    pub committed: Duration,
    pub operations: u64,
    /// What its pre-images hold.
    pub bytes_kept: u64,
}

/// A branch, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BranchLine {
    pub name: String,
    pub id: u64,
    pub uid: u32,
    /// Since 1970.
    pub created: Duration,
    /// Written in it (bytes).
    pub bytes: u64,
    /// Where it is mounted, as raw bytes; empty: nowhere.
    pub dir: Vec<u8>,
    /// It was unmounted, and why what was done in it is in the daemon alone.
    pub not_kept: Option<String>,
    /// What it is a branch of; `None`: of everything.
    pub directory: Option<DirectoryLine>,
    /// The branch that it is a branch of, and is brought into; `None`: the main line.
    pub parent: Option<String>,
}

/// The directory that a branch is one of, by raw bytes of paths from the root of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryLine {
    /// When the branch was made.
    pub path: Vec<u8>,
    /// Now; `None`: it was removed.
    pub now: Option<Vec<u8>>,
}

/// A transaction, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TxnLine {
    pub id: u64,
    pub serializable: bool,
    pub uid: u32,
    pub pid: u32,
    pub label: String,
    pub age: Duration,
    /// `open`, `committing`, or why it can't be committed any more.
    pub state: String,
    pub operations: u64,
    pub bytes_written: u64,
    pub locks: u64,
    /// Where its view is mounted, as raw bytes; empty: nowhere, or in namespaces of its own.
    pub view: Vec<u8>,
}
