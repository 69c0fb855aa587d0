//! POSIX access-control lists: attributes that permission bits follow, and that new files inherit.
//!
//! Purpose: a list is kept as the extended attribute by whose name Linux knows it. Deciding on access is the
//! front end's business (the kernel of a FUSE mount reads the lists and decides); what is done here is what a
//! file system has to do: check what is set, keep lists and permission bits in agreement, hand default lists
//! down.
//!
//! Thread safety: as [`FileSystem`]. Invariants: a flag in the row tells exactly whether there is a list, so
//! that files without one cost no store access; the permission bits are those of the access list where there
//! is one; a list that says no more than permission bits do is not kept.

mod access;
mod list;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use kvfs_store::{Batch, Keyspace, Read};
use kvfs_txn::{Fields, LockName, Want};

pub(crate) use list::{Acl, PERMISSIONS};

use crate::attr::expect_owner;
use crate::node::Pin;
use crate::orphan::Orphans;
use crate::quota::Quotas;
use crate::schema::{BitsPatch, Header, RowFlags, xattr_key};
use crate::view::{Locker, NodeWriter};
use crate::{Caller, FileSystem, FileType, FsError, NodeId, Result, XATTR_LEN_MAX};

const S_ISGID: u32 = 0o2000;

/// Which of an inode's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AclKind {
    /// Which users may use it.
    Access,
    /// What is handed down to what is made in it; directories only.
    Default,
}

impl AclKind {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Access, Self::Default];

    /// The list that is got and set by this name of an extended attribute.
    pub fn by_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The name of the extended attribute.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    /// A list as a caller sees it that knows no other user and group than these: a kernel's namespace has no
    /// number for the others that an entry may name.
    ///
    /// # Errors
    /// `Invalid`, `NotSupported` for what is no list.
    pub fn known_to(value: &[u8], uid: u32, gid: u32) -> Result<Bytes> {
        Ok(Acl::parse(value)?.map_or_else(Bytes::new, |acl| acl.known_to(uid, gid).encode()))
    }

    /// The list that is meant by `value` where the list so far, `old`, has been seen by [`Self::known_to`].
    ///
    /// # Errors
    /// As there.
    pub fn with_unknown_of(value: &[u8], old: &[u8], uid: u32, gid: u32) -> Result<Bytes> {
        Ok(match (Acl::parse(value)?, Acl::parse(old)?) {
            (Some(acl), Some(old)) => acl.with_unknown_of(old, uid, gid).encode(),
            _ => Bytes::copy_from_slice(value),
        })
    }

    /// The flag of a row that has such a list.
    pub(crate) fn flag(self) -> RowFlags {
        match self {
            Self::Access => RowFlags::ACCESS_ACL,
            Self::Default => RowFlags::DEFAULT_ACL,
        }
    }
}

/// What a new inode gets from the default list of its directory.
#[derive(Default)]
pub(crate) struct Inherited {
    /// Permission bits.
    pub(crate) mode: u32,
    lists: Vec<(AclKind, Bytes)>,
}

impl Inherited {
    /// Adds the lists to the batch that makes the inode.
    pub(crate) fn stage(self, xattr: Keyspace, header: &mut Header, batch: &mut Batch) {
        for (kind, list) in self.lists {
            header.flags = header.flags | kind.flag() | RowFlags::XATTRS;
            batch.put(xattr, xattr_key(header.inode, kind.name()), list);
        }
    }
}

/// The access-control lists of inodes, as a view has them.
pub(crate) struct Acls<'v> {
    read: &'v dyn Read,
    xattr: Keyspace,
    /// The mount has lists.
    are_on: bool,
}

impl<'v> Acls<'v> {
    /// Those of this view.
    pub(crate) fn new(fs: &'v FileSystem) -> Self {
        Self { read: fs.origin.read(), xattr: fs.keyspaces.xattr, are_on: fs.options.acls }
    }

    /// Whether `node` can have lists.
    pub(crate) fn check_place(&self, node: &Pin<'_>) -> Result<()> {
        if !self.are_on {
            return Err(FsError::NotSupported("the mount has no access-control lists"));
        }
        if node.kind == FileType::Symlink {
            return Err(FsError::NotSupported("symbolic links have no access-control lists"));
        }
        Ok(())
    }

    /// The list of an inode with these attributes.
    fn get(&self, header: &Header, kind: AclKind) -> Result<Option<Acl>> {
        if !header.flags.has(kind.flag()) {
            return Ok(None);
        }
        let key = xattr_key(header.inode, kind.name());
        let Some(value) = self.read.get(self.xattr, &key)? else { return Ok(None) };
        Acl::parse(&value).map_err(|error| {
            FsError::corrupt(format!("{:?} list of inode {}", kind, header.inode), error.to_string())
        })
    }

    /// Has the access list follow the permission bits, which are about to be set to those of `mode`. The
    /// caller holds the names of both exclusively; `header` was read under them.
    pub(crate) fn stage_mode(&self, batch: &mut Batch, header: &Header, mode: u32) -> Result<()> {
        if let Some(mut acl) = self.get(header, AclKind::Access)? {
            acl.set_permissions(mode);
            let key = xattr_key(header.inode, AclKind::Access.name());
            batch.put(self.xattr, key, acl.encode());
        }
        Ok(())
    }

    /// Permission bits and lists of what `caller` makes with `mode` in the directory with the attributes
    /// `above`. Where it has a default list, that limits the mode, and else the umask.
    pub(crate) fn inherited(
        &self,
        caller: &Caller,
        above: &Header,
        kind: FileType,
        mode: u32,
    ) -> Result<Inherited> {
        if kind == FileType::Symlink {
            return Ok(Inherited { mode, lists: Vec::new() });
        }
        let default = if self.are_on { self.get(above, AclKind::Default)? } else { None };
        let Some(default) = default else {
            return Ok(Inherited { mode: mode & !caller.umask, lists: Vec::new() });
        };
        let mut lists = Vec::new();
        let mut access = default.clone();
        access.limit(mode);
        if !access.is_minimal() {
            lists.push((AclKind::Access, access.encode()));
        }
        if kind == FileType::Directory {
            lists.push((AclKind::Default, default.encode()));
        }
        Ok(Inherited { mode: mode & !PERMISSIONS | access.permissions(), lists })
    }
}

impl FileSystem {
    /// Sets a list, or takes it away (a value without entries). The permission bits follow an access list;
    /// `clears_setgid`: the caller is not in the file's group, so set-group-id goes.
    ///
    /// # Errors
    /// `Parked`; `Invalid` for what is no list; `NotSupported` for another version of lists, for symbolic
    /// links, and where the mount has no lists; `AccessDenied` for a default list of what is no directory.
    pub fn set_acl(
        &self,
        caller: &Caller,
        node: NodeId,
        kind: AclKind,
        value: &[u8],
        clears_setgid: bool,
    ) -> Result<()> {
        self.locker().check_writable()?;
        let node = self.locker().pin(node)?;
        Acls::new(self).check_place(&node)?;
        if value.len() > XATTR_LEN_MAX {
            return Err(FsError::AttributeTooLarge { len: value.len(), len_max: XATTR_LEN_MAX });
        }
        AclWriter::new(self).put(caller, &node, kind, value, clears_setgid)
    }
}

/// Sets and takes away the access-control lists of a view.
pub(crate) struct AclWriter<'v> {
    locker: Locker<'v>,
    quotas: &'v Quotas,
    orphans: Orphans<'v>,
    writer: NodeWriter<'v>,
    xattr: Keyspace,
}

impl<'v> AclWriter<'v> {
    /// That of this view.
    pub(crate) fn new(fs: &'v FileSystem) -> Self {
        Self {
            locker: fs.locker(),
            quotas: fs.quotas(),
            orphans: fs.orphans(),
            writer: fs.writer(),
            xattr: fs.keyspaces.xattr,
        }
    }

    /// Sets a list, or takes it away where `value` has no entries. The permission bits follow.
    ///
    /// # Errors
    /// As [`FileSystem::set_acl`], which checks the mount, the node's kind and the value's length before.
    pub(crate) fn put(
        &self,
        caller: &Caller,
        node: &Pin<'_>,
        kind: AclKind,
        value: &[u8],
        clears_setgid: bool,
    ) -> Result<()> {
        let Some(acl) = Acl::parse(value)? else { return self.take(caller, node, kind) };
        if kind == AclKind::Default && node.kind != FileType::Directory {
            return Err(FsError::AccessDenied("only directories have a default access-control list"));
        }
        let gate = self.quotas.gate(self.writer);
        let mut names = self.locker.latch(caller, &acl_wants(node, kind))?;
        self.orphans.give_row(&gate, &mut names, node)?;
        let header = node.header();
        expect_owner(caller, node)?;
        let is_kept = kind == AclKind::Default || !acl.is_minimal();
        let mut batch = Batch::new();
        let mut patch = names.changed(node)?;
        let key = xattr_key(node.inode, kind.name());
        if is_kept {
            batch.put(self.xattr, key, acl.encode());
            patch = patch.with_flags(RowFlags::XATTRS | kind.flag(), RowFlags::default());
        } else if header.flags.has(kind.flag()) {
            batch.delete(self.xattr, key);
            patch = patch.with_flags(RowFlags::default(), kind.flag());
        }
        if kind == AclKind::Access {
            let kept = if clears_setgid { !(PERMISSIONS | S_ISGID) } else { !PERMISSIONS };
            patch.mode = Some(BitsPatch::set(header.mode & kept | acl.permissions()));
        }
        self.writer.apply_to_node(batch, node, &patch)?;
        Ok(())
    }

    fn take(&self, caller: &Caller, node: &Pin<'_>, kind: AclKind) -> Result<()> {
        let mut names = self.locker.latch(caller, &acl_wants(node, kind))?;
        expect_owner(caller, node)?;
        if !node.header().flags.has(kind.flag()) && self.locker.may_skip_equal() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.delete(self.xattr, xattr_key(node.inode, kind.name()));
        let patch = names.changed(node)?.with_flags(RowFlags::default(), kind.flag());
        self.writer.apply_to_node(batch, node, &patch)?;
        Ok(())
    }
}

/// What setting or taking away a list needs. An access list goes with the permission bits.
fn acl_wants(node: &Pin<'_>, kind: AclKind) -> Vec<Want<'static>> {
    let inode = node.inode;
    let name = |fields| LockName::Attributes { inode, fields };
    let fields = match kind {
        AclKind::Access => Fields::XATTRS.union(Fields::MODE),
        AclKind::Default => Fields::XATTRS,
    };
    let mut wants = vec![Want::exclusive(name(fields)), Want::increment(name(Fields::TIMES))];
    if node.kind == FileType::Directory {
        wants.push(Want::increment(LockName::Counters { directory: inode }));
    }
    wants
}
