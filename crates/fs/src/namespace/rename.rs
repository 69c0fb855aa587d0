//! Renaming: one row moves, never a tree.
//!
//! A directory that gets another parent must not become its own ancestor, also when several move at once:
//! the operation holds the identity of the moved directory exclusively, and of the target and all its
//! ancestors shared, so that none of them can move meanwhile.

use std::collections::HashSet;

use kvfs_store::{Batch, Position};
use kvfs_txn::{Fields, LockName, Want};

use super::create::{Maker, New};
use super::remove::removal_wants;
use super::{Resolver, entry_wants, row_wants};
use crate::file::Contents;
use crate::node::{DirectoryPart, Node, Pin};
use crate::orphan::Orphans;
use crate::quota::{Gate, expect_same_project};
use crate::schema::{DETACHED_INODE, Header, Keyspaces, Row, RowPatch, check_name, encode_row};
use crate::view::{Names, Origin};
use crate::{Caller, FileSystem, FileType, FsError, NodeId, RenameMode, Result};

/// A name, the directory that it is in, and what is there.
struct Side<'a, 't> {
    parent: &'a Pin<'t>,
    directory: &'a DirectoryPart,
    name: &'a [u8],
}

/// What is under a name.
struct Found<'t> {
    node: Pin<'t>,
    row: bytes::Bytes,
}

impl Found<'_> {
    fn is_directory(&self) -> bool {
        self.node.kind == FileType::Directory
    }

    /// Whether the dentry row holds the attributes.
    fn holds_attributes(&self) -> bool {
        matches!(Row::parse(&self.row), Some(Row::Inode(..)))
    }
}

/// How what has a name is moved.
#[derive(Clone, Copy)]
struct Move {
    mode: RenameMode,
    /// What is to be under the names.
    found: Option<FoundByNames>,
    /// It may go into another project.
    crosses_projects: bool,
}

/// What a move does to the inode.
enum Moved {
    /// Its row went along.
    Row(Header),
    /// Its row is elsewhere and was patched.
    Patched(RowPatch),
}

/// Finds what has a name in a view, and moves it.
struct Mover<'v> {
    origin: &'v Origin,
    keyspaces: Keyspaces,
    resolver: Resolver<'v>,
    contents: Contents<'v>,
    orphans: Orphans<'v>,
    maker: Maker<'v>,
}

impl FileSystem {
    /// Renames or swaps, or leaves a whiteout. One batch; a tree's size does not matter. O(depth) for a
    /// directory that gets another parent.
    ///
    /// # Errors
    /// `NotFound`, `Exists` (`NoReplace`), `QuotaExceeded` (a whiteout), `NotEmpty`, `IsDirectory`,
    /// `NotDirectory`, `Invalid` (a directory into itself), `OtherProject`, …
    pub fn rename(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        rename_in(self, caller, (parent, name), (new_parent, new_name), mode, None)
    }
}

/// What a caller has found under the two names of a rename, and may move and replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundByNames {
    /// Under the old name.
    pub moved: NodeId,
    /// Under the new one, if there was anything.
    pub replaced: Option<NodeId>,
}

/// As [`FileSystem::rename`], of what a caller has found under both names.
///
/// # Errors
/// `NameChanged`; as [`FileSystem::rename`].
pub fn rename_found(
    fs: &FileSystem,
    caller: &Caller,
    old: (NodeId, &[u8]),
    new: (NodeId, &[u8]),
    mode: RenameMode,
    found: FoundByNames,
) -> Result<()> {
    rename_in(fs, caller, old, new, mode, Some(found))
}

fn rename_in(
    fs: &FileSystem,
    caller: &Caller,
    (parent, name): (NodeId, &[u8]),
    (new_parent, new_name): (NodeId, &[u8]),
    mode: RenameMode,
    found: Option<FoundByNames>,
) -> Result<()> {
    check_name(name)?;
    check_name(new_name)?;
    fs.locker().check_writable()?;
    let (source_pin, source_part) = fs.locker().pin_directory(parent)?;
    let (target_pin, target_part) = fs.locker().pin_directory(new_parent)?;
    let source = Side { parent: &source_pin, directory: &source_part, name };
    let target = Side { parent: &target_pin, directory: &target_part, name: new_name };
    let how = Move { mode, found, crosses_projects: fs.origin.restores() };
    move_between(fs, caller, &source, &target, how)
}

/// Takes what has a name out of the tree, with all that is below it, and puts it under `name_there` into the
/// directory of detached trees. One batch; its size does not matter.
///
/// # Errors
/// As [`FileSystem::rename`].
pub(super) fn detach(
    fs: &FileSystem,
    caller: &Caller,
    (parent, name): (&Pin<'_>, &[u8]),
    (trees, name_there): (&Pin<'_>, &[u8]),
) -> Result<()> {
    let (Some(source), Some(target)) = (&parent.directory, &trees.directory) else {
        return Err(FsError::NotDirectory);
    };
    let source = Side { parent, directory: source, name };
    let target = Side { parent: trees, directory: target, name: name_there };
    let how = Move { mode: RenameMode::NoReplace, found: None, crosses_projects: true };
    move_between(fs, caller, &source, &target, how)
}

/// See [`FileSystem::rename`].
fn move_between(
    fs: &FileSystem,
    caller: &Caller,
    source: &Side<'_, '_>,
    target: &Side<'_, '_>,
    Move { mode, found, crosses_projects }: Move,
) -> Result<()> {
    let is_elsewhere = source.parent.inode != target.parent.inode;
    let passage = (is_elsewhere && fs.origin.is_main()).then(|| fs.shared.detached.moves.begin());
    let gate = fs.gate();
    let mut wants = entry_wants(source.parent.inode, source.name).to_vec();
    wants.extend(entry_wants(target.parent.inode, target.name));
    let mut guard = fs.locker().latch(caller, &wants)?;
    if source.parent.is_orphan() {
        return Err(FsError::NotFound);
    }
    let mover = Mover::new(fs);
    mover.resolver.expect_there(&fs.origin, caller, target.parent)?;
    let (moving, replaced) = mover.find_both(source, target, mode)?;
    let inode = |found: &Found<'_>| NodeId(found.node.inode);
    let now = FoundByNames { moved: inode(&moving), replaced: replaced.as_ref().map(inode) };
    if found.is_some_and(|found| found != now) {
        return Err(FsError::NameChanged);
    }
    if replaced.as_ref().is_some_and(|replaced| replaced.node.inode == moving.node.inode) {
        return Ok(());
    }
    mover.latch_both(&mut guard, source, target, &moving, replaced.as_ref(), mode)?;
    if let Some(passage) = &passage
        && [Some(&moving), replaced.as_ref()].into_iter().flatten().any(Found::is_directory)
    {
        passage.is_of_directory();
    }
    if is_elsewhere && !crosses_projects {
        expect_same_project(&target.parent.header(), &moving.node.header())?;
        if let (RenameMode::Exchange, Some(other)) = (mode, &replaced) {
            expect_same_project(&source.parent.header(), &other.node.header())?;
        }
    }
    match (mode, replaced) {
        (RenameMode::Exchange, Some(other)) => mover.exchange(&mut guard, (source, target), &moving, &other),
        (_, replaced) => {
            let whiteout = mode.leaves_whiteout().then_some(caller);
            mover.move_over(&gate, &mut guard, (source, target), &moving, replaced.as_ref(), whiteout)
        }
    }
}

impl<'v> Mover<'v> {
    fn new(fs: &'v FileSystem) -> Self {
        let (origin, keyspaces) = (&fs.origin, fs.keyspaces);
        Self {
            origin,
            keyspaces,
            resolver: fs.resolver(),
            contents: Contents::new(fs),
            orphans: fs.orphans(),
            maker: Maker::new(fs),
        }
    }

    fn find_both(
        &self,
        source: &Side<'_, '_>,
        target: &Side<'_, '_>,
        mode: RenameMode,
    ) -> Result<(Found<'v>, Option<Found<'v>>)> {
        let (node, row) = self.resolver.resolve_row(source.parent, source.name)?;
        let moving = Found { node, row };
        let replaced = match self.resolver.resolve_row(target.parent, target.name) {
            Ok((node, row)) => Some(Found { node, row }),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        match (mode, &replaced) {
            (RenameMode::Exchange, None) => Err(FsError::NotFound),
            (RenameMode::Exchange, Some(_)) => Ok((moving, replaced)),
            (_, Some(_)) if !mode.replaces() => Err(FsError::Exists),
            (_, Some(other)) if other.node.inode != moving.node.inode => {
                match (moving.is_directory(), other.is_directory()) {
                    (true, false) => Err(FsError::NotDirectory),
                    (false, true) => Err(FsError::IsDirectory),
                    _ => Ok((moving, replaced)),
                }
            }
            _ => Ok((moving, replaced)),
        }
    }

    /// Takes the names that finding both sides led to, and checks that the tree stays one.
    fn latch_both(
        &self,
        names: &mut Names<'_>,
        source: &Side<'_, '_>,
        target: &Side<'_, '_>,
        moving: &Found<'_>,
        replaced: Option<&Found<'_>>,
        mode: RenameMode,
    ) -> Result<()> {
        let mut wants = move_wants(moving);
        if let Some(other) = replaced {
            wants.extend(if mode == RenameMode::Exchange {
                move_wants(other)
            } else {
                removal_wants(&other.node)
            });
        }
        names.try_extend(&wants)?;
        if source.parent.inode == target.parent.inode {
            return Ok(());
        }
        if moving.is_directory() {
            self.latch_ancestry(names, &moving.node, (source.parent, target.parent))?;
        }
        match replaced {
            Some(other) if mode == RenameMode::Exchange && other.is_directory() => {
                self.latch_ancestry(names, &other.node, (target.parent, source.parent))
            }
            _ => Ok(()),
        }
    }

    /// Pins down that `moved`, which is in `source`, is no ancestor of `target`.
    fn latch_ancestry(
        &self,
        names: &mut Names<'_>,
        moved: &Node,
        (source, target): (&Pin<'_>, &Pin<'_>),
    ) -> Result<()> {
        names.try_extend(&[Want::exclusive(LockName::Identity { directory: moved.inode })])?;
        if let Some(view) = self.origin.txn().filter(|_| !self.origin.restores())
            && self.resolver.ancestors(source)?.0.contains(&DETACHED_INODE)
        {
            view.expect_attached(moved.inode)?;
        }
        let mut latched: HashSet<u64> = HashSet::new();
        loop {
            let (ancestors, ended) = self.resolver.ancestors(target)?;
            if ancestors.contains(&moved.inode) {
                return Err(FsError::Invalid("a directory can't be moved into itself"));
            }
            // Reading the path and holding it are two steps: hold, then read again until it is the same.
            let missing: Vec<Want<'_>> = ancestors
                .iter()
                .filter(|ancestor| !latched.contains(ancestor))
                .map(|&directory| Want::shared(LockName::Identity { directory }))
                .collect();
            if missing.is_empty() {
                ended?;
                let Some(view) = self.origin.txn() else { return Ok(()) };
                // A transaction reads its snapshot; the tree must stay one in the newest state.
                return view.expect_unmoved(self.keyspaces.meta, &ancestors);
            }
            names.try_extend(&missing)?;
            latched.extend(ancestors);
        }
    }

    /// Moves to a name, in the place of what has it.
    fn move_over(
        &self,
        gate: &Gate<'_>,
        names: &mut Names<'_>,
        (source, target): (&Side<'_, '_>, &Side<'_, '_>),
        moving: &Found<'_>,
        replaced: Option<&Found<'_>>,
        whiteout: Option<&Caller>,
    ) -> Result<()> {
        let mut batch = Batch::new();
        let removal = match replaced {
            Some(other) => Some(self.orphans.stage_removal(gate, &mut batch, &other.node, names)?),
            None => None,
        };
        let old_key = source.directory.placement.key(source.name);
        let whiteout = if let Some(caller) = whiteout {
            let (mut header, inherited) = self.maker.new_header(caller, source.parent, &New::WHITEOUT)?;
            inherited.stage(self.keyspaces.xattr, &mut header, &mut batch);
            batch.put(self.keyspaces.meta, old_key, encode_row(&header, b""));
            Some((caller, header))
        } else {
            batch.delete(self.keyspaces.meta, old_key);
            None
        };
        let moved = self.stage_move(&mut batch, moving, target, names)?;
        let subdirectories = i32::from(moving.is_directory());
        let subdirectories_replaced = replaced.map_or(0, |other| i32::from(other.is_directory()));
        let entries = i64::from(replaced.is_none());
        let entries_left = if whiteout.is_some() { 0 } else { -1 };
        let changes = if source.parent.inode == target.parent.inode {
            vec![(source, names.counted(source.parent, entries + entries_left, -subdirectories_replaced)?)]
        } else {
            vec![
                (source, names.counted(source.parent, entries_left, -subdirectories)?),
                (target, names.counted(target.parent, entries, subdirectories - subdirectories_replaced)?),
            ]
        };
        let position = self.apply_with_counters(batch, &changes, |batch| match &whiteout {
            Some((caller, header)) => gate.apply_counted(caller, batch, None, Some(header)),
            None => self.origin.apply(batch),
        })?;
        if let (Some(other), Some(removal)) = (replaced, removal) {
            removal.tell(&other.node, position);
        }
        finish_move(moving, moved, target, position);
        Ok(())
    }

    /// Swaps what is under two names.
    fn exchange(
        &self,
        names: &mut Names<'_>,
        (source, target): (&Side<'_, '_>, &Side<'_, '_>),
        moving: &Found<'_>,
        other: &Found<'_>,
    ) -> Result<()> {
        let mut batch = Batch::new();
        let moved = self.stage_move(&mut batch, moving, target, names)?;
        let moved_back = self.stage_move(&mut batch, other, source, names)?;
        let subdirectories = i32::from(other.is_directory()) - i32::from(moving.is_directory());
        let changes = if source.parent.inode == target.parent.inode {
            vec![(source, names.counted(source.parent, 0, 0)?)]
        } else {
            vec![
                (source, names.counted(source.parent, 0, subdirectories)?),
                (target, names.counted(target.parent, 0, -subdirectories)?),
            ]
        };
        let position = self.apply_with_counters(batch, &changes, |batch| self.origin.apply(batch))?;
        finish_move(moving, moved, target, position);
        finish_move(other, moved_back, source, position);
        Ok(())
    }

    /// Applies the batch together with changes of directories, and tells their nodes.
    fn apply_with_counters(
        &self,
        mut batch: Batch,
        changes: &[(&Side<'_, '_>, RowPatch)],
        apply: impl FnOnce(Batch) -> Result<Position>,
    ) -> Result<Position> {
        for (side, patch) in changes {
            let key = side.directory.placement.own_key();
            batch.merge(self.keyspaces.meta, key, patch.encode(side.parent.inode));
        }
        let position = apply(batch)?;
        for (side, patch) in changes {
            side.parent.update(patch, position);
        }
        Ok(position)
    }

    /// Adds the row under its new name to the batch. The latches of [`move_wants`] are held.
    fn stage_move(
        &self,
        batch: &mut Batch,
        moving: &Found<'_>,
        to: &Side<'_, '_>,
        names: &mut Names<'_>,
    ) -> Result<Moved> {
        let meta = self.keyspaces.meta;
        let new_key = to.directory.placement.key(to.name);
        let mut patch = names.changed(&moving.node)?;
        if moving.holds_attributes() {
            let mut header = moving.node.header();
            patch.apply(&mut header);
            batch.put(meta, new_key, encode_row(&header, &self.contents.inline_content(&moving.node)?));
            return Ok(Moved::Row(header));
        }
        batch.put(meta, new_key, moving.row.clone());
        if moving.is_directory() {
            patch.parent = Some(to.parent.inode);
        }
        let (keyspace, own_key) = moving.node.row_address(&self.keyspaces);
        batch.merge(keyspace, own_key, patch.encode(moving.node.inode));
        Ok(Moved::Patched(patch))
    }
}

/// Tells the node what the batch did.
fn finish_move(moving: &Found<'_>, moved: Moved, to: &Side<'_, '_>, position: Position) {
    let is_named_by_entry = match moved {
        Moved::Row(header) => {
            let mut state = moving.node.state();
            state.header = header;
            state.touched(position);
            true
        }
        Moved::Patched(patch) => {
            moving.node.update(&patch, position);
            moving.is_directory()
        }
    };
    if is_named_by_entry {
        moving.node.relocate(to.parent.entry(to.name));
    }
}

/// What moving a name needs of the inode: all that its dentry row holds, and the change time.
fn move_wants(moving: &Found<'_>) -> Vec<Want<'static>> {
    let inode = moving.node.inode;
    if moving.holds_attributes() {
        return row_wants(inode).to_vec();
    }
    let mut wants = vec![Want::increment(LockName::Attributes { inode, fields: Fields::TIMES })];
    if moving.is_directory() {
        wants.push(Want::increment(LockName::Counters { directory: inode }));
    }
    wants
}
