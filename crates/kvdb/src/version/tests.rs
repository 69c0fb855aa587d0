//! Tests of edits, state and manifest.

mod crash;

use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::{Call, Device, FaultDevice, FaultError, FaultRule, MemoryDevice, Rng};
use kvfs_store::{Isolation, KeyspaceKind, Result, StoreError, TxnId};

use super::state::KeyspaceState;
use super::*;
use crate::format::{Decoder, Extent, FORMAT_VERSION_PLAIN, PieceDesc, PieceId, Superblock, ZoneId, ZoneUse};
use crate::journal::Lsn;
use crate::space::{Budget, Stream, Zones};

const ZONE_BYTES: u32 = 64 << 10;
const ZONES: u64 = 60;

fn superblock() -> Superblock {
    Superblock {
        uuid: *b"0123456789abcdef",
        generation: 0,
        format_version: FORMAT_VERSION_PLAIN,
        zone_bytes: ZONE_BYTES,
        capacity_bytes: ZONES * u64::from(ZONE_BYTES),
        journal_first: ZoneId(1),
        journal_zones: 2,
        epoch: 0,
        manifest_zones: vec![],
        manifest_seq: 0,
        has_stamps: true,
    }
}

fn zones_of(device: &Arc<dyn Device>, superblock: &Superblock) -> Arc<Zones> {
    Zones::new(device.clone(), ZONE_BYTES, superblock.capacity_bytes, superblock.first_data_zone())
}

fn create(device: &Arc<dyn Device>) -> (Manifest, Arc<Zones>) {
    let zones = zones_of(device, &superblock());
    (Manifest::create(device.clone(), zones.clone(), superblock()).unwrap(), zones)
}

fn open(device: &Arc<dyn Device>) -> Result<(Manifest, ManifestState, Arc<Zones>)> {
    let superblock = Superblock::read_newest(device.as_ref())?;
    let zones = zones_of(device, &superblock);
    let (manifest, state) = Manifest::open(device.clone(), superblock, zones.clone())?;
    Ok((manifest, state, zones))
}

fn piece(id: u64, first_key: &[u8], last_key: &[u8]) -> PieceDesc {
    PieceDesc {
        id: PieceId(id),
        first_key: Bytes::copy_from_slice(first_key),
        last_key: Bytes::copy_from_slice(last_key),
        seqno_min: id,
        seqno_max: id + 10,
        data_bytes: 1 << 40,
        records: 300,
        tombstones: 0,
        meta: vec![Extent { addr: 1 << 30, len: 8192 }, Extent { addr: 5 << 12, len: 4096 }],
        meta_len: 9000,
        meta_crc: 0xdead_beef,
        zones: vec![ZoneUse { zone: ZoneId(9), bytes: 20_480, pieces: 3, end: 65_536 }],
    }
}

/// Makes edits that fit the state, which it keeps.
struct Editor {
    rng: Rng,
    state: ManifestState,
}

impl Editor {
    fn new(seed: u64, state: ManifestState) -> Self {
        Self { rng: Rng::new(seed), state }
    }

    fn id(&mut self, edits: &mut Vec<Edit>) -> u64 {
        let id = self.state.next_id;
        self.push(edits, Edit::NextId(id + 1));
        id
    }

    fn push(&mut self, edits: &mut Vec<Edit>, edit: Edit) {
        self.state.apply(&edit).unwrap();
        edits.push(edit);
    }

    fn key(&mut self, start: u8) -> Bytes {
        let mut key = vec![start; self.rng.range(1, 1500) as usize];
        self.rng.fill(&mut key[1..]);
        key.into()
    }

    /// Records a merge, or ends what is recorded of one, and drops a piece.
    fn change_merges_and_pieces(&mut self, edits: &mut Vec<Edit>, keyspace: u32) {
        let KeyspaceState { runs, merges, .. } = &self.state.keyspaces[&keyspace];
        let free: Vec<RunId> = runs
            .iter()
            .map(|run| run.id)
            .filter(|run| !merges.iter().any(|merge| merge.involves(*run)))
            .collect();
        let recorded = merges.first().map(|merge| merge.output);
        let piece = runs.iter().find_map(|run| run.pieces.last().map(|piece| (run.id, piece.id)));
        if free.len() > 1 && self.rng.chance(1, 2) {
            let (output, inputs) = (free[0], free[1..].to_vec());
            self.push(edits, Edit::RecordMerge { keyspace, output, inputs });
        } else if let Some(output) = recorded.filter(|_| self.rng.chance(1, 4)) {
            self.push(edits, Edit::RecordMerge { keyspace, output, inputs: Vec::new() });
        }
        if let Some((run, piece)) = piece.filter(|_| self.rng.chance(1, 4)) {
            self.push(edits, Edit::DropPiece { keyspace, run, piece });
        }
    }

    /// The edits of one commit, applied to the state.
    fn commit(&mut self) -> Vec<Edit> {
        let mut edits = Vec::new();
        let ids: Vec<u32> = self.state.keyspaces.keys().copied().collect();
        if ids.is_empty() || self.rng.chance(1, 20) {
            let id = ids.len() as u32;
            let kind = if self.rng.chance(1, 2) { KeyspaceKind::Tuple } else { KeyspaceKind::Block };
            self.push(&mut edits, Edit::AddKeyspace { id, name: format!("keyspace {id}"), kind });
            return edits;
        }
        let keyspace = ids[self.rng.index(ids.len())];
        let runs: Vec<_> = self.state.keyspaces[&keyspace].runs.iter().map(|run| run.id).collect();
        if runs.len() > 3 {
            let run = runs[self.rng.index(runs.len())];
            self.push(&mut edits, Edit::DropRun { keyspace, run });
        } else if !runs.is_empty() && self.rng.chance(1, 4) {
            let run = runs[self.rng.index(runs.len())];
            let state = &self.state.keyspaces[&keyspace].runs;
            let old = state.iter().find(|other| other.id == run).unwrap().lower_bound.clone();
            let start = old.first().map_or(1, |&byte| byte.saturating_add(1));
            if start < 200 {
                let lower_bound = self.key(start);
                self.push(&mut edits, Edit::TrimRun { keyspace, run, lower_bound });
            }
        }
        let run = RunId(self.id(&mut edits));
        let age = self.rng.below(50);
        self.push(&mut edits, Edit::AddRun { keyspace, run, age });
        self.change_merges_and_pieces(&mut edits, keyspace);
        for start in 0..self.rng.below(4) as u8 {
            let (first, last) = (self.key(start * 20 + 1), self.key(start * 20 + 10));
            let id = self.id(&mut edits);
            let piece = piece(id, &first, &last);
            self.push(&mut edits, Edit::AddPiece { keyspace, run, piece });
        }
        if self.rng.chance(1, 2) {
            let lsn = Lsn(self.state.journal_tail.0 + 4096 * self.rng.below(9));
            let seqno = self.state.flushed_seqno + self.rng.below(9);
            self.push(&mut edits, Edit::JournalTail { lsn, seqno });
        }
        if self.rng.chance(1, 3) {
            let name = format!("snapshot {}", self.rng.below(9));
            if self.state.snapshots.contains_key(&name) {
                self.push(&mut edits, Edit::DropSnapshot { name });
            } else {
                let (seqno, created) = (self.rng.below(1 << 40), self.rng.next_u64());
                self.push(&mut edits, Edit::AddSnapshot { name, seqno, created });
            }
        }
        if self.rng.chance(1, 3) {
            let (before, after) = (self.rng.below(50), 50 + self.rng.below(9));
            let note = Bytes::from(vec![1; self.rng.index(9)]);
            let (txn, committed) = (TxnId(self.rng.below(300)), self.rng.next_u64());
            let keep = Edit::KeepUndo { txn, before, after, committed, note };
            let is_kept = self.state.undo.contains_key(&after);
            self.push(&mut edits, if is_kept { Edit::DropUndo { after } } else { keep });
        }
        edits
    }
}

#[test]
fn edits_survive_encoding() {
    let mut editor = Editor::new(1, ManifestState::default());
    for _ in 0..300 {
        for edit in editor.commit() {
            let mut bytes = Vec::new();
            edit.encode(&mut bytes);
            let mut decoder = Decoder::new(&bytes);
            assert_eq!(Edit::decode(&mut decoder), Ok(edit));
            assert!(decoder.is_empty());
            for len in 0..bytes.len().min(100) {
                assert!(Edit::decode(&mut Decoder::new(&bytes[..len])).is_err());
            }
        }
    }
}

#[test]
fn the_bytes_of_edits_are_these() {
    let encoded = |edit: Edit| {
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        bytes
    };
    let run = RunId(300);
    let key = |key: &'static str| Bytes::from_static(key.as_bytes());
    let name = "meta".to_owned();
    assert_eq!(
        encoded(Edit::AddKeyspace { id: 1, name, kind: KeyspaceKind::Block }),
        b"\x01\x01\x04meta\x02"
    );
    assert_eq!(encoded(Edit::AddRun { keyspace: 1, run, age: 5 }), b"\x02\x01\xac\x02\x05");
    assert_eq!(
        encoded(Edit::AddPiece { keyspace: 1, run, piece: piece(2, b"a", b"bc") }),
        b"\x03\x01\xac\x02\x02\x01a\x02bc\x02\x0c\x80\x80\x80\x80\x80\x20\xac\x02\x00\xa8\x46\xef\xbe\xad\xde\
          \x02\x80\x80\x10\x02\x05\x01\x01\x09\x80\xa0\x01\x03\x80\x80\x04"
    );
    assert_eq!(encoded(Edit::TrimRun { keyspace: 1, run, lower_bound: key("k") }), b"\x04\x01\xac\x02\x01k");
    assert_eq!(encoded(Edit::DropPiece { keyspace: 1, run, piece: PieceId(9) }), b"\x23\x01\xac\x02\x09");
    let inputs = vec![RunId(7), RunId(5)];
    assert_eq!(
        encoded(Edit::RecordMerge { keyspace: 1, output: run, inputs }),
        b"\x24\x01\xac\x02\x02\x07\x05"
    );
    assert_eq!(encoded(Edit::DropRun { keyspace: 1, run }), b"\x05\x01\xac\x02");
    assert_eq!(encoded(Edit::JournalTail { lsn: Lsn(4096), seqno: 9 }), b"\x06\x80\x20\x09");
    assert_eq!(encoded(Edit::NextId(7)), b"\x07\x07");
    let txn = TxnId(300);
    assert_eq!(encoded(Edit::PrepareRun { txn, keyspace: 1, run, age: 5 }), b"\x08\x01\xac\x02\xac\x02\x05");
    assert_eq!(encoded(Edit::AdoptRuns { txn, base: 9 }), b"\x0d\xac\x02\x09");
    assert_eq!(encoded(Edit::DropPrepared { txn }), b"\x0e\xac\x02");
    assert_eq!(encoded(Edit::AddAdopted { keyspace: 1, run, age: 7, base: 2 }), b"\x0f\x01\xac\x02\x07\x02");
    assert_eq!(encoded(Edit::NextTxn(300)), b"\x09\xac\x02");
    assert_eq!(encoded(Edit::Committed { txn: TxnId(300), seqno: 7 }), b"\x0a\xac\x02\x07");
    let name = "old".to_owned();
    assert_eq!(
        encoded(Edit::AddSnapshot { name: name.clone(), seqno: 300, created: 7 }),
        b"\x0b\x03old\xac\x02\x07"
    );
    assert_eq!(encoded(Edit::DropSnapshot { name }), b"\x0c\x03old");
    assert_eq!(
        encoded(Edit::KeepUndo { txn, before: 4, after: 300, committed: 7, note: key("me") }),
        b"\x14\xac\x02\x04\xac\x02\x07\x02me"
    );
    assert_eq!(encoded(Edit::DropUndo { after: 300 }), b"\x15\xac\x02");
    assert_eq!(
        encoded(Edit::Checkpoint { txn, checkpoint: checkpoint(b"me") }),
        b"\x18\xac\x02\x09\x01\x07\x05\x02\xac\x02\x80\x20\x02me"
    );
}

#[test]
fn runs_are_newest_first_and_trimming_drops_pieces() {
    let mut state = ManifestState::default();
    let mut apply = |edit| state.apply(&edit);
    apply(Edit::AddKeyspace { id: 1, name: "data".into(), kind: KeyspaceKind::Tuple }).unwrap();
    for (run, age) in [(1, 10), (2, 30), (3, 20), (4, 20)] {
        apply(Edit::AddRun { keyspace: 1, run: RunId(run), age }).unwrap();
    }
    for (id, first, last) in [(7, "m", "p"), (5, "a", "c"), (6, "c", "f")] {
        let piece = piece(id, first.as_bytes(), last.as_bytes());
        apply(Edit::AddPiece { keyspace: 1, run: RunId(3), piece }).unwrap();
    }
    let run = RunId(3);
    let ids = |state: &ManifestState| -> Vec<u64> {
        let run = state.keyspaces[&1].runs.iter().find(|other| other.id == run).unwrap();
        run.pieces.iter().map(|piece| piece.id.0).collect()
    };
    let order: Vec<_> = state.keyspaces[&1].runs.iter().map(|run| run.id.0).collect();
    assert_eq!(order, [2, 4, 3, 1]);
    assert_eq!(ids(&state), [5, 6, 7]);
    let trim = |bound: &'static str| Edit::TrimRun {
        keyspace: 1,
        run,
        lower_bound: Bytes::from_static(bound.as_bytes()),
    };
    state.apply(&trim("c")).unwrap();
    assert_eq!(ids(&state), [5, 6, 7], "a piece that ends at the bound still counts");
    state.apply(&trim("d")).unwrap();
    assert_eq!(ids(&state), [6, 7]);
    assert_eq!(state.zone_uses().count(), 2);
    state.apply(&trim("z")).unwrap();
    assert_eq!(ids(&state), [0_u64; 0]);
}

#[test]
fn a_snapshot_is_added_and_dropped_once() {
    let mut state = ManifestState::default();
    let add = Edit::AddSnapshot { name: "old".into(), seqno: 5, created: 9 };
    let drop = Edit::DropSnapshot { name: "old".into() };
    state.apply(&drop).unwrap_err();
    state.apply(&add).unwrap();
    state.apply(&add).unwrap_err();
    assert_eq!(state.snapshots["old"], SnapshotState { seqno: 5, created: 9 });
    state.apply(&drop).unwrap();
    assert_eq!(state, ManifestState::default());
}

#[test]
fn a_transaction_that_can_be_taken_back_is_named_and_forgotten() {
    let mut state = ManifestState::default();
    let keep = |before, after| Edit::KeepUndo {
        txn: TxnId(7),
        before,
        after,
        committed: 9,
        note: Bytes::from_static(b"me"),
    };
    state.apply(&keep(5, 5)).unwrap_err();
    state.apply(&keep(4, 6)).unwrap();
    assert_eq!(state.undo[&6].edit(6), keep(4, 6));
    // It may be forgotten before it was named.
    for after in [6, 6, 8] {
        state.apply(&Edit::DropUndo { after }).unwrap();
    }
    assert_eq!(state, ManifestState::default());
}

#[test]
fn the_last_commits_of_transactions_are_kept_and_written_again() {
    let mut state = ManifestState::default();
    let count = COMMITTED_MAX as u64 + 10;
    for at in 0..count {
        state.apply(&Edit::Committed { txn: TxnId(2 * count - at), seqno: 100 + at }).unwrap();
    }
    state.apply(&Edit::NextTxn(9)).unwrap();
    state.apply(&Edit::NextTxn(5)).unwrap();
    assert_eq!((state.committed.len(), state.next_txn), (COMMITTED_MAX, 5));
    assert_eq!(state.committed.first_key_value(), Some((&110, &TxnId(2 * count - 10))));
    let mut copy = ManifestState::default();
    state.for_each_edit(|edit| {
        let edit = Edit::decode(&mut Decoder::new(edit)).unwrap();
        copy.apply(&edit).unwrap();
    });
    assert_eq!(copy, state);
}

fn checkpoint(owner: &'static [u8]) -> CheckpointState {
    CheckpointState {
        snapshot: 9,
        isolation: Isolation::Snapshot,
        created: 7,
        operations: 5,
        batches: 2,
        bytes_written: 300,
        bytes_spilled: 4096,
        owner: Bytes::from_static(owner),
    }
}

#[test]
fn checkpoints_replace_each_other_and_end_with_their_runs() {
    let mut state = ManifestState::default();
    let add_keyspace = Edit::AddKeyspace { id: 1, name: "data".into(), kind: KeyspaceKind::Tuple };
    state.apply(&add_keyspace).unwrap();
    let [adopted, dropped, empty] = [TxnId(5), TxnId(6), TxnId(7)];
    for (txn, run) in [(adopted, 10), (dropped, 11)] {
        state.apply(&Edit::PrepareRun { txn, keyspace: 1, run: RunId(run), age: 4 }).unwrap();
    }
    for (txn, owner) in
        [(adopted, &b"first"[..]), (adopted, b"second"), (dropped, b"other"), (empty, b"without runs")]
    {
        state.apply(&Edit::Checkpoint { txn, checkpoint: checkpoint(owner) }).unwrap();
    }
    assert_eq!(state.checkpoints[&adopted], checkpoint(b"second"));
    let mut copy = ManifestState::default();
    state.for_each_edit(|edit| copy.apply(&Edit::decode(&mut Decoder::new(edit)).unwrap()).unwrap());
    assert_eq!(copy, state);
    state.apply(&Edit::AdoptRuns { txn: adopted, base: 100 }).unwrap();
    for txn in [dropped, empty] {
        state.apply(&Edit::DropPrepared { txn }).unwrap();
        assert!(state.apply(&Edit::DropPrepared { txn }).is_err());
    }
    assert!(state.checkpoints.is_empty() && state.prepared.is_empty());
}

#[test]
fn prepared_runs_are_adopted_or_dropped_and_written_again() {
    let mut state = ManifestState::default();
    let txns = [TxnId(5), TxnId(6)];
    let add_keyspace = Edit::AddKeyspace { id: 1, name: "data".into(), kind: KeyspaceKind::Tuple };
    state.apply(&add_keyspace).unwrap();
    for (txn, runs) in txns.into_iter().zip([[10, 11], [12, 13]]) {
        for (run, age) in runs.into_iter().zip([4, 9]) {
            state.apply(&Edit::PrepareRun { txn, keyspace: 1, run: RunId(run), age }).unwrap();
            let piece = piece(run, b"a", b"c");
            state.apply(&Edit::AddPiece { keyspace: 1, run: RunId(run), piece }).unwrap();
        }
    }
    let written_again = |state: &ManifestState| {
        let mut copy = ManifestState::default();
        state.for_each_edit(|edit| copy.apply(&Edit::decode(&mut Decoder::new(edit)).unwrap()).unwrap());
        assert_eq!(copy, *state);
    };
    written_again(&state);
    assert_eq!(state.zone_uses().count(), 4);
    assert!(state.keyspaces[&1].runs.is_empty());
    state.apply(&Edit::AddRun { keyspace: 1, run: RunId(20), age: 100 }).unwrap();
    state.apply(&Edit::AddRun { keyspace: 1, run: RunId(21), age: 110 }).unwrap();
    for edit in [
        Edit::AddRun { keyspace: 1, run: RunId(10), age: 1 },
        Edit::PrepareRun { txn: TxnId(7), keyspace: 1, run: RunId(20), age: 1 },
        Edit::PrepareRun { txn: TxnId(7), keyspace: 2, run: RunId(30), age: 1 },
        Edit::PrepareRun { txn: txns[0], keyspace: 1, run: RunId(10), age: 1 },
        Edit::AdoptRuns { txn: TxnId(7), base: 1 },
        Edit::AdoptRuns { txn: txns[0], base: u64::MAX },
        Edit::DropPrepared { txn: TxnId(7) },
    ] {
        let before = state.clone();
        assert!(matches!(state.apply(&edit), Err(StoreError::Corrupt { .. })), "{edit:?}");
        assert_eq!(state, before, "{edit:?}");
    }
    state.apply(&Edit::AdoptRuns { txn: txns[0], base: 100 }).unwrap();
    state.apply(&Edit::DropPrepared { txn: txns[1] }).unwrap();
    assert!(state.prepared.is_empty());
    let runs: Vec<_> = state.keyspaces[&1].runs.iter().map(|run| (run.id.0, run.age, run.base)).collect();
    assert_eq!(runs, [(21, 110, 0), (11, 109, 100), (10, 104, 100), (20, 100, 0)]);
    written_again(&state);
}

#[test]
fn edits_that_contradict_the_state_are_refused_and_change_nothing() {
    let mut state = ManifestState::default();
    let run = RunId(1);
    let key = |key: &'static str| Bytes::from_static(key.as_bytes());
    for edit in [
        Edit::AddKeyspace { id: 1, name: "data".into(), kind: KeyspaceKind::Tuple },
        Edit::AddRun { keyspace: 1, run, age: 1 },
        Edit::AddPiece { keyspace: 1, run, piece: piece(1, b"f", b"k") },
        Edit::TrimRun { keyspace: 1, run, lower_bound: key("g") },
        Edit::JournalTail { lsn: Lsn(8192), seqno: 5 },
        Edit::NextId(4),
    ] {
        state.apply(&edit).unwrap();
    }
    let before = state.clone();
    for edit in [
        Edit::AddKeyspace { id: 1, name: "other".into(), kind: KeyspaceKind::Tuple },
        Edit::AddKeyspace { id: 2, name: "data".into(), kind: KeyspaceKind::Tuple },
        Edit::AddRun { keyspace: 1, run, age: 9 },
        Edit::AddRun { keyspace: 2, run: RunId(2), age: 9 },
        Edit::AddPiece { keyspace: 1, run: RunId(2), piece: piece(2, b"x", b"y") },
        Edit::AddPiece { keyspace: 1, run, piece: piece(2, b"a", b"g") },
        Edit::AddPiece { keyspace: 1, run, piece: piece(2, b"j", b"z") },
        Edit::AddPiece { keyspace: 1, run, piece: piece(2, b"f", b"f") },
        Edit::AddPiece { keyspace: 1, run, piece: piece(2, b"a", b"z") },
        Edit::AddPiece { keyspace: 1, run, piece: piece(2, b"z", b"y") },
        Edit::TrimRun { keyspace: 1, run, lower_bound: key("f") },
        Edit::TrimRun { keyspace: 1, run: RunId(2), lower_bound: key("z") },
        Edit::DropRun { keyspace: 1, run: RunId(2) },
        Edit::JournalTail { lsn: Lsn(4096), seqno: 6 },
        Edit::JournalTail { lsn: Lsn(8192), seqno: 4 },
        Edit::NextId(3),
    ] {
        assert!(matches!(state.apply(&edit), Err(StoreError::Corrupt { .. })), "{edit:?}");
        assert_eq!(state, before, "{edit:?}");
    }
}

#[test]
fn commits_survive_reopening_and_rewrites() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(ZONES * u64::from(ZONE_BYTES)));
    let (manifest, _) = create(&device);
    assert_eq!(manifest.begin_epoch().unwrap(), 1);
    let mut editor = Editor::new(2, ManifestState::default());
    for _ in 0..200 {
        manifest.commit(&editor.commit()).unwrap();
    }
    assert!(manifest.size().1 > 5, "rewrites: {:?}", manifest.size());
    for epoch in 2..6 {
        let (manifest, state, zones) = open(&device).unwrap();
        assert_eq!(state, editor.state);
        assert_eq!(manifest::read_state(device.as_ref(), &manifest.superblock(), |_| ()).unwrap(), state);
        assert_eq!(zones.space().zones_manifest, manifest.superblock().manifest_zones.len() as u32);
        assert_eq!(manifest.begin_epoch().unwrap(), epoch);
        manifest.commit(&editor.commit()).unwrap();
    }
}

#[test]
fn a_large_commit_and_a_large_state_span_zones() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(ZONES * u64::from(ZONE_BYTES)));
    let (manifest, zones) = create(&device);
    let mut edits = vec![
        Edit::AddKeyspace { id: 0, name: "data".into(), kind: KeyspaceKind::Tuple },
        Edit::AddRun { keyspace: 0, run: RunId(1), age: 1 },
    ];
    for id in 0..200_u64 {
        let (mut first, mut last) = (vec![7; 1000], vec![8; 1000]);
        first[..8].copy_from_slice(&(id * 2).to_be_bytes());
        last[..8].copy_from_slice(&(id * 2 + 1).to_be_bytes());
        edits.push(Edit::AddPiece { keyspace: 0, run: RunId(1), piece: piece(id, &first, &last) });
    }
    manifest.commit(&edits).unwrap();
    assert!(manifest.superblock().manifest_zones.len() > 6);
    for next_id in 1..100 {
        manifest.commit(&[Edit::NextId(next_id)]).unwrap();
    }
    let (manifest, state, _) = open(&device).unwrap();
    assert_eq!((state.next_id, state.keyspaces[&0].runs[0].pieces.len()), (99, 200));
    assert_eq!(zones.space().zones_manifest, manifest.superblock().manifest_zones.len() as u32);
}

#[test]
fn a_rewrite_without_space_changes_nothing_and_is_not_sticky() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(ZONES * u64::from(ZONE_BYTES)));
    let (manifest, zones) = create(&device);
    let mut taken = Vec::new();
    while let Ok(zone) = zones.allocate_zone(Budget::Reserve) {
        taken.push(zone);
    }
    let mut next_id = 0;
    let full = loop {
        let commit = manifest.commit(&[Edit::NextId(next_id + 1)]);
        if let Err(error) = commit {
            break error;
        }
        next_id += 1;
    };
    assert!(matches!(full, StoreError::Full) && next_id > 5);
    assert_eq!(open(&device).unwrap().1.next_id, next_id);
    for zone in taken {
        zones.free_zone(zone);
    }
    manifest.commit(&[Edit::NextId(next_id + 1)]).unwrap();
    assert_eq!(open(&device).unwrap().1.next_id, next_id + 1);
}

#[test]
fn any_failed_call_is_sticky_and_keeps_what_was_committed() {
    for nth in 0..200 {
        let faulty = Arc::new(FaultDevice::new(MemoryDevice::new(ZONES * u64::from(ZONE_BYTES))));
        let device: Arc<dyn Device> = faulty.clone();
        let (manifest, zones) = create(&device);
        let mut editor = Editor::new(nth, ManifestState::default());
        let call = if nth % 2 == 0 { Call::Write } else { Call::Flush };
        faulty.add(FaultRule::once(call, nth / 2, FaultError::EIO).torn(4096));
        let mut before = editor.state.clone();
        let failed = loop {
            let edits = editor.commit();
            match manifest.commit(&edits) {
                Ok(()) => before = editor.state.clone(),
                Err(error) => break error,
            }
        };
        assert!(matches!(failed, StoreError::Failed { .. }), "call {nth}: {failed}");
        assert!(matches!(manifest.commit(&[]), Err(StoreError::Failed { .. })), "call {nth}");
        assert!(matches!(manifest.begin_epoch(), Err(StoreError::Failed { .. })), "call {nth}");
        let allocated = zones.allocate(Stream::Meta, 4096, Budget::Reserve);
        assert!(matches!(allocated, Err(StoreError::Failed { .. })), "call {nth}: space would be used again");
        let state = open(&device).unwrap().1;
        assert!(state == before || state == editor.state, "call {nth}");
    }
}

#[test]
fn damage_in_a_manifest_is_refused() {
    let device = Arc::new(MemoryDevice::new(ZONES * u64::from(ZONE_BYTES)));
    let store: Arc<dyn Device> = device.clone();
    let (manifest, _) = create(&store);
    let mut ends = vec![0];
    for next_id in 1..6 {
        ends.push(manifest.size().0);
        manifest.commit(&[Edit::NextId(next_id)]).unwrap();
    }
    let base = u64::from(manifest.superblock().manifest_zones[0].0) * u64::from(ZONE_BYTES);
    for (index, end) in ends.iter().enumerate() {
        for at in [5, 65] {
            let image = Arc::new(device.fork());
            let mut sector = vec![0; 4096];
            image.read_at(&mut sector, base + end).unwrap();
            sector[at] ^= 0x40;
            image.write_at(&sector, base + end).unwrap();
            let image: Arc<dyn Device> = image;
            // The last group can't be told from one that a crash has torn.
            let opened = open(&image);
            let is_last = index + 1 == ends.len();
            assert_eq!(
                matches!(opened, Err(StoreError::Corrupt { .. })),
                !is_last,
                "group {index}, byte {at}"
            );
        }
    }
}
