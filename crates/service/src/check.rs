//! Verifying a store: the engine's own structures first, then what the file system made of them.
//!
//! Thread safety: for threads that may block, beside all other requests. Invariant: the owner of a store that
//! another user's process serves has one check of it read the disk at a time.

use kvfs_fs::FsError;
use kvfs_store::StoreError;

use crate::authority::{authorize, is_server};
use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::FindingLine;
use crate::served::ServedStore;

/// What a check has found.
#[derive(Debug, Default)]
pub struct Checked {
    /// Empty: clean.
    pub findings: Vec<FindingLine>,
    /// What was looked at, by name.
    pub counts: Vec<(String, u64)>,
}

impl ServedStore<'_> {
    /// Verifies everything. It is given up when the caller has gone, and when the store is to be closed.
    ///
    /// # Errors
    /// The caller may not; one for the store's owner runs already; the engine can't be read at all; it was
    /// given up.
    pub fn check(&self, caller: &Caller) -> Result<Checked> {
        authorize(self.fs, caller, "check the store")?;
        let turn = self.checks.try_lock();
        if turn.is_none() && !is_server(caller.uid) {
            let message = "the store is being checked already; wait until that has ended";
            return Err(ServiceError::new(ErrorKind::InUse, message));
        }
        self.defrag.while_wanted(caller, || self.checked())
    }

    fn checked(&self) -> Result<Checked> {
        let engine = self.engine.check()?;
        let mut findings: Vec<FindingLine> = engine.findings.into_iter().map(FindingLine::from).collect();
        let mut counts = engine.counts;
        match kvfs_fs::check::check_around(self.fs.store(), &engine.damaged) {
            Ok(files) => {
                let finding = |(place, detail)| FindingLine { place, detail };
                let problems = files.problems.into_iter().map(|problem| (problem.place, problem.detail));
                findings.extend(problems.map(finding));
                let seen = [
                    ("directories", files.directories),
                    ("files", files.files),
                    ("names", files.entries),
                    ("orphans", files.orphans),
                    ("extended attributes", files.xattrs),
                ];
                counts.extend(seen.map(|(name, count)| (name.to_owned(), count)));
            }
            Err(FsError::Store(error)) if matches!(*error, StoreError::GivenUp) => {
                return Err((*error).clone().into());
            }
            // What the file system can't be read behind is a finding, too.
            Err(error) => {
                let detail = format!("it can't be read any further: {error}");
                findings.push(FindingLine { place: "file system".to_owned(), detail });
            }
        }
        Ok(Checked { findings, counts })
    }
}

#[cfg(test)]
mod tests;
