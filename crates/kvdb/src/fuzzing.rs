//! What the fuzz targets need of private parts; built with the feature `fuzzing` alone.

use bytes::Bytes;
use kvfs_store::{Batch, Keyspace, KeyspaceKind, TxnId};

use crate::format::Decoder;
use crate::journal;
use crate::version::{Edit, ManifestState, RunId};

/// Reads every record of a group's payload, as a recovery does.
///
/// # Panics
/// The records come to more than the payload holds.
pub fn read_journal_payload(payload: &Bytes) {
    journal::read_payload(payload);
}

/// A payload of one record, for a corpus.
pub fn journal_payload() -> Vec<u8> {
    let mut batch = Batch::new();
    batch.put(Keyspace(1), &b"key"[..], &b"value"[..]);
    batch.delete(Keyspace(1), &b"other"[..]);
    batch.delete_range(Keyspace(2), &b"a"[..], &b"b"[..]);
    batch.merge(Keyspace(1), &b"count"[..], &b"+1"[..]);
    journal::payload_of(&batch)
}

/// Decodes the edits of a manifest and applies them, as an opening does.
///
/// # Panics
/// What was decoded is not what is encoded again.
pub fn read_manifest_edits(data: &[u8]) {
    let mut decoder = Decoder::new(data);
    let mut state = ManifestState::default();
    while !decoder.is_empty() {
        let Ok(edit) = Edit::decode(&mut decoder) else { return };
        let mut encoded = Vec::new();
        edit.encode(&mut encoded);
        let again = Edit::decode(&mut Decoder::new(&encoded)).ok();
        assert_eq!(again.as_ref(), Some(&edit), "what was encoded can be decoded");
        if state.apply(&edit).is_err() {
            return;
        }
    }
}

/// The edits of a small manifest, for a corpus.
pub fn manifest_edits() -> Vec<u8> {
    let edits = [
        Edit::AddKeyspace { id: 1, name: "rows".into(), kind: KeyspaceKind::Tuple },
        Edit::AddKeyspace { id: 2, name: "blocks".into(), kind: KeyspaceKind::Block },
        Edit::NextId(10),
        Edit::AddRun { keyspace: 1, run: RunId(3), age: 100 },
        Edit::PrepareRun { txn: TxnId(4), keyspace: 1, run: RunId(5), age: 7 },
        Edit::AdoptRuns { txn: TxnId(4), base: 200 },
        Edit::NextTxn(9),
        Edit::Committed { txn: TxnId(4), seqno: 207 },
        Edit::AddSnapshot { name: "monday".into(), seqno: 150, created: 1 },
        Edit::DropRun { keyspace: 1, run: RunId(3) },
    ];
    let mut bytes = Vec::new();
    for edit in &edits {
        edit.encode(&mut bytes);
    }
    bytes
}
