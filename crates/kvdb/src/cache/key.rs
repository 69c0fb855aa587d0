//! Keys of the block cache, and how they are hashed.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::format::ZoneId;

/// Where a block lies, and in which life of its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheKey {
    /// Zone.
    pub zone: ZoneId,
    /// How often the zone was freed before.
    pub generation: u32,
    /// Byte offset in the zone.
    pub offset: u32,
}

impl CacheKey {
    /// All bits depend on all of the key. What a policy remembers of a block that is gone.
    pub(super) fn mixed(self) -> u64 {
        let place = u64::from(self.zone.0) << 32 | u64::from(self.offset);
        // The finalizer of MurmurHash3; addresses are no input that a stranger chooses.
        let mut hash = place ^ u64::from(self.generation).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ hash >> 33
    }
}

impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mixed());
    }
}

/// For maps whose keys are mixed already.
pub(super) type MixedState = BuildHasherDefault<MixedHasher>;

/// Passes on one number.
#[derive(Debug, Default)]
pub(super) struct MixedHasher(u64);

impl Hasher for MixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
