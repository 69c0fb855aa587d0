//! CRC-32C (Castagnoli), the checksum of everything on disk.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32C of bytes that come in parts.
pub struct Crc32c(Digest);

impl Crc32c {
    /// The checksum of nothing yet.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// A checksum that starts with the four bytes of `salt`. The salt of a store follows from its
    /// uuid, so that content which imitates a log record does not verify in another place or store.
    pub fn salted(salt: u32) -> Self {
        let mut crc = Self::new();
        crc.update(&salt.to_le_bytes());
        crc
    }

    /// Appends `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes given.
    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}
