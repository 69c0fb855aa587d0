//! Projects: trees whose content is counted together.
//!
//! Purpose: a file or directory may have a project, which is a number that its usage counts for as for its
//! owner. A directory may hand it down: what is made in it gets the same, directories with the handing down.
//! Into such a directory nothing of another project is moved or linked, so that nothing escapes the count.
//!
//! Thread safety: as [`FileSystem`]. Invariants: a change of a project excludes, by names and by the fields
//! of the row, changes of space of the same inode, and entries that come into the same directory; the
//! superblock record tells of projects before the first row does.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{BLOCK_BYTES, Batch};
use kvfs_txn::{Fields, LockName, Want};

use super::count::each_header;
use super::table::QuotaCheck;
use super::{Limits, QuotaKind, Usage};
use crate::node::Node;
use crate::schema::{Header, RowFlags, RowPatch};
use crate::view::Paths;
use crate::{Caller, FileSystem, FileType, FsError, NodeId, Result, StatFs};

/// What a file or directory is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Project {
    /// Its number; 0: none.
    pub id: u32,
    /// Of a directory: what is made in it gets the same.
    pub hands_down: bool,
}

impl Project {
    /// The trees that belong to projects: number and path of each directory that hands down another project
    /// than the one above it; by number. O(rows), and memory for the directories of projects.
    ///
    /// # Errors
    /// Store errors.
    pub fn trees(fs: &Arc<FileSystem>) -> Result<Vec<(u32, Vec<u8>)>> {
        let view = fs.view_of(fs.store.snapshot()?)?;
        let mut directories: HashMap<u64, (u32, u64)> = HashMap::new();
        progress::stage("looking for projects", Unit::Items, 0);
        each_header(view.origin.read(), &view.keyspaces, &|_| {}, |header| {
            if header.project().hands_down && header.nlink > 0 {
                directories.insert(header.inode, (header.project, header.parent));
            }
        })?;
        let mut paths = Paths::new(&*view);
        let mut trees = Vec::new();
        for (&inode, &(id, parent)) in &directories {
            let is_below = parent != inode && directories.get(&parent).is_some_and(|&(above, _)| above == id);
            if id != 0 && !is_below {
                trees.push((id, paths.path(&(inode, Bytes::new()))?));
            }
        }
        trees.sort_unstable();
        Ok(trees)
    }

    /// What something new in a directory with these attributes gets.
    pub(crate) fn of_new(above: &Header, kind: FileType) -> Self {
        let Self { id, hands_down } = above.project();
        if hands_down { Self { id, hands_down: kind == FileType::Directory } } else { Self::default() }
    }
}

/// Refuses what comes into a directory that hands down another project.
pub(crate) fn expect_same_project(directory: &Header, coming: &Header) -> Result<()> {
    let Project { id, hands_down } = directory.project();
    if hands_down && id != coming.project { Err(FsError::OtherProject) } else { Ok(()) }
}

fn name_of<'a>(inode: u64) -> LockName<'a> {
    LockName::Attributes { inode, fields: Fields::MODE }
}

fn wants(node: &Node) -> Vec<Want<'static>> {
    let inode = node.inode;
    let times = LockName::Attributes { inode, fields: Fields::TIMES };
    let mut wants = vec![Want::exclusive(name_of(inode)), Want::increment(times)];
    if node.kind == FileType::Directory {
        // An operation that makes an entry holds this as an increment.
        wants.push(Want::exclusive(LockName::Counters { directory: inode }));
    }
    wants
}

impl FileSystem {
    /// The project of a file or directory. Never parks, but in a view that locks what it reads.
    ///
    /// # Errors
    /// `Stale`.
    pub fn project(&self, caller: &Caller, node: NodeId) -> Result<Project> {
        let node = self.locker().pin(node)?;
        self.locker().lock_read(caller, &[Want::shared(name_of(node.inode))])?;
        let _settled = self.nodes.settled(&node);
        let project = node.header().project();
        self.origin.confirm_read()?;
        Ok(project)
    }

    /// Gives a file or directory, and nothing below it, another project. No limit keeps it, but that of a
    /// transaction's commit; only directories hand one down. One batch.
    ///
    /// # Errors
    /// `ReadOnly`, `NoSpace`, …
    pub fn set_project(&self, caller: &Caller, node: NodeId, project: Project) -> Result<()> {
        self.locker().check_writable()?;
        let node = self.locker().pin(node)?;
        // Also project 0: `chattr` sets the flag before the number.
        let hands_down = project.hands_down && node.kind == FileType::Directory;
        let project = Project { hands_down, ..project };
        let gate = self.gate();
        let mut names = self.locker().latch(caller, &wants(&node))?;
        self.orphans().give_row(&gate, &mut names, &node)?;
        if node.header().project() == project && self.locker().may_skip_equal() {
            return Ok(());
        }
        if project != Project::default() {
            self.shared.superblock.declare_projects()?;
        }
        let flag = if hands_down { RowFlags::HANDS_PROJECT_DOWN } else { RowFlags::default() };
        let patch = RowPatch { project: Some(project.id), ..names.changed(&node)? };
        let patch = patch.with_flags(flag, RowFlags::HANDS_PROJECT_DOWN);
        gate.apply_checked(QuotaCheck::NONE, Batch::new(), &node, patch)?;
        Ok(())
    }

    /// Capacity and use as they are for `node`: where its project has a limit, that is the capacity, and what
    /// the project has is the use. Never parks.
    pub fn statfs_at(&self, node: NodeId) -> StatFs {
        let whole = self.statfs();
        let id = self.nodes.get(node.0).map_or(0, |node| node.header().project);
        let line = if id == 0 { None } else { self.quotas().get(QuotaKind::Project, id) };
        let Some(line) = line else { return whole };
        let pending = self.origin.txn().map(|view| view.pending_usage.of(QuotaKind::Project, id));
        narrowed(whole, &line.limits, line.usage.plus(pending.unwrap_or_default()))
    }
}

/// The lower limit where there are two: what is beyond it is not to be relied on.
fn narrowed(mut whole: StatFs, limits: &Limits, usage: Usage) -> StatFs {
    let block = BLOCK_BYTES as u64;
    let lower = |soft: u64, hard: u64| [soft, hard].into_iter().filter(|&limit| limit != 0).min();
    if let Some(limit) = lower(limits.bytes_soft, limits.bytes_hard) {
        whole.blocks = (limit / block).min(whole.blocks);
        whole.blocks_free = whole.blocks.saturating_sub((usage.bytes.max(0) as u64).div_ceil(block));
        whole.blocks_available = whole.blocks_free.min(whole.blocks_available);
    }
    if let Some(limit) = lower(limits.inodes_soft, limits.inodes_hard) {
        whole.files = limit;
        whole.files_free = limit.saturating_sub(usage.inodes.max(0) as u64);
    }
    whole
}
