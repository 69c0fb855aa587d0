//! The cross-reference checker: `kvfs check`.
//!
//! Purpose: reads everything at one snapshot, so also under a running file system, and compares: every
//! name with its inode, link counts, counters of directories, that the tree is a tree, orphans, blocks and
//! extended attributes with their owners. Reading everything lets the store verify every checksum.
//!
//! Thread safety: only reads. Memory: about 40 bytes for each file, more for directories.

mod around;
mod content;
mod path;
mod rows;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use kvfs_store::{Read, Snapshot, Store};

use crate::repair::{DamagedKeys, FilePaths, describe_unread};
use crate::schema::Keyspaces;
use crate::{Result, quota};
pub(crate) use around::Unread;
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
    check_around(store, &[])
}

/// As [`check`], of a store of which `damaged` can't be read: the check goes on behind each of these places.
/// They are the first problems of the report, with paths; what contradicts only because something is missing
/// there is none.
///
/// # Errors
/// As [`check`].
pub fn check_around(store: &Arc<dyn Store>, damaged: &[DamagedKeys]) -> Result<CheckReport> {
    let keyspaces = Keyspaces::open(&**store)?;
    let quota_keyspace = quota::find_keyspace(&**store)?;
    let snapshot: Arc<dyn Snapshot> = store.snapshot()?;
    let unread = Unread::of(damaged);
    let mut report = check_parts(&*snapshot, &keyspaces, &unread)?;
    name_paths(&*snapshot, &keyspaces, &unread, &mut report.problems)?;
    report.problems.splice(0..0, describe_unread(&*snapshot, &keyspaces, damaged, &unread)?);
    // What is counted can't be compared with a part of what there is.
    if let Some(quotas) = quota_keyspace.filter(|_| unread.is_empty()) {
        quota::check_usage(&*snapshot, &keyspaces, quotas, &mut report)?;
    }
    Ok(report)
}

/// Checks what `read` sees, which does not change meanwhile.
pub(crate) fn check_read<R: Read + ?Sized>(read: &R, keyspaces: &Keyspaces) -> Result<CheckReport> {
    check_parts(read, keyspaces, &Unread::default())
}

/// The inode that a place is about: places that are no paths say so at their end.
fn inode_of(place: &str) -> Option<u64> {
    let (before, number) = place.rsplit_once("inode ")?;
    let is_place = !place.starts_with('/') && (before.is_empty() || before.ends_with(' '));
    number.parse().ok().filter(|_| is_place)
}

/// Adds the path to each place that has none. Names are read once more, and only for this.
fn name_paths<R: Read + ?Sized>(
    read: &R,
    keyspaces: &Keyspaces,
    unread: &Unread,
    problems: &mut [Problem],
) -> Result<()> {
    let inodes: BTreeSet<u64> = problems.iter().filter_map(|problem| inode_of(&problem.place)).collect();
    if inodes.is_empty() {
        return Ok(());
    }
    let paths = FilePaths::of(read, keyspaces, &inodes, unread)?;
    for problem in problems {
        if let Some(path) = inode_of(&problem.place).and_then(|inode| paths.known(inode)) {
            problem.place = format!("{} ({path})", problem.place);
        }
    }
    Ok(())
}

fn check_parts<R: Read + ?Sized>(read: &R, keyspaces: &Keyspaces, unread: &Unread) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let rows = Rows::scan(read, keyspaces, unread, &mut report)?;
    rows.compare(unread, &mut report);
    content::check_blocks(read, keyspaces, (&rows, unread), &mut report)?;
    content::check_xattrs(read, keyspaces, (&rows, unread), &mut report)?;
    Ok(report)
}
