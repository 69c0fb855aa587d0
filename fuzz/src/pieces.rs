//! What a piece consists of: index, range tombstones, fingerprints, tuple blocks, packed units.

use bytes::Bytes;
use kvfs_kvdb::format::{
    PieceMetaHeader, TupleBlock, TupleCursor, decode_fingerprints, decode_layers, decode_tombstones,
    decode_tuples,
};

use crate::input::crc32c;

/// Where the checksum of a tuple block lies, from where on it counts, and where its length lies.
const CRC_AT: usize = 4;
const CRC_FROM: usize = 8;

/// First byte of the entries of tuples.
pub const TUPLES: u8 = 0;
/// First byte of a list of layers.
pub const LAYERS: u8 = 1;
/// First byte of range tombstones.
pub const TOMBSTONES: u8 = 2;
/// First byte of the fingerprints of a filter.
pub const FINGERPRINTS: u8 = 3;
/// First byte of the header of a piece.
pub const HEADER: u8 = 4;
/// First byte of a tuple block.
pub const BLOCK: u8 = 5;

/// Decodes the input as what its first byte says.
pub fn run(data: &[u8]) {
    let Some((&kind, data)) = data.split_first() else { return };
    match kind % 6 {
        TUPLES => drop(decode_tuples(data)),
        LAYERS => drop(decode_layers(data)),
        TOMBSTONES => drop(decode_tombstones(data)),
        FINGERPRINTS => drop(decode_fingerprints(data)),
        HEADER => drop(PieceMetaHeader::peek(data)),
        _ => read_block(data.to_vec()),
    }
}

/// Walks a sealed tuple block both ways, and seeks each of its keys.
fn read_block(mut bytes: Vec<u8>) {
    let Some(&len) = bytes.get(CRC_FROM..).and_then(<[u8]>::first_chunk) else { return };
    let len = u32::from_le_bytes(len) as usize;
    if let Some(sealed) = bytes.get(CRC_FROM..len) {
        let crc = crc32c(&[sealed]);
        bytes[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_le_bytes());
    }
    if TupleBlock::verify(&bytes).is_err() {
        return;
    }
    let bytes = Bytes::from(bytes);
    let Ok(mut cursor) = TupleCursor::new(bytes.clone(), 0) else { return };
    let mut keys = Vec::new();
    let mut moved = cursor.first();
    while moved.is_ok() {
        let Some(record) = cursor.record() else { break };
        keys.push((record.key.to_vec(), record.seqno));
        assert!(keys.len() <= bytes.len(), "a walk ends");
        drop(cursor.value());
        moved = cursor.next();
    }
    for (key, seqno) in &keys {
        let _ = cursor.seek(key, *seqno);
        let _ = cursor.seek_before(key);
    }
    let mut moved = cursor.last();
    for _ in 0..=bytes.len() {
        if moved.is_err() || cursor.record().is_none() {
            return;
        }
        moved = cursor.prev();
    }
    panic!("a walk backwards ends");
}
