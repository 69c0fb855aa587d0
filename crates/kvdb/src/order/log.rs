//! The journal of an open store, with the health that keeps its failures.
//!
//! Thread safety: any thread. Invariant: after a failed write or sync no other one is tried.

use std::sync::Arc;

use kvfs_store::{Position, Result, StoreError};

use crate::journal::Journal;
use crate::memtable::MemTable;
use crate::runtime::Runtime;
use crate::runtime::options::Background;

/// See the module.
pub(crate) struct Log {
    runtime: Arc<Runtime>,
    /// `None`: opened read-only.
    journal: Option<Journal>,
}

impl Log {
    /// `journal`: `None` for a store that is read only.
    pub(crate) fn new(runtime: Arc<Runtime>, journal: Option<Journal>) -> Self {
        Self { runtime, journal }
    }

    /// Everything that `table` has bound is written when this returns, and so will be durable with its runs.
    pub(crate) fn write_bound(&self, table: &MemTable) -> Result<()> {
        let journal = self.journal()?;
        if table.bytes_bound() > 0 || journal.may_bind() { journal.write_out() } else { Ok(()) }
    }

    /// The journal of a writable store.
    pub(crate) fn journal(&self) -> Result<&Journal> {
        self.journal.as_ref().ok_or(StoreError::ReadOnly)
    }

    /// Has the journal's open group written by the thread for that, so that no writer waits for it. A failure
    /// is sticky, and no business of this batch, whose caller has not asked for durability.
    pub(crate) fn write_journal_soon(&self) {
        match self.runtime.options.background {
            Background::Threads => self.runtime.journal_due.notify(),
            Background::Manual => self.write_journal(),
        }
    }

    /// Writes the journal's open group, and allocates the next part of the area when it is due. The health of
    /// the store keeps a failure.
    pub(crate) fn write_journal(&self) {
        let written = self.journal().and_then(Journal::write_out);
        self.runtime.health.observe(written).ok();
        if let Some(journal) = &self.journal {
            journal.allocate_ahead();
        }
    }

    pub(crate) fn sync(&self, position: Position) -> Result<()> {
        let journal = self.journal()?;
        if journal.durable_seqno() >= position.0 {
            return Ok(());
        }
        self.runtime.health.check()?;
        self.runtime.health.observe(journal.sync(position.0))
    }
}
