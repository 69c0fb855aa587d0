//! Attributes.

mod atime;
mod privileges;

pub(crate) use atime::{AccessTimes, LazyTimes};
pub use privileges::Credentials;
pub(crate) use privileges::{CAPABILITY, PrivilegeLoss, Privileges, SET_ID, expect_owner};

use kvfs_store::Batch;
use kvfs_txn::{Fields, LockName, Want};

use crate::acl::Acls;
use crate::file::Contents;
use crate::node::Node;
use crate::schema::{BitsPatch, RowFlags, RowPatch, TimePatch};
use crate::{
    Attr, Caller, FILE_SIZE_MAX, FileSystem, FileType, FsError, MODE_BITS, NodeId, Result, SetAttr, SetTime,
    Timestamp, namespace,
};

const S_ISGID: u32 = 0o2000;

/// The attributes of a node; see [`FileSystem::getattr`].
pub(crate) fn attributes(fs: &FileSystem, caller: &Caller, node: &Node) -> Result<Attr> {
    fs.locker().lock_read(caller, &namespace::attribute_wants(node.inode))?;
    if node.directory.is_some() {
        // Only a caller that asks for the attributes holds up entries that come and go.
        fs.locker().lock_read(caller, &[Want::shared(LockName::Counters { directory: node.inode })])?;
    }
    fs.origin.confirm_read()?;
    Ok(fs.shows.attr(node.attr()))
}

impl FileSystem {
    /// Attributes. Never parks; no store access.
    ///
    /// # Errors
    /// `Stale`.
    pub fn getattr(&self, caller: &Caller, node: NodeId) -> Result<Attr> {
        attributes(self, caller, &*self.locker().pin(node)?)
    }

    /// Changes attributes, the size included, in one batch; returns them all.
    ///
    /// # Errors
    /// `IsDirectory` or `Invalid` for the size of something else than a file, `FileTooLarge`, `NoSpace`, …
    pub fn setattr(&self, caller: &Caller, node: NodeId, changes: &SetAttr) -> Result<Attr> {
        self.locker().check_writable()?;
        let node = self.locker().pin(node)?;
        if let Some(size) = changes.size {
            match node.kind {
                FileType::Regular if size > FILE_SIZE_MAX => return Err(FsError::FileTooLarge),
                FileType::Regular => {}
                FileType::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid("only files have a size that can be set")),
            }
        }
        let gate = self.gate();
        let loss = privilege_loss(changes);
        let mut wants = setattr_wants(&node, changes, loss);
        if sets_times_of_owner(changes) && caller.credentials.is_some() {
            // Whose it is, which all else that its owner alone may change has among it.
            wants.push(Want::shared(LockName::Attributes { inode: node.inode, fields: Fields::MODE }));
        }
        wants.extend(gate.want(node.inode).filter(|_| changes.size.is_some()));
        let mut guard = self.locker().latch(caller, &wants)?;
        self.orphans().give_row(&gate, &mut guard, &node)?;
        let header = node.header();
        if is_for_owner(changes, header.mode) {
            expect_owner(caller, &node)?;
        }
        let mut batch = Batch::new();
        let dated = if changes.size.is_some() { guard.modified(&node)? } else { guard.changed(&node)? };
        let now = dated.ctime.map_or_else(|| self.time(), TimePatch::time);
        let mut patch = plan(changes, now, dated);
        if let Some(mode) = changes.mode
            && header.flags.has(RowFlags::ACCESS_ACL)
        {
            let fields = Fields::XATTRS;
            guard.try_extend(&[Want::exclusive(LockName::Attributes { inode: node.inode, fields })])?;
            Acls::new(self).stage_mode(&mut batch, &header, mode)?;
        }
        if let Some(size) = changes.size {
            Contents::new(self).stage_resize(&mut batch, &node, &header, size, &mut patch)?;
        }
        Privileges::new(self).stage_loss(loss, caller, &node, &mut guard, &mut batch, &mut patch)?;
        gate.apply_counted_to_node(caller, batch, &node, patch)?;
        if let Some(size) = changes.size {
            // A kernel that believes it to be longer writes whole pages there.
            node.note_content(caller, size.min(header.size)..u64::MAX);
        }
        if !caller.goes_by_names && changes.uid.is_some_and(|uid| uid != header.uid) {
            node.state().is_given_away = true;
        }
        Ok(node.attr())
    }
}

/// Whether only the owner may change that of a file with this mode. The kernel takes set-id bits away for
/// callers that write.
fn is_for_owner(changes: &SetAttr, mode: u32) -> bool {
    let sets_mode = changes.mode.is_some_and(|new| new & MODE_BITS != mode & !SET_ID);
    sets_mode || changes.uid.is_some() || changes.gid.is_some() || sets_times_of_owner(changes)
}

/// Whether it sets times that only the owner may set. The kernel sets some for callers that write, too, with
/// that of the change or the size.
fn sets_times_of_owner(changes: &SetAttr) -> bool {
    let is_at = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    let is_alone = changes.ctime.is_none() && changes.size.is_none();
    is_alone && changes.mode.is_none() && (is_at(changes.atime) || is_at(changes.mtime))
}

/// A change of owner takes everything, unless it says what the mode is.
fn privilege_loss(changes: &SetAttr) -> PrivilegeLoss {
    let owner_changes = changes.uid.is_some() || changes.gid.is_some();
    if changes.kill_suidgid || (owner_changes && changes.mode.is_none()) {
        PrivilegeLoss::All
    } else if changes.size.is_some() {
        PrivilegeLoss::Capability
    } else {
        PrivilegeLoss::None
    }
}

fn setattr_wants(node: &Node, changes: &SetAttr, loss: PrivilegeLoss) -> Vec<Want<'static>> {
    let inode = node.inode;
    let name = |fields| LockName::Attributes { inode, fields };
    let sets_times = changes.atime.is_some() || changes.mtime.is_some() || changes.ctime.is_some();
    let times = |name| if sets_times { Want::exclusive(name) } else { Want::increment(name) };
    let mut wants = vec![times(name(Fields::TIMES))];
    if node.kind == FileType::Directory {
        // The times of a directory also change with its entries.
        wants.push(times(LockName::Counters { directory: inode }));
    }
    if changes.mode.is_some() || changes.uid.is_some() || changes.gid.is_some() {
        wants.push(Want::exclusive(name(Fields::MODE)));
    } else {
        wants.extend(loss.want(inode));
    }
    if changes.size.is_some() {
        wants.push(Want::exclusive(name(Fields::SIZE)));
        wants.push(Want::exclusive(LockName::Blocks { inode, first: 0, end: u64::MAX }));
    }
    wants
}

/// Everything but the size, and what privileges are lost. `patch` is that something changes.
fn plan(changes: &SetAttr, now: Timestamp, mut patch: RowPatch) -> RowPatch {
    let time = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    patch.uid = changes.uid;
    patch.gid = changes.gid;
    patch.atime = changes.atime.map(|new| TimePatch::Set(time(new)));
    if let Some(new) = changes.mtime {
        patch.mtime = Some(TimePatch::Set(time(new)));
    }
    if let Some(new) = changes.ctime {
        patch.ctime = Some(TimePatch::Set(new));
    }
    // Also when it is the same already: in a transaction, setting it is an update like any other.
    patch.mode = changes.mode.map(|mode| BitsPatch::set(mode & MODE_BITS));
    patch
}
