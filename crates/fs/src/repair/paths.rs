//! What is damaged, in words of paths and keys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, KeyRange, Read, Store, TxnId};

use super::survey::Name;
use crate::Result;
use crate::check::{Problem, path_of};
use crate::schema::{Keyspaces, Placement, ROOT_INODE, Row};

/// Names and keys that one damaged place lists; of more only the number is told.
const LISTED_MAX: usize = 100;

/// Keys that an engine could not bring back, or only in an older state.
#[derive(Debug, Clone, Default)]
pub struct DamagedKeys {
    /// Keyspace.
    pub keyspace: String,
    /// They are those of a branch or another transaction that has not been committed.
    pub txn: Option<TxnId>,
    /// Smallest key that may be concerned.
    pub first: Bytes,
    /// Greatest one.
    pub last: Bytes,
    /// These are there in an older state, or although they had been deleted.
    pub older: Vec<Bytes>,
    /// At most so many others of the range are gone; `None`: nobody knows.
    pub gone_max: Option<u64>,
    /// Blocks that are gone: prefix, first, count.
    pub blocks: Vec<(Bytes, u64, u64)>,
}

/// Names of directories, and of some files.
pub(super) struct FilePaths {
    directories: BTreeMap<u64, Name>,
    files: BTreeMap<u64, Name>,
}

impl FilePaths {
    pub(super) fn of<R: Read + ?Sized>(
        read: &R,
        keyspaces: &Keyspaces,
        wanted: &BTreeSet<u64>,
    ) -> Result<Self> {
        let mut paths = Self { directories: BTreeMap::new(), files: BTreeMap::new() };
        let mut cursor = read.cursor(keyspaces.meta, KeyRange::all())?;
        loop {
            cursor.next()?;
            let Some((key, value)) = cursor.entry() else { return Ok(paths) };
            let Some((parent, name)) = Placement::parse_key(key).filter(|(_, name)| !name.is_empty()) else {
                continue;
            };
            let name = Name { parent, name: name.into() };
            match Row::parse(value) {
                Some(Row::Directory { inode, .. }) => drop(paths.directories.insert(inode, name)),
                Some(row) if wanted.contains(&row.inode()) => {
                    paths.files.entry(row.inode()).or_insert(name);
                }
                _ => {}
            }
        }
    }

    pub(super) fn of_directory(&self, inode: u64) -> String {
        let above = |at| self.directories.get(&at).map(|name| (name.parent, &*name.name));
        path_of(inode, self.directories.len() + 1, above)
    }

    pub(super) fn of_name(&self, name: &Name) -> String {
        format!("{}/{}", self.of_directory(name.parent), name.name.escape_ascii())
    }

    pub(super) fn of_file(&self, inode: u64) -> String {
        match self.files.get(&inode) {
            Some(name) => self.of_name(name),
            None if inode == ROOT_INODE => "/".to_owned(),
            None if self.directories.contains_key(&inode) => self.of_directory(inode),
            None => format!("(inode {inode})"),
        }
    }
}

/// Says for each of `damaged` which files, directories and keys it concerns. O(rows) once.
///
/// # Errors
/// Store errors.
pub fn describe(store: &Arc<dyn Store>, damaged: &[DamagedKeys]) -> Result<Vec<Problem>> {
    if damaged.is_empty() {
        return Ok(Vec::new());
    }
    let keyspaces = Keyspaces::open(&**store)?;
    let snapshot = store.snapshot()?;
    let inodes = damaged.iter().flat_map(|keys| {
        let blocks = keys.blocks.iter().filter_map(|(prefix, ..)| inode_of(prefix));
        let rows = keys.older.iter().filter_map(|key| inode_of(key));
        blocks.chain(rows)
    });
    let paths = FilePaths::of(&*snapshot, &keyspaces, &inodes.collect())?;
    let mut problems = Vec::new();
    for keys in damaged {
        if let Some(txn) = keys.txn {
            let detail = format!("some of what it has written in keyspace {} is lost", keys.keyspace);
            problems.push(problem(format!("transaction (or branch) {txn}"), detail));
            continue;
        }
        let known = match keys.keyspace.as_str() {
            "meta" => rows(&paths, keys, &mut problems),
            "data" => blocks(&paths, keys, &mut problems),
            "xattr" => attributes(&paths, keys, &mut problems),
            _ => false,
        };
        if !known {
            plain(keys, &mut problems);
        }
    }
    Ok(problems)
}

fn inode_of(key: &[u8]) -> Option<u64> {
    key.first_chunk::<8>().map(|inode| u64::from_be_bytes(*inode))
}

fn problem(place: impl Into<String>, detail: impl Into<String>) -> Problem {
    Problem { place: place.into(), detail: detail.into() }
}

/// The place of a row, for people.
fn row_place(paths: &FilePaths, key: &[u8]) -> String {
    match Placement::parse_key(key) {
        Some((inode, b"")) => paths.of_file(inode),
        Some((parent, name)) => paths.of_name(&Name { parent, name: name.into() }),
        None => format!("record {}", key.escape_ascii()),
    }
}

fn gone(keys: &DamagedKeys) -> Option<String> {
    match keys.gone_max {
        Some(0) => None,
        Some(count) => Some(format!("up to {count} names (or rows of directories) are lost")),
        None => Some("names (or rows of directories) may be lost".to_owned()),
    }
}

fn rows(paths: &FilePaths, keys: &DamagedKeys, problems: &mut Vec<Problem>) -> bool {
    for key in keys.older.iter().take(LISTED_MAX) {
        problems.push(problem(
            row_place(paths, key),
            "its newest state is lost; it is as it was earlier, and may have been deleted since",
        ));
    }
    if keys.older.len() > LISTED_MAX {
        problems
            .push(problem("…", format!("{} more are as they were earlier", keys.older.len() - LISTED_MAX)));
    }
    if let Some(gone) = gone(keys) {
        let (first, last) = (row_place(paths, &keys.first), row_place(paths, &keys.last));
        problems.push(problem(format!("between {first} and {last}"), gone));
    }
    true
}

fn blocks(paths: &FilePaths, keys: &DamagedKeys, problems: &mut Vec<Problem>) -> bool {
    for (prefix, first, count) in &keys.blocks {
        let Some(inode) = inode_of(prefix) else { continue };
        let (from, to) = (first * BLOCK_BYTES as u64, (first + count) * BLOCK_BYTES as u64);
        problems.push(problem(paths.of_file(inode), format!("bytes {from}-{to} are lost: a hole")));
    }
    for key in keys.older.iter().take(LISTED_MAX) {
        let Some((inode, block)) = key.split_first_chunk::<8>() else { continue };
        let Ok(block) = block.try_into().map(u64::from_be_bytes) else { continue };
        let place = paths.of_file(u64::from_be_bytes(*inode));
        let from = block.saturating_mul(BLOCK_BYTES as u64);
        problems.push(problem(place, format!("bytes from {from} on are as they were earlier")));
    }
    if keys.gone_max.is_none() {
        let ends = (inode_of(&keys.first), inode_of(&keys.last));
        if let (Some(first), Some(last)) = ends {
            let detail = "content of files with these numbers may be lost, or as it was earlier";
            problems.push(problem(format!("inodes {first} to {last}"), detail));
        }
    }
    true
}

fn attributes(paths: &FilePaths, keys: &DamagedKeys, problems: &mut Vec<Problem>) -> bool {
    for key in keys.older.iter().take(LISTED_MAX) {
        let Some((inode, name)) = key.split_first_chunk::<8>() else { continue };
        let place = paths.of_file(u64::from_be_bytes(*inode));
        let name = name.escape_ascii();
        problems.push(problem(place, format!("extended attribute {name} is as it was earlier")));
    }
    if keys.gone_max != Some(0)
        && let (Some(first), Some(last)) = (inode_of(&keys.first), inode_of(&keys.last))
    {
        problems.push(problem(format!("inodes {first} to {last}"), "extended attributes may be lost"));
    }
    true
}

/// A keyspace of a user.
fn plain(keys: &DamagedKeys, problems: &mut Vec<Problem>) {
    let place = format!("keyspace {}", keys.keyspace);
    for key in keys.older.iter().take(LISTED_MAX) {
        let key = key.escape_ascii();
        problems.push(problem(
            &*place,
            format!("key {key} is as it was earlier, and may have been deleted since"),
        ));
    }
    let (first, last) = (keys.first.escape_ascii(), keys.last.escape_ascii());
    match keys.gone_max {
        Some(0) => {}
        Some(count) => {
            problems.push(problem(place, format!("up to {count} keys from {first} to {last} are lost")));
        }
        None => problems.push(problem(place, format!("keys from {first} to {last} may be lost"))),
    }
}
