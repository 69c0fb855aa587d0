//! Merging a branch: whether it still fits the main line, and its commit.
//!
//! Purpose: a branch took no locks while it was worked in. [`begin_merge`] opens it once more, as a
//! transaction that (1) locks all that the branch has changed, as if it did all of that now; (2) asks of each
//! record whether others changed it since the branch's snapshot, field by field, so that what commutes does
//! not stand in the way; (3) makes sure that the directories which the branch has moved, and those in which
//! it has changed something, still hang on the root. What comes of it is committed like every transaction.
//!
//! Why these three suffice. Every operation writes a record of all that it relies on, but for one thing:
//! entries are counted in their directory's row, which a removal deletes (so "created inside" meets
//! "removed"); links are counted in the file's row, exclusively; a file's size, flags and blocks are fields
//! of its row; the row of a file that is moved, linked or removed is written as a whole. Only that a
//! directory does not become its own ancestor is nowhere written down: two moves that make a cycle together
//! touch different rows; nor that no directory above was removed with all below it, there or here. (3) looks
//! for all of these. Numbers of inodes are given once for all views; orphans of a branch get to the main
//! line's reaper by the commit.
//!
//! Thread safety: as [`FileSystem`]; it waits for locks, so it is nothing for a worker.
//!
//! Invariant: from the first look to the commit the locks are held; a merge that fails has changed nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{Change, Changed, Keyspace, Records, Touch};
use kvfs_txn::{Admission, Fields, LockNameBuf, LockOwner, Mode, Owner, Refused, Rival, TxnTraits, Want};

use super::TxnView;
use super::branch::{BranchInfo, Opened};
use super::merge_trees::{each_change_by_others, place_of};
use super::paths::Paths;
use super::publish::each_change;
use super::undo::note_of;
use crate::schema::{
    DETACHED_INODE, Header, Placement, ROOT_INODE, Row, RowPatch, TOUCH_COUNTERS, TOUCH_PARENT,
};
use crate::{FileSystem, FileType, FsError, Result};

/// Conflicts that a refusal names.
pub(super) const CONFLICTS_MAX: usize = 100;

/// Longest wait for the lock of a transaction.
pub(super) const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

/// How a merge takes its locks: none where it has all of what it is brought into to itself.
#[derive(Clone, Copy)]
pub(super) struct Claims<'f>(Option<(&'f Admission, &'f LockOwner)>);

impl Claims<'_> {
    /// Locks all names, which may mean to wait for other transactions.
    pub(super) fn claim(self, wants: &[(LockNameBuf, Mode)]) -> Result<()> {
        let (false, Some((admission, owner))) = (wants.is_empty(), self.0) else { return Ok(()) };
        let wants: Vec<Want<'_>> =
            wants.iter().map(|(name, mode)| Want { name: name.as_name(), mode: *mode }).collect();
        let mut again = None;
        loop {
            match admission.try_lock(owner, &wants, again.as_ref()) {
                Ok(()) => return Ok(()),
                Err(Refused::Wait(ticket)) => {
                    ticket.wait();
                    again = Some(ticket);
                }
                Err(refused) => return Err(refused.into()),
            }
        }
    }
}

/// What a merge has found so far.
struct Merge<'f> {
    fs: &'f FileSystem,
    view: &'f TxnView,
    claims: Claims<'f>,
    /// Directories that were there before the branch, and where it has moved them.
    moved: BTreeMap<u64, u64>,
    conflicts: Vec<String>,
    /// Conflicts beyond those, which are counted only.
    more: u64,
}

type Wants = Vec<(LockNameBuf, Mode)>;

/// Opens the branch to be merged, this one, whatever has its name by now, for process `pid`: everything that
/// it changed is locked, and fits the main line. Commit the view like that of a transaction (freeze it, ...);
/// when it is dropped instead, or its commit fails, the branch is as it was. Waits up to a second for a
/// transaction's lock. O(what the branch changed), and locks on all of it that was there before.
///
/// # Errors
/// [`FsError::MergeRefused`] with what is in the way; `Canceled`: a transaction is, try again later;
/// `HasBranches`; a branch of a branch ([`crate::merge_into_parent`]); as [`FileSystem::open_branch`].
pub fn begin_merge(main: &Arc<FileSystem>, branch: &BranchInfo, pid: u32) -> Result<Arc<FileSystem>> {
    let mut note = None;
    let opened = Opened::resume(main, branch, |id, uid| {
        let owner = Owner { uid, pid, name: format!("merge of branch {}", branch.name) };
        note = Some(note_of(&owner));
        let traits = TxnTraits {
            priority: 0,
            timeout: None,
            idle_max: None,
            lock_wait_max: Some(LOCK_WAIT_MAX),
            owner,
        };
        Some(main.shared.admission.begin(id, traits))
    })?;
    let merging = opened.into_view(main)?;
    if let (Some(view), Some(note)) = (merging.origin.txn(), note) {
        view.txn.describe(note);
    }
    main.branches().expect_mergeable(&merging)?;
    check_directory(main, &merging)?;
    let view = merging.expect_txn()?;
    claim_and_validate(&merging, Claims(Some((&merging.shared.admission, view.lock_owner()?))))?;
    Ok(merging)
}

/// Refuses a branch of a directory that is not there any more.
///
/// # Errors
/// `DirectoryGone`; store errors.
pub(super) fn check_directory(main: &FileSystem, branch: &FileSystem) -> Result<()> {
    let record = branch.origin.txn().and_then(|view| view.branch.get());
    let Some(root) = record.and_then(|record| record.root.as_ref()) else { return Ok(()) };
    match main.branches().place_now(root)? {
        Some(_) => Ok(()),
        None => Err(FsError::DirectoryGone { path: String::from_utf8_lossy(&root.path).into_owned() }),
    }
}

/// Locks all that a branch has changed, and makes sure that it fits what it is brought into.
///
/// # Errors
/// As [`begin_merge`].
fn claim_and_validate(fs: &FileSystem, claims: Claims<'_>) -> Result<()> {
    let view = fs.expect_txn()?;
    let mut merge = Merge { fs, view, claims, moved: BTreeMap::new(), conflicts: Vec::new(), more: 0 };
    progress::stage("locking what the branch has changed", Unit::Items, 0);
    merge.claim_all()?;
    progress::stage("looking for what is in the way", Unit::Items, 0);
    merge.validate_all()?;
    merge.validate_places()?;
    merge.validate_detached()?;
    merge.validate_tree()?;
    let Merge { conflicts, more, .. } = merge;
    if conflicts.is_empty() { Ok(()) } else { Err(FsError::MergeRefused { conflicts, more }) }
}

/// As [`begin_merge`], of a branch of a branch, over a view of that one which nothing else uses.
///
/// # Errors
/// [`FsError::MergeRefused`]; store errors.
pub(super) fn validate_alone(fs: &FileSystem) -> Result<()> {
    claim_and_validate(fs, Claims(None))
}

impl Merge<'_> {
    fn is_own(&self, inode: u64) -> bool {
        self.view.created.contains(inode)
    }

    // --- what is locked ---

    fn claim_all(&mut self) -> Result<()> {
        let spaces = self.fs.keyspaces;
        each_change(self.view.changes(spaces.meta)?, |change| {
            let wants = self.row_wants(&change)?;
            self.claim(&wants)
        })?;
        each_change(self.view.changes(spaces.data)?, |change| self.claim(&self.block_wants(&change)))?;
        each_change(self.view.changes(spaces.xattr)?, |change| self.claim(&self.xattr_wants(&change)))?;
        for info in self.fs.shared.keyspaces.user_keyspaces() {
            each_change(self.view.changes(info.keyspace)?, |change| {
                self.claim(&[(keys_name(info.keyspace, &change), Mode::Exclusive)])
            })?;
        }
        Ok(())
    }

    fn claim(&self, wants: &[(LockNameBuf, Mode)]) -> Result<()> {
        self.claims.claim(wants)
    }

    /// What an operation that makes this change needs of what the main line has.
    fn row_wants(&mut self, change: &Change) -> Result<Wants> {
        let (Change::Put { key, .. } | Change::Delete { key } | Change::Merge { key, .. }) = change else {
            return Ok(Vec::new());
        };
        let Some((inode, name)) = Placement::parse_key(key) else { return Ok(Vec::new()) };
        let mut wants = Wants::new();
        if !name.is_empty() && !self.is_own(inode) {
            let name = Bytes::copy_from_slice(name);
            wants.push((LockNameBuf::Entry { directory: inode, name }, Mode::Exclusive));
        }
        // An operation that changes which inode this is changes the row, which is noticed after the locks.
        let Some(bytes) = self.view.main.rows().get(key)? else { return Ok(wants) };
        let Row::Inode(header, _) = Row::decode(key, &bytes)? else { return Ok(wants) };
        if header.kind == FileType::Directory {
            self.directory_wants(&header, change, &mut wants)?;
        } else {
            wants.push((all_attributes(header.inode), Mode::Exclusive));
            let has_content = match change {
                Change::Merge { operands, .. } => {
                    operands.iter().any(|operand| decode(key, operand).is_ok_and(|p| p.content.is_some()))
                }
                _ => true,
            };
            if has_content {
                let blocks = LockNameBuf::Blocks { inode: header.inode, first: 0, end: u64::MAX };
                wants.push((blocks, Mode::Exclusive));
            }
        }
        Ok(wants)
    }

    fn directory_wants(&mut self, header: &Header, change: &Change, wants: &mut Wants) -> Result<()> {
        let directory = header.inode;
        let Change::Merge { key, operands } = change else {
            wants.push((all_attributes(directory), Mode::Exclusive));
            wants.push((LockNameBuf::Counters { directory }, Mode::Exclusive));
            wants.push((LockNameBuf::Identity { directory }, Mode::Exclusive));
            return Ok(());
        };
        let mut touch = Touch::default();
        for operand in operands {
            let patch = decode(key, operand)?;
            touch = touch.union(patch.touch());
            if let Some(parent) = patch.parent {
                self.moved.insert(directory, parent);
            }
        }
        if touch.exclusive & TOUCH_PARENT.exclusive != 0 {
            wants.push((LockNameBuf::Identity { directory }, Mode::Exclusive));
        }
        if touch.exclusive & !TOUCH_PARENT.exclusive != 0 {
            wants.push((all_attributes(directory), Mode::Exclusive));
        }
        let mode = if touch.exclusive & TOUCH_COUNTERS == 0 { Mode::Increment } else { Mode::Exclusive };
        wants.push((LockNameBuf::Counters { directory }, mode));
        Ok(())
    }

    fn block_wants(&self, change: &Change) -> Wants {
        let records = records_of(change, |_| Touch::ALL);
        let of_key = |key: &[u8]| Some((number(key)?, number(key.get(8..)?)?));
        let range = match records {
            Records::Blocks { prefix, first, count } => {
                number(&prefix).map(|inode| (inode, first, first.saturating_add(count)))
            }
            Records::Key { key, .. } => {
                of_key(&key).map(|(inode, block)| (inode, block, block.saturating_add(1)))
            }
            Records::Range(range) => of_key(&range.start).map(|(inode, first)| {
                let end = range.end.as_deref().and_then(of_key);
                (inode, first, end.filter(|&(other, _)| other == inode).map_or(u64::MAX, |(_, end)| end))
            }),
        };
        let shared = range.filter(|&(inode, ..)| !self.is_own(inode));
        let want = shared.map(|(inode, first, end)| LockNameBuf::Blocks { inode, first, end });
        want.into_iter().map(|name| (name, Mode::Exclusive)).collect()
    }

    fn xattr_wants(&self, change: &Change) -> Wants {
        let inode = number(key_of(change)).filter(|&inode| !self.is_own(inode));
        let name = inode.map(|inode| LockNameBuf::Attributes { inode, fields: Fields::XATTRS });
        name.into_iter().map(|name| (name, Mode::Exclusive)).collect()
    }

    // --- what is compared ---

    fn validate_all(&mut self) -> Result<()> {
        let spaces = self.fs.keyspaces;
        let own = [spaces.meta, spaces.data, spaces.xattr, spaces.orphans];
        let users = self.fs.shared.keyspaces.user_keyspaces().map(|info| info.keyspace);
        let (mut places, mut contents) = (BTreeSet::new(), BTreeMap::new());
        for keyspace in own.into_iter().chain(users) {
            let touch = |change: &Change| match change {
                Change::Merge { key, operands } => {
                    operands.iter().fold(Touch::default(), |touch, operand| {
                        touch.union(decode(key, operand).map_or(Touch::ALL, |patch| patch.touch()))
                    })
                }
                _ => Touch::ALL,
            };
            each_change(self.view.changes(keyspace)?, |change| {
                let records = [records_of(&change, touch)];
                if let Some(changed) = self.view.changed_by_others(keyspace, &records)? {
                    let name = self.view.name_of(&changed);
                    if let LockNameBuf::Blocks { inode, .. } = name {
                        if contents.contains_key(&inode) || contents.len() < CONFLICTS_MAX {
                            contents.entry(inode).or_insert((name, changed));
                        } else {
                            self.more += 1;
                        }
                    } else if self.is_full() || places.insert(name.to_string()) {
                        self.note(|merge| merge.describe_change(&name, &changed))?;
                    }
                }
                Ok(())
            })?;
        }
        self.note_contents(&contents)
    }

    /// Notes changes of the content of files, whose places are those of rows that the branch has changed,
    /// too.
    fn note_contents(&mut self, contents: &BTreeMap<u64, (LockNameBuf, Changed)>) -> Result<()> {
        if contents.is_empty() {
            return Ok(());
        }
        let mut places = BTreeMap::new();
        each_change(self.view.changes(self.fs.keyspaces.meta)?, |change| {
            let key = key_of(&change);
            let place = Placement::parse_key(key).filter(|(_, name)| !name.is_empty());
            if let (Some((directory, name)), Some(bytes)) = (place, self.fs.rows().get(key)?) {
                let inode = Row::decode(key, &bytes)?.inode();
                if contents.contains_key(&inode) {
                    places.insert(inode, (directory, Bytes::copy_from_slice(name)));
                }
            }
            Ok(())
        })?;
        for (inode, (name, changed)) in contents {
            self.note(|merge| {
                let Some(place) = places.get(inode) else { return merge.describe_change(name, changed) };
                let path = Paths::new(merge.fs).path(place)?;
                let place = format!("the content of {}", String::from_utf8_lossy(&path));
                Ok(merge.view.tell_outside(&place, changed))
            })?;
        }
        Ok(())
    }

    /// What the branch has changed must not be in a tree that was removed as a whole: nothing in it was
    /// touched by that.
    fn validate_places(&mut self) -> Result<()> {
        let (view, mut main, mut seen) = (self.view, Paths::new(&*self.view.main), BTreeSet::new());
        each_change(view.changes(self.fs.keyspaces.meta)?, |change| {
            let place = Placement::parse_key(key_of(&change));
            // What the branch has removed itself is in no way of it.
            let is_asked = |directory: u64| directory != DETACHED_INODE && !self.is_own(directory);
            let Some((directory, name)) = place.filter(|(directory, _)| is_asked(*directory)) else {
                return Ok(());
            };
            if main.detached_tree(directory)?.is_none() || !seen.insert(directory) {
                return Ok(());
            }
            let place = (directory, Bytes::copy_from_slice(name));
            self.note(|merge| {
                let path = Paths::new(merge.fs).path(&place)?;
                Ok(format!("{} was removed outside of the branch", String::from_utf8_lossy(&path)))
            })
        })
    }

    /// What others have changed in trees that the branch has removed as a whole, which is locked by this.
    fn validate_detached(&mut self) -> Result<()> {
        let root = self.fs.nodes.root().0;
        each_change_by_others((self.fs, self.view), self.claims, |changed| {
            self.note(|merge| {
                let path = match place_of(changed) {
                    Some(place) => Paths::below(&*merge.view.main, root).path(&place)?,
                    None => b"what was removed".to_vec(),
                };
                Ok(merge.view.tell_outside(&String::from_utf8_lossy(&path), changed))
            })
        })
    }

    /// There are as many as a refusal names.
    fn is_full(&self) -> bool {
        self.conflicts.len() >= CONFLICTS_MAX
    }

    fn note(&mut self, describe: impl FnOnce(&Self) -> Result<String>) -> Result<()> {
        if self.is_full() {
            self.more += 1;
        } else {
            let conflict = describe(self)?;
            self.conflicts.push(conflict);
        }
        Ok(())
    }

    fn path_of(&self, directory: u64) -> Result<String> {
        let path = Paths::new(self.fs).path(&(directory, Bytes::new()))?;
        Ok(String::from_utf8_lossy(&path).into_owned())
    }

    fn describe_change(&self, name: &LockNameBuf, changed: &Changed) -> Result<String> {
        let mut paths = Paths::new(self.fs);
        let mut path = |directory: u64, name: &[u8]| -> Result<String> {
            let path = paths.path(&(directory, Bytes::copy_from_slice(name)))?;
            Ok(String::from_utf8_lossy(&path).into_owned())
        };
        let place = match name {
            LockNameBuf::Entry { directory, name } => path(*directory, name)?,
            LockNameBuf::Attributes { inode, .. } => path(*inode, b"")?,
            other => self.fs.lock_words().describe(other),
        };
        Ok(self.view.tell_outside(&place, changed))
    }

    /// Every directory that the branch has moved must still lead to the root, by where it and those above it
    /// are after the merge. Those that the branch has not moved are where the main line has them now, and are
    /// kept there.
    fn validate_tree(&mut self) -> Result<()> {
        for (directory, target) in self.moved.clone() {
            let mut seen = BTreeSet::from([directory]);
            let (mut below, mut at) = (directory, target);
            while at != ROOT_INODE {
                if at == DETACHED_INODE {
                    // By the branch itself, with all that it has moved there.
                    if self.moved.get(&below) == Some(&at) {
                        break;
                    }
                    self.note(|merge| {
                        Ok(format!("what {} was moved into was removed", merge.path_of(directory)?))
                    })?;
                    break;
                }
                if !seen.insert(at) {
                    self.note(|merge| {
                        let path = merge.path_of(directory)?;
                        Ok(format!("{path} would be inside of itself, as directories were moved outside"))
                    })?;
                    break;
                }
                let Some(above) = self.parent_after(at)? else {
                    self.note(|merge| {
                        Ok(format!("what {} was moved into is gone", merge.path_of(directory)?))
                    })?;
                    break;
                };
                (below, at) = (at, above);
            }
        }
        Ok(())
    }

    /// Where a directory is after the merge.
    fn parent_after(&self, directory: u64) -> Result<Option<u64>> {
        if let Some(&parent) = self.moved.get(&directory) {
            return Ok(Some(parent));
        }
        let own_key = Placement::own_subtree(directory).own_key();
        self.claim(&[(LockNameBuf::Identity { directory }, Mode::Shared)])?;
        // Numbers don't tell whether the branch or the main line made it: both go on with the same ones.
        let row = match self.view.main.rows().get(&own_key)? {
            Some(row) => Some(row),
            None => self.fs.rows().get(&own_key)?,
        };
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Row::decode_own(directory, &row)?.0.parent))
    }
}

/// How a refusal tells of a change, and of the party that made it, as far as it is known.
pub(super) fn changed_outside(place: &str, author: Option<Rival>) -> String {
    let by =
        author.map_or_else(|| "outside of any transaction that is kept".to_owned(), |by| format!("by {by}"));
    format!("{place} was changed outside of the branch, {by}")
}

pub(super) fn all_attributes(inode: u64) -> LockNameBuf {
    LockNameBuf::Attributes { inode, fields: Fields::ALL }
}

fn decode(key: &[u8], operand: &[u8]) -> Result<RowPatch> {
    let decoded = RowPatch::decode(operand).map(|(_, patch)| patch);
    decoded.ok_or_else(|| FsError::corrupt(format!("row {}", key.escape_ascii()), "a change that is none"))
}

fn number(key: &[u8]) -> Option<u64> {
    key.first_chunk().map(|chunk| u64::from_be_bytes(*chunk))
}

/// The key of a change, or where it begins.
fn key_of(change: &Change) -> &Bytes {
    match change {
        Change::Put { key, .. } | Change::Delete { key } | Change::Merge { key, .. } => key,
        Change::DeleteRange { start, .. } => start,
        Change::Blocks { prefix, .. } => prefix,
    }
}

/// The records that a change is about.
fn records_of(change: &Change, touch: impl Fn(&Change) -> Touch) -> Records {
    match change {
        Change::Put { key, .. } | Change::Delete { key } | Change::Merge { key, .. } => {
            Records::Key { key: key.clone(), touch: touch(change) }
        }
        Change::DeleteRange { start, end } => {
            Records::Range(kvfs_store::KeyRange::new(start.clone(), end.clone()))
        }
        Change::Blocks { prefix, first, count } => {
            Records::Blocks { prefix: prefix.clone(), first: *first, count: *count }
        }
    }
}

fn keys_name(keyspace: Keyspace, change: &Change) -> LockNameBuf {
    let (start, end) = match change {
        Change::DeleteRange { start, end } => (start.clone(), end.clone()),
        other => (key_of(other).clone(), [&key_of(other)[..], b"\0"].concat().into()),
    };
    LockNameBuf::Keys { keyspace, start, end: Some(end) }
}
