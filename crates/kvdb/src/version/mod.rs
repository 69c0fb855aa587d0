//! Which runs exist: the manifest on the device, and its state.
//!
//! Purpose: [`Edit`]s are committed atomically to the manifest ([`manifest`]); applied in order they
//! give the [`ManifestState`], from which an opening rebuilds runs and allocator. Layout:
//! `docs/FORMAT.md`, "Manifest".
//!
//! Thread safety: [`Manifest`] is shared; commits exclude each other. The rest is plain data.

mod edit;
mod group;
mod live;
pub mod manifest;
pub(crate) mod salvage;
mod state;

pub use edit::{Edit, RunId};
pub use live::{KeyspaceRuns, Run, Version};
pub use manifest::Manifest;
pub use state::{
    COMMITTED_MAX, CheckpointState, KeyspaceState, ManifestState, RunState, SnapshotState, UndoState,
};

#[cfg(test)]
mod tests;
