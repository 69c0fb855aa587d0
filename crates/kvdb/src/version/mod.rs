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
pub(crate) mod manifest;
pub(crate) mod salvage;
mod state;
mod units;

pub(crate) use edit::{Edit, RunId};
pub(crate) use live::{Run, TakePiece, Version, read_piece};
pub(crate) use manifest::Manifest;
pub(crate) use state::{
    COMMITTED_MAX, CheckpointState, KeyspaceState, ManifestState, MemberState, MergeState, RunState,
    SnapshotState, UndoState,
};
pub(crate) use units::{Unit, bytes_of, of_one_age, runs_within, units_of};

#[cfg(test)]
mod tests;
