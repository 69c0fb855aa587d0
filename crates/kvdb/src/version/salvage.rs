//! What a damaged manifest still says.
//!
//! The groups up to the damage count as ever. Groups behind it that are whole are read, too, and their edits applied
//! as far as they make sense without the lost ones; pieces whose edit was lost have to be looked for on the device
//! (those with a number from [`SalvagedManifest::strays_from`] on that are not among [`SalvagedManifest::known`]).
//! So nothing that exists is missed, and what was deleted lately may come back.
//!
//! Thread safety: one thread; only reads.

use std::collections::HashSet;

use kvfs_device::Device;
use kvfs_store::Seqno;

use super::edit::{Edit, RunId};
use super::group::GroupLog;
use super::state::ManifestState;
use crate::format::{Decoder, PieceId, Superblock};

/// A manifest as far as it could be read.
pub(crate) struct SalvagedManifest {
    pub(crate) state: ManifestState,
    /// What is wrong with it; `None`: nothing.
    pub(crate) damage: Option<String>,
    /// Pieces that some edit named, whether they are still there or not.
    pub(crate) known: HashSet<PieceId>,
    /// Pieces from this number on may have lost their edits.
    pub(crate) strays_from: u64,
}

/// Reads the manifest that `superblock` names.
pub(crate) fn salvage(device: &dyn Device, superblock: &Superblock) -> SalvagedManifest {
    let mut log = GroupLog::new(superblock);
    let mut found = SalvagedManifest {
        state: ManifestState::default(),
        damage: None,
        known: HashSet::new(),
        strays_from: 0,
    };
    let mut is_whole = false;
    while found.damage.is_none() {
        let place = log.place();
        let damage = match log.read_next(device) {
            Ok(Some(group)) => {
                is_whole |= group.is_snapshot_end;
                found.apply(&group.edits, &place);
                continue;
            }
            Ok(None) if is_whole => return found,
            Ok(None) => format!("{place} is missing"),
            Err(error) => error.to_string(),
        };
        found.note_damage(damage, is_whole);
    }
    log.salvage_rest(device, &mut |edits| found.apply(edits, "behind the damage"));
    found
}

impl SalvagedManifest {
    fn note_damage(&mut self, detail: String, is_whole: bool) {
        self.strays_from = if is_whole { self.state.next_id } else { 0 };
        self.damage.get_or_insert(detail);
    }

    fn apply(&mut self, edits: &[u8], place: &str) {
        let mut decoder = Decoder::new(edits);
        while !decoder.is_empty() {
            let edit = match Edit::decode(&mut decoder) {
                Ok(edit) => edit,
                Err(error) => return self.note_damage(error.at(place).to_string(), true),
            };
            if let Edit::AddPiece { piece, .. } = &edit {
                self.known.insert(piece.id);
            }
            let applied = self.state.apply(&edit);
            match (applied, &self.damage) {
                (Ok(()), _) => {}
                (Err(error), None) => self.note_damage(error.to_string(), true),
                (Err(_), Some(_)) => self.apply_after_damage(&edit),
            }
        }
    }

    /// What can be done about an edit that builds on lost ones.
    fn apply_after_damage(&mut self, edit: &Edit) {
        let Edit::AddPiece { keyspace, run, piece } = edit else { return };
        let place = Edit::AddRun { keyspace: *keyspace, run: *run, age: piece.seqno_max };
        // Into a run of its own where it can't be in the one that it belongs to.
        if self.state.apply(&place).is_err() || self.state.apply(edit).is_err() {
            self.add_alone(*keyspace, piece.seqno_max, edit);
        }
    }

    fn add_alone(&mut self, keyspace: u32, age: Seqno, edit: &Edit) {
        let Edit::AddPiece { piece, .. } = edit else { return };
        // Numbers of pieces and runs come from one counter.
        let run = RunId(piece.id.0);
        let edits =
            [Edit::AddRun { keyspace, run, age }, Edit::AddPiece { keyspace, run, piece: piece.clone() }];
        for edit in &edits {
            if let Err(error) = self.state.apply(edit) {
                tracing::warn!(%error, "an edit behind the damage of the manifest is passed over");
            }
        }
    }
}
