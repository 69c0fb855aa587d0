//! The quotient filter of a tuple piece: says of most absent keys that they are absent.
//!
//! It holds 32-bit fingerprints (the low half of XXH3-64 of the key). The metadata blob keeps the
//! fingerprints block by block, so a stitched block brings its own along: filters merge without
//! reading keys, as in the thesis, and yet never hold the key of a block that was left behind.
//!
//! Thread safety: immutable.

use qfilter::{Builder, Filter as QuotientFilter};
use xxhash_rust::xxh3::xxh3_64;

/// Bits of a fingerprint. With n keys in a piece, n / 2^32 of the absent keys pass.
const FINGERPRINT_BITS: u8 = 32;

/// What the filter keeps of a key.
#[inline]
pub(crate) fn fingerprint(key: &[u8]) -> u32 {
    xxh3_64(key) as u32
}

/// A may-contain structure over keys.
pub(super) struct Filter {
    filter: QuotientFilter,
}

impl Filter {
    /// Builds the filter in O(n log n); `None` for more keys than fingerprints can tell apart.
    pub(super) fn build(mut fingerprints: Vec<u32>) -> Option<Self> {
        fingerprints.sort_unstable();
        fingerprints.dedup();
        let capacity = fingerprints.len().max(1) as u64;
        let empty = QuotientFilter::with_fingerprint_size(capacity, FINGERPRINT_BITS).ok()?;
        let mut builder = Builder::new(empty);
        for value in fingerprints {
            builder.insert_fingerprint(false, value.into()).ok()?;
        }
        Some(Self { filter: builder.into_filter() })
    }

    /// Whether the key may be there; never false for a key that is.
    #[inline]
    pub(super) fn may_contain(&self, key: &[u8]) -> bool {
        self.filter.contains_fingerprint(fingerprint(key).into())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.filter.memory_usage()
    }
}
