//! Comparisons, page by page: of snapshots, transactions and branches.
//!
//! Thread safety: a comparison is out of the table while it is worked on. Invariants: all pages of a
//! comparison are of the moment of its first one; [`KEPT_MAX`] are kept for each user at most.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kvfs_fs::{DiffStream, Difference, FileSystem, Undo};
use kvfs_locks::{Mutex, class};

use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::selection::shown_to;

/// Comparisons that are kept for a user.
const KEPT_MAX: usize = 8;

/// What is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compared {
    /// Two snapshots; no name: now.
    Snapshots(Option<String>, Option<String>),
    /// A transaction with what was there.
    Transaction(u64),
    /// A branch with what was there.
    Branch(String),
    /// What taking back a transaction would change.
    Undo(u64),
}

/// The lines of a comparison that are not given yet.
pub struct Comparison(Rest);

enum Rest {
    Walk {
        stream: Box<DiffStream<Arc<FileSystem>>>,
        /// The side whose keyspaces say what the caller may see of keys; `None`: all.
        shown_by: Option<Arc<FileSystem>>,
    },
    Lines(std::vec::IntoIter<Difference>),
}

impl fmt::Debug for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comparison").finish_non_exhaustive()
    }
}

impl Comparison {
    /// Of two views, which must be pinned.
    pub(crate) fn of_views(before: Arc<FileSystem>, after: Arc<FileSystem>) -> Self {
        Self(Rest::Walk { stream: Box::new(DiffStream::new(before, after)), shown_by: None })
    }

    /// Of what taking a transaction back would change, as far as the caller may see it.
    pub(crate) fn of_undo(undo: &Undo) -> Self {
        Self(Rest::Walk { stream: Box::new(undo.diff()), shown_by: Some(Arc::clone(undo.before())) })
    }

    /// The next lines, at most so many, and of so many bytes, about; whether there are more.
    pub(crate) fn next_page(
        &mut self,
        caller: &Caller,
        lines_max: usize,
        bytes_max: usize,
    ) -> Result<(Vec<Difference>, bool)> {
        let rest = match &mut self.0 {
            Rest::Walk { stream, shown_by } => {
                let mut page = stream.next_page(lines_max, bytes_max)?;
                if let Some(view) = shown_by {
                    page = shown_to(caller, view, page)?;
                }
                return Ok((page, !stream.is_through()));
            }
            Rest::Lines(rest) => rest,
        };
        let (mut page, mut bytes_left) = (Vec::new(), bytes_max);
        while page.len() < lines_max
            && bytes_left > 0
            && let Some(line) = rest.next()
        {
            bytes_left = bytes_left.saturating_sub(line.bytes_told());
            page.push(line);
        }
        Ok((page, rest.len() > 0))
    }
}

impl From<Vec<Difference>> for Comparison {
    fn from(lines: Vec<Difference>) -> Self {
        Self(Rest::Lines(lines.into_iter()))
    }
}

/// A comparison of which a connection has not had all pages.
struct Kept {
    uid: u32,
    what: Compared,
    /// Lines that were given.
    given: u64,
    rest: Comparison,
}

/// The comparisons under way, by connection.
#[derive(Default)]
pub struct Comparisons {
    kept: Mutex<BTreeMap<u64, Kept>, class::ServiceComparisonsKept>,
}

impl fmt::Debug for Comparisons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comparisons").finish_non_exhaustive()
    }
}

impl Comparisons {
    /// The next page of a comparison, at most so many lines and bytes; whether there is more. `begin` makes
    /// it for its first page, at line 0. The rest is kept for the connection.
    ///
    /// # Errors
    /// As `begin`; the comparison is not kept any more, so that nothing says of which moment line `from`
    /// would be; store errors.
    pub fn page(
        &self,
        caller: &Caller,
        what: Compared,
        (from, lines_max, bytes_max): (u64, usize, usize),
        begin: impl FnOnce() -> Result<Comparison>,
    ) -> Result<(Vec<Difference>, bool)> {
        let kept = self.kept.lock().remove(&caller.number);
        let kept = kept.filter(|kept| from > 0 && kept.what == what && kept.given == from);
        let mut rest = if let Some(kept) = kept {
            kept.rest
        } else {
            let begun = begin()?;
            if from > 0 {
                // It is of another moment, where a number of lines is no place.
                let message = "this comparison was given up for later ones of the same user; begin again";
                return Err(ServiceError::new(ErrorKind::Conflict, message));
            }
            begun
        };
        let (lines, more) = rest.next_page(caller, lines_max.max(1), bytes_max)?;
        if more {
            // A pager may keep the reader waiting for hours.
            caller.keep()?;
            let given = from + lines.len() as u64;
            let mut kept = self.kept.lock();
            let mine: Vec<u64> =
                kept.iter().filter(|(_, other)| other.uid == caller.uid).map(|(number, _)| *number).collect();
            // That of the oldest connection goes.
            if mine.len() >= KEPT_MAX {
                kept.remove(&mine[0]);
            }
            kept.insert(caller.number, Kept { uid: caller.uid, what, given, rest });
        }
        Ok((lines, more))
    }

    /// That of a connection which has ended is given up.
    pub fn forget(&self, connection: u64) {
        self.kept.lock().remove(&connection);
    }

    /// Gives up all.
    pub fn clear(&self) {
        self.kept.lock().clear();
    }
}

#[cfg(test)]
mod tests;
