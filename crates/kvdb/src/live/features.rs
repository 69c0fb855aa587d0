//! What the superblocks announce: before the first of it is written, and until the last of it is gone.
//!
//! Crash order: both superblocks have the version of a feature, flushed, before the journal or the manifest
//! have anything of it; they go back when nothing of it is left on the device. So a program that does not
//! know it refuses the store by its version. Which version a store needs is the table of [`Features`].
//!
//! Thread safety: what is announced changes under the ledger's lock alone, and is read without. Invariant: a
//! feature is among the announced ones only while the superblocks say so.

use std::sync::atomic::{AtomicU8, Ordering};

use kvfs_store::{Batch, Compression, Op, Result};

use crate::format::{Feature, Features};
use crate::live::LiveSet;

/// What the superblocks announce.
#[derive(Debug)]
pub(crate) struct Announced(AtomicU8);

impl Announced {
    pub(crate) fn new(features: Features) -> Self {
        Self(AtomicU8::new(features.bits()))
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.get().has(feature)
    }

    fn get(&self) -> Features {
        Features::from_bits(self.0.load(Ordering::Acquire))
    }

    fn set(&self, features: Features) {
        self.0.store(features.bits(), Ordering::Release);
    }
}

impl LiveSet {
    /// Announces `feature`, durably when this returns. Two flushes the first time, then nothing.
    pub(crate) fn announce(&self, feature: Feature) -> Result<()> {
        self.announce_all(&[feature])
    }

    /// As [`LiveSet::announce`], several at once.
    pub(crate) fn announce_all(&self, announced: &[Feature]) -> Result<()> {
        if announced.iter().all(|&feature| self.announced.has(feature)) {
            return Ok(());
        }
        let ledger = self.ledger.lock();
        let features = announced.iter().fold(self.announced.get(), |all, &feature| all.with(feature));
        self.runtime.health.observe(ledger.manifest.set_version(features.version()))?;
        self.announced.set(features);
        Ok(())
    }

    /// Announces what `batch` is the first one to have. O(1) when that is nothing new, else O(operations).
    pub(crate) fn announce_features_of(&self, batch: &Batch) -> Result<()> {
        if batch.has_patches() {
            self.announce(Feature::Patches)?;
        }
        self.announce_wishes_of(batch)
    }

    /// Whether the superblocks say that the store may hold `feature`.
    pub(crate) fn has_announced(&self, feature: Feature) -> bool {
        self.announced.has(feature)
    }

    /// Takes back what is announced of the journal alone, unless `is_used` says that there is any of it.
    /// `between` is called when no writer can rely on it any more, and before the superblocks are written.
    pub(crate) fn withdraw_features_of_journal(
        &self,
        is_used: impl FnOnce() -> Result<bool>,
        between: impl FnOnce(),
    ) -> Result<()> {
        let ledger = self.ledger.lock();
        let announced = self.announced.get();
        let features = Feature::OF_JOURNAL.into_iter().fold(announced, Features::without);
        if features == announced || is_used()? {
            return Ok(());
        }
        // First here: a writer that comes now announces it anew, behind the ledger's lock.
        self.announced.set(features);
        between();
        self.runtime.health.observe(ledger.manifest.set_version(features.version()))
    }

    /// As [`LiveSet::announce_features_of`], for a batch that is not going to the journal as it is.
    pub(crate) fn announce_wishes_of(&self, batch: &Batch) -> Result<()> {
        let is_wish = |op: &Op| match op {
            Op::PutBlocks { compression, .. } | Op::PatchBlock { compression, .. } => {
                *compression != Compression::None
            }
            _ => false,
        };
        if !self.announced.has(Feature::Packed) && batch.ops().iter().any(is_wish) {
            self.announce(Feature::Packed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
