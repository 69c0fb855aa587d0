//! What is asked about branches.
//!
//! Thread safety: plain values.

use serde::{Deserialize, Serialize};

use super::SelectionLine;

/// What is asked about branches.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum BranchRequest {
    Create {
        name: String,
        /// Of what: a path from the root of the store, as raw bytes.
        directory: Vec<u8>,
        /// As this snapshot has it; `None`: as it is now.
        from: Option<String>,
        /// With dirty pages of shared mappings.
        flush: bool,
    },
    /// Makes a branch of a branch.
    Fork {
        name: String,
        parent: String,
        flush: bool,
    },
    List,
    /// Absolute path, as raw bytes.
    Mount {
        name: String,
        dir: Vec<u8>,
    },
    /// Unmounts it, if it is mounted; answered when it is checkpointed.
    Unmount {
        name: String,
    },
    /// Whatever was mounted here, as raw bytes, has been unmounted: answered when it is checkpointed.
    Settle {
        dir: Vec<u8>,
    },
    /// One page of what it changes, as [`super::Request::Diff`].
    Diff {
        name: String,
        from: u64,
        limit: u64,
    },
    /// Without a selection: only if nothing is in the way.
    Merge {
        name: String,
        selection: Option<SelectionLine>,
    },
    Delete {
        name: String,
    },
}
