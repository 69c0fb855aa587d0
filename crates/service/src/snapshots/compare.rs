//! Comparisons of snapshots, page by page.
//!
//! Thread safety: a comparison is out of the table while it is worked on. Invariant: one is kept for each user at most.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kvfs_fs::{DiffStream, Difference, FileSystem};
use kvfs_locks::{Mutex, class};

use crate::caller::Caller;
use crate::error::Result;
use crate::served::ServedStore;

/// A comparison of which a connection has not had all pages.
struct Kept {
    uid: u32,
    /// The names of both sides.
    sides: (Option<String>, Option<String>),
    stream: DiffStream<Arc<FileSystem>>,
}

/// The comparisons under way, by connection.
#[derive(Default)]
pub struct Comparisons {
    kept: Mutex<BTreeMap<u64, Kept>, class::ServiceSnapshotsCompareKept>,
}

impl fmt::Debug for Comparisons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comparisons").finish_non_exhaustive()
    }
}

impl Comparisons {
    /// What differs between two sides (no name: now), from place `from` on, at most so much; whether there is more. The
    /// comparison is kept for the next page, one for each user; without it, it begins anew.
    ///
    /// # Errors
    /// The caller may not; there is no such snapshot; store errors.
    pub fn page(
        &self,
        store: &ServedStore<'_>,
        caller: &Caller,
        sides: (Option<String>, Option<String>),
        from: u64,
        (lines_max, bytes_max): (usize, usize),
    ) -> Result<(Vec<Difference>, bool)> {
        store.admit(caller)?;
        let kept = self.kept.lock().remove(&caller.number);
        let fits = |kept: &Kept| kept.sides == sides && kept.stream.position() == from;
        let mut stream = if let Some(kept) = kept.filter(fits) {
            kept.stream
        } else {
            DiffStream::new(store.view_at(sides.0.as_deref())?, store.view_at(sides.1.as_deref())?)
        };
        while stream.position() < from && !stream.is_through() {
            let left = usize::try_from(from - stream.position()).unwrap_or(usize::MAX);
            stream.next_page(left, bytes_max)?;
        }
        let lines = stream.next_page(lines_max.max(1), bytes_max)?;
        let more = !stream.is_through();
        if more {
            let mut kept = self.kept.lock();
            kept.retain(|_, other| other.uid != caller.uid);
            kept.insert(caller.number, Kept { uid: caller.uid, sides, stream });
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
