//! What is damaged, in words of paths and keys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Read, Store, TxnId};

use super::survey::Name;
use crate::Result;
use crate::check::{Problem, Unread, path_of};
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
    /// At most so many others of the range are gone; `None`: unknown.
    pub gone_max: Option<u64>,
    /// Blocks that are gone: prefix, first, count.
    pub blocks: Vec<(Bytes, u64, u64)>,
}

/// Names of directories, and of some files.
pub(crate) struct FilePaths {
    directories: BTreeMap<u64, Name>,
    files: BTreeMap<u64, Name>,
}

impl FilePaths {
    pub(crate) fn of<R: Read + ?Sized>(
        read: &R,
        keyspaces: &Keyspaces,
        wanted: &BTreeSet<u64>,
        unread: &Unread,
    ) -> Result<Self> {
        let mut paths = Self { directories: BTreeMap::new(), files: BTreeMap::new() };
        unread.for_each(read, (keyspaces.meta, "meta"), |key, value| {
            let Some((parent, name)) = Placement::parse_key(key).filter(|(_, name)| !name.is_empty()) else {
                return;
            };
            let name = Name { parent, name: name.into() };
            match Row::parse(value) {
                Some(Row::Directory { inode, .. }) => drop(paths.directories.insert(inode, name)),
                Some(row) if wanted.contains(&row.inode()) => {
                    paths.files.entry(row.inode()).or_insert(name);
                }
                _ => {}
            }
        })?;
        Ok(paths)
    }

    pub(super) fn of_directory(&self, inode: u64) -> String {
        let above = |at| self.directories.get(&at).map(|name| (name.parent, &*name.name));
        path_of(inode, self.directories.len() + 1, above)
    }

    pub(super) fn of_name(&self, name: &Name) -> String {
        format!("{}/{}", self.of_directory(name.parent), name.name.escape_ascii())
    }

    pub(super) fn of_file(&self, inode: u64) -> String {
        self.known(inode).unwrap_or_else(|| format!("(inode {inode})"))
    }

    /// The path of an inode that has a name.
    pub(crate) fn known(&self, inode: u64) -> Option<String> {
        match self.files.get(&inode) {
            Some(name) => Some(self.of_name(name)),
            None if inode == ROOT_INODE => Some("/".to_owned()),
            None => self.directories.contains_key(&inode).then(|| self.of_directory(inode)),
        }
    }
}

/// Says for each of `damaged` which files, directories and keys it concerns; nothing of the bytes of files
/// that are `told` of already. O(rows) once.
///
/// # Errors
/// Store errors.
pub fn describe(
    store: &Arc<dyn Store>,
    damaged: &[DamagedKeys],
    told: &BTreeSet<u64>,
) -> Result<Vec<Problem>> {
    if damaged.is_empty() {
        return Ok(Vec::new());
    }
    let keyspaces = Keyspaces::open(&**store)?;
    let snapshot = store.snapshot()?;
    in_words(&*snapshot, &keyspaces, damaged, &Fate::Lost { told })
}

/// As [`describe`], of what is damaged in a store that is as it is: it can't be read. Names are read around
/// it.
pub(crate) fn describe_unread<R: Read + ?Sized>(
    read: &R,
    keyspaces: &Keyspaces,
    damaged: &[DamagedKeys],
    unread: &Unread,
) -> Result<Vec<Problem>> {
    if damaged.is_empty() {
        return Ok(Vec::new());
    }
    let mut problems = in_words(read, keyspaces, damaged, &Fate::Unread(unread))?;
    // Two copies of one damage, or one that lies in two runs, are one.
    let mut told = BTreeSet::new();
    problems.retain(|problem| told.insert((problem.place.clone(), problem.detail.clone())));
    Ok(problems)
}

/// What has become of damaged keys.
enum Fate<'u> {
    /// A repair could not bring them back.
    Lost { told: &'u BTreeSet<u64> },
    /// They are there, and these ranges can't be read.
    Unread(&'u Unread),
}

impl Fate<'_> {
    fn are(&self) -> &'static str {
        if matches!(self, Self::Lost { .. }) { "are lost" } else { "can't be read" }
    }

    fn may_be(&self) -> &'static str {
        if matches!(self, Self::Lost { .. }) { "may be lost" } else { "can't be read" }
    }
}

fn in_words<R: Read + ?Sized>(
    read: &R,
    keyspaces: &Keyspaces,
    damaged: &[DamagedKeys],
    fate: &Fate<'_>,
) -> Result<Vec<Problem>> {
    let all = Unread::default();
    let unread = if let Fate::Unread(unread) = fate { unread } else { &all };
    let inodes = damaged.iter().flat_map(|keys| {
        let blocks = keys.blocks.iter().filter_map(|(prefix, ..)| inode_of(prefix));
        let rows = keys.older.iter().filter_map(|key| inode_of(key));
        blocks.chain(rows)
    });
    let paths = FilePaths::of(read, keyspaces, &inodes.collect(), unread)?;
    let mut problems = Vec::new();
    for keys in damaged {
        if let Some(txn) = keys.txn {
            let detail = format!("some of what it has written in keyspace {} is lost", keys.keyspace);
            problems.push(problem(format!("transaction (or branch) {txn}"), detail));
            continue;
        }
        let known = match keys.keyspace.as_str() {
            "meta" => rows(&paths, keys, fate, &mut problems),
            "data" => blocks(&paths, keys, fate, &mut problems),
            "xattr" => attributes(&paths, keys, fate, &mut problems),
            _ => false,
        };
        if !known {
            plain(keys, fate, &mut problems);
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

fn gone(keys: &DamagedKeys, fate: &Fate<'_>) -> Option<String> {
    match keys.gone_max {
        Some(0) => None,
        Some(count) => Some(format!("up to {count} names (or rows of directories) {}", fate.are())),
        None => Some(format!("names (or rows of directories) {}", fate.may_be())),
    }
}

fn rows(paths: &FilePaths, keys: &DamagedKeys, fate: &Fate<'_>, problems: &mut Vec<Problem>) -> bool {
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
    if let Some(gone) = gone(keys, fate) {
        let (first, last) = (row_place(paths, &keys.first), row_place(paths, &keys.last));
        problems.push(problem(format!("between {first} and {last}"), gone));
    }
    true
}

fn blocks(paths: &FilePaths, keys: &DamagedKeys, fate: &Fate<'_>, problems: &mut Vec<Problem>) -> bool {
    for (prefix, first, count) in &keys.blocks {
        let Some(inode) = inode_of(prefix) else { continue };
        if matches!(fate, Fate::Lost { told } if told.contains(&inode)) {
            continue;
        }
        let (from, to) = (first * BLOCK_BYTES as u64, (first + count) * BLOCK_BYTES as u64);
        let hole = if matches!(fate, Fate::Lost { .. }) { ": a hole" } else { "" };
        problems.push(problem(paths.of_file(inode), format!("bytes {from}-{to} {}{hole}", fate.are())));
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
            let detail = match fate {
                Fate::Lost { .. } => "content of files with these numbers may be lost, or as it was earlier",
                Fate::Unread(_) => "content of files with these numbers can't be read",
            };
            problems.push(problem(format!("inodes {first} to {last}"), detail));
        }
    }
    true
}

fn attributes(paths: &FilePaths, keys: &DamagedKeys, fate: &Fate<'_>, problems: &mut Vec<Problem>) -> bool {
    for key in keys.older.iter().take(LISTED_MAX) {
        let Some((inode, name)) = key.split_first_chunk::<8>() else { continue };
        let place = paths.of_file(u64::from_be_bytes(*inode));
        let name = name.escape_ascii();
        problems.push(problem(place, format!("extended attribute {name} is as it was earlier")));
    }
    if keys.gone_max != Some(0)
        && let (Some(first), Some(last)) = (inode_of(&keys.first), inode_of(&keys.last))
    {
        problems.push(problem(
            format!("inodes {first} to {last}"),
            format!("extended attributes {}", fate.may_be()),
        ));
    }
    true
}

/// A keyspace of a user.
fn plain(keys: &DamagedKeys, fate: &Fate<'_>, problems: &mut Vec<Problem>) {
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
            problems
                .push(problem(place, format!("up to {count} keys from {first} to {last} {}", fate.are())));
        }
        None => problems.push(problem(place, format!("keys from {first} to {last} {}", fate.may_be()))),
    }
}
