//! What a damaged manifest still says.
//!
//! The groups up to the damage count as ever. Groups behind it that are whole are read, too, and their edits
//! applied as far as they make sense without the lost ones; pieces whose edit was lost have to be looked for
//! on the device (those with a number from [`SalvagedManifest::strays_from`] on that are not among
//! [`SalvagedManifest::known`]). A keyspace whose edit was lost is entered before the first edit that builds
//! on it. So nothing that exists is missed, and what was deleted lately may come back.
//!
//! Thread safety: one thread; only reads.

use std::collections::{BTreeSet, HashSet};

use kvfs_device::Device;
use kvfs_store::{Compression, KeyspaceKind, Seqno};

use super::edit::{Edit, RunId};
use super::group::GroupLog;
use super::state::{KeyspaceState, ManifestState};
use crate::format::{Decoder, PieceId, Superblock};

/// A manifest as far as it could be read.
pub(crate) struct SalvagedManifest<'k> {
    pub(crate) state: ManifestState,
    /// What is wrong with it; `None`: nothing.
    pub(crate) damage: Option<String>,
    /// Pieces that have been in the state, whether they are still there or not.
    pub(crate) known: HashSet<PieceId>,
    /// Pieces from this number on may have lost their edits.
    pub(crate) strays_from: u64,
    /// Keyspaces in the state of which nothing but the number is left; their kinds are guesses.
    pub(crate) nameless: BTreeSet<u32>,
    /// Those with the numbers from 1 on.
    keyspaces: &'k [(&'k str, KeyspaceKind)],
}

/// Reads the manifest that `superblock` names. `keyspaces` are those with the numbers from 1 on, which need
/// no edits.
pub(crate) fn salvage<'k>(
    device: &dyn Device,
    superblock: &Superblock,
    keyspaces: &'k [(&'k str, KeyspaceKind)],
) -> SalvagedManifest<'k> {
    let mut log = GroupLog::new(superblock);
    let mut found = SalvagedManifest {
        state: ManifestState::default(),
        damage: None,
        known: HashSet::new(),
        strays_from: 0,
        nameless: BTreeSet::new(),
        keyspaces,
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

impl SalvagedManifest<'_> {
    fn note_damage(&mut self, detail: String, is_whole: bool) {
        if self.damage.is_some() {
            return;
        }
        self.damage = Some(detail);
        self.strays_from = if is_whole { self.state.next_id } else { 0 };
        for (id, &(name, kind)) in (1..).zip(self.keyspaces) {
            self.state.keyspaces.entry(id).or_insert_with(|| keyspace(name, kind));
        }
    }

    fn apply(&mut self, edits: &[u8], place: &str) {
        let mut decoder = Decoder::new(edits);
        while !decoder.is_empty() {
            let edit = match Edit::decode(&mut decoder) {
                Ok(edit) => edit,
                Err(error) => return self.note_damage(error.at(place).to_string(), true),
            };
            let is_there = match self.state.apply(&edit) {
                Ok(()) => true,
                Err(error) => {
                    self.note_damage(error.to_string(), true);
                    self.apply_after_damage(&edit)
                }
            };
            if let (true, Edit::AddPiece { piece, .. }) = (is_there, edit) {
                self.known.insert(piece.id);
            }
        }
    }

    /// What can be done about an edit that builds on lost ones. Says whether it had its effect.
    fn apply_after_damage(&mut self, edit: &Edit) -> bool {
        self.enter_keyspace_of(edit);
        if self.state.apply(edit).is_ok() {
            return true;
        }
        let Edit::AddPiece { keyspace, run, piece } = edit else { return false };
        let place = Edit::AddRun { keyspace: *keyspace, run: *run, age: piece.seqno_max };
        // Into a run of its own where it can't be in the one that it belongs to.
        (self.state.apply(&place).is_ok() && self.state.apply(edit).is_ok())
            || self.add_alone(*keyspace, piece.seqno_max, edit)
    }

    fn enter_keyspace_of(&mut self, edit: &Edit) {
        let (Edit::AddRun { keyspace, .. }
        | Edit::AddAdopted { keyspace, .. }
        | Edit::PrepareRun { keyspace, .. }
        | Edit::AddPiece { keyspace, .. }) = *edit
        else {
            return;
        };
        if !self.state.keyspaces.contains_key(&keyspace) {
            enter_nameless(&mut self.state, keyspace, KeyspaceKind::Tuple);
            self.nameless.insert(keyspace);
        }
    }

    fn add_alone(&mut self, keyspace: u32, age: Seqno, edit: &Edit) -> bool {
        let Edit::AddPiece { piece, .. } = edit else { return false };
        // Numbers of pieces and runs come from one counter.
        let run = RunId(piece.id.0);
        let edits =
            [Edit::AddRun { keyspace, run, age }, Edit::AddPiece { keyspace, run, piece: piece.clone() }];
        let applied = edits.iter().try_for_each(|edit| self.state.apply(edit));
        if let Err(error) = &applied {
            tracing::warn!(%error, "an edit behind the damage of the manifest is passed over");
        }
        applied.is_ok()
    }
}

/// Enters a keyspace of which nothing but the number is left.
pub(crate) fn enter_nameless(state: &mut ManifestState, id: u32, kind: KeyspaceKind) {
    if state.keyspaces.contains_key(&id) {
        return;
    }
    let mut name = format!("recovered-{id}");
    // A user may have a keyspace of that name.
    while state.keyspaces.values().any(|known| known.name == name) {
        name.push_str("-again");
    }
    state.keyspaces.insert(id, keyspace(&name, kind));
}

fn keyspace(name: &str, kind: KeyspaceKind) -> KeyspaceState {
    let (runs, merges) = (Vec::new(), Vec::new());
    KeyspaceState { name: name.to_owned(), kind, runs, merges, compression: Compression::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyspace_without_a_name_gets_one_that_no_other_one_has() {
        let mut state = ManifestState::default();
        state.keyspaces.insert(3, keyspace("recovered-7", KeyspaceKind::Tuple));
        for _ in 0..2 {
            enter_nameless(&mut state, 7, KeyspaceKind::Tuple);
        }
        enter_nameless(&mut state, 8, KeyspaceKind::Block);
        let names: Vec<&str> = state.keyspaces.values().map(|keyspace| keyspace.name.as_str()).collect();
        assert_eq!(names, ["recovered-7", "recovered-7-again", "recovered-8"]);
    }
}
