//! What the unit tests of memtable and iter share: a merge function, a seeded generator.

use bytes::Bytes;
use kvfs_store::{MergeFunction, Result};

/// Concatenation: order and completeness of operands show in the result.
pub(crate) struct Append;

impl MergeFunction for Append {
    fn resolve(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>> {
        let mut value = base.unwrap_or_default().to_vec();
        for operand in operands {
            value.extend_from_slice(operand);
        }
        Ok(Some(value.into()))
    }

    /// Operands that start with `!` do not fold.
    fn fold(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Bytes> {
        let folds = !older.starts_with(b"!") && !newer.starts_with(b"!");
        folds.then(|| [older, newer].concat().into())
    }
}

/// Small seeded generator (xorshift64*).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Uniform in `0..bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Runs `test` with many seeds; a failure names its seed.
pub(crate) fn for_seeds(count: u64, test: impl Fn(&mut Rng) + std::panic::RefUnwindSafe) {
    for seed in 1..=count {
        let outcome = std::panic::catch_unwind(|| test(&mut Rng::new(seed)));
        if let Err(panic) = outcome {
            eprintln!("failed with seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
