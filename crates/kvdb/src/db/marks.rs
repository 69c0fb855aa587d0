//! What the superblocks say of the journal: a program that knows less must not take for damage what it does not know.
//!
//! Crash order: both superblocks have the version, flushed, before the journal has the first record that needs it. A
//! close that leaves the journal empty takes the version back.
//!
//! Thread safety: the mark rises under the lock of the ledger, and falls under that and, before, the order lock, under
//! which writers look at it.

use std::sync::atomic::Ordering;

use kvfs_store::Result;

use super::inner::Inner;
use crate::format::{FORMAT_VERSION_PACKED, FORMAT_VERSION_PLAIN};

impl Inner {
    /// Sees to it that the journal may have records of `format_version`. Two flushes the first time, then nothing.
    pub(crate) fn allow_in_journal(&self, format_version: u32) -> Result<()> {
        if self.journal_version.load(Ordering::Acquire) >= format_version {
            return Ok(());
        }
        let ledger = self.ledger.lock();
        self.health.observe(ledger.manifest.raise_version(format_version))?;
        self.journal_version.fetch_max(format_version, Ordering::AcqRel);
        Ok(())
    }

    /// Takes the mark back, when everything is in runs. The store is being closed.
    pub(crate) fn disallow_in_journal(&self) -> Result<()> {
        // Nobody can append what needs it from here on: who does looks at the mark under this lock.
        let order = self.order.lock();
        let view = self.view();
        let is_written = view.sealed.is_empty() && view.active.is_empty();
        if !is_written || self.journal_version.swap(0, Ordering::AcqRel) == 0 {
            return Ok(());
        }
        drop(order);
        let ledger = self.ledger.lock();
        // Under the lock, or a mark that somebody sets just now would be taken back.
        let packs = self.packs.load(Ordering::Acquire);
        let version = if packs { FORMAT_VERSION_PACKED } else { FORMAT_VERSION_PLAIN };
        self.health.observe(ledger.manifest.lower_version(version))
    }
}
