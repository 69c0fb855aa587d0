//! A slot of a superblock (docs/FORMAT.md, "Superblock").

use kvfs_kvdb::format::{SUPERBLOCK_BYTES, Superblock};

use crate::input::crc32c;

/// Where the checksum lies, and from where on it counts.
const CRC_AT: usize = 8;
const CRC_FROM: usize = 12;

/// Decodes the input, sealed; what was decoded is what is encoded again.
pub fn run(data: &[u8]) {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let len = data.len().min(SUPERBLOCK_BYTES);
    bytes[..len].copy_from_slice(&data[..len]);
    drop(Superblock::decode(&bytes));
    let crc = crc32c(&[&bytes[CRC_FROM..]]);
    bytes[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_le_bytes());
    if let Ok(superblock) = Superblock::decode(&bytes) {
        let again = Superblock::decode(&superblock.encode()).expect("what was encoded can be decoded");
        assert_eq!(again, superblock);
    }
}
