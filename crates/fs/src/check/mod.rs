//! The cross-reference checker: `kvfs check`.
//!
//! Purpose: reads everything at one snapshot, so also under a running file system, and compares: every
//! name with its inode, link counts, counters of directories, that the tree is a tree, orphans, blocks and
//! extended attributes with their owners. Reading everything lets the store verify every checksum.
//!
//! Thread safety: only reads. Memory: about 40 bytes for each file, more for directories.

mod content;
mod path;
mod rows;

use std::fmt;
use std::sync::Arc;

use kvfs_store::{Read, Snapshot, Store};

use crate::schema::Keyspaces;
use crate::{Result, quota};
pub(crate) use path::{or_root, path_of};
use rows::Rows;

/// Something that contradicts something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path or inode.
    pub place: String,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.detail)
    }
}

/// What the check saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Contradictions; empty for a sound file system.
    pub problems: Vec<Problem>,
    /// Directories, the root included.
    pub directories: u64,
    /// Everything else that has a name.
    pub files: u64,
    /// Names.
    pub entries: u64,
    /// Inodes without a name; a running file system has some.
    pub orphans: u64,
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Extended attributes.
    pub xattrs: u64,
}

impl CheckReport {
    pub(crate) fn problem(&mut self, place: impl Into<String>, detail: impl Into<String>) {
        self.problems.push(Problem { place: place.into(), detail: detail.into() });
    }
}

/// Checks the file system in `store` at a snapshot.
///
/// # Errors
/// Store errors (a checksum mismatch names its place); contradictions are no errors but in the report.
pub fn check(store: &Arc<dyn Store>) -> Result<CheckReport> {
    let keyspaces = Keyspaces::open(&**store)?;
    let quota_keyspace = quota::find_keyspace(&**store)?;
    let snapshot: Arc<dyn Snapshot> = store.snapshot()?;
    let mut report = check_read(&*snapshot, &keyspaces)?;
    if let Some(quotas) = quota_keyspace {
        quota::check_usage(&*snapshot, &keyspaces, quotas, &mut report)?;
    }
    Ok(report)
}

/// Checks what `read` sees, which does not change meanwhile.
pub(crate) fn check_read<R: Read + ?Sized>(read: &R, keyspaces: &Keyspaces) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let rows = Rows::scan(read, keyspaces, &mut report)?;
    rows.compare(&mut report);
    content::check_blocks(read, keyspaces, &rows, &mut report)?;
    content::check_xattrs(read, keyspaces, &rows, &mut report)?;
    Ok(report)
}
