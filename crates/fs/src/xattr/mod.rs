//! Extended attributes: one record each, under inode and name.
//!
//! Three names are none of them: [`COMPRESSION_ATTRIBUTE`], [`TIER_ATTRIBUTE`] and [`PROJECT_ATTRIBUTE`]
//! stand for properties of the row. [`ACCESSES_ATTRIBUTE`] is what a file's accesses were counted to be, and
//! can't be set.
//!
//! A flag in the row tells whether an inode ever had one, so that the many questions about attributes that
//! were never set cost no store access.

mod property;
mod usage;

pub(crate) use property::Storage;
pub use property::{ACCESSES_ATTRIBUTE, COMPRESSION_ATTRIBUTE, PROJECT_ATTRIBUTE, TIER_ATTRIBUTE};
use property::{StorageAttribute, project_of, project_text};
pub(crate) use usage::XattrUsage;

use bytes::Bytes;
use kvfs_store::{Batch, KeyRange};
use kvfs_txn::{Fields, LockName, Want};

use crate::acl::{AclKind, Acls};
use crate::attr::CAPABILITY;
use crate::file::accesses_of;
use crate::node::{Node, Pin};
use crate::schema::{BitsPatch, RowFlags, RowPatch, inode_key, xattr_key};
use crate::{
    Caller, FileSystem, FileType, FsError, NodeId, Project, Result, XATTR_LEN_MAX, XATTR_NAME_LEN_MAX,
    XattrMode,
};

/// Read and listed by root alone; the kernel sees to the former.
const TRUSTED: &[u8] = b"trusted.";
const NAMESPACES: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];

fn check_name(name: &[u8]) -> Result<()> {
    if AclKind::by_name(name).is_some() {
        return Ok(());
    }
    let Some(namespace) = NAMESPACES.iter().find(|namespace| name.starts_with(namespace)) else {
        return Err(FsError::NotSupported("extended attributes are user.*, trusted.* and security.*"));
    };
    if name.len() == namespace.len() || name.contains(&0) {
        return Err(FsError::Invalid("not a name of an extended attribute"));
    }
    if name.len() > XATTR_NAME_LEN_MAX {
        return Err(FsError::NameTooLong { len: name.len(), len_max: XATTR_NAME_LEN_MAX });
    }
    Ok(())
}

fn wants(node: &Node) -> Vec<Want<'static>> {
    let inode = node.inode;
    let name = |fields| LockName::Attributes { inode, fields };
    let mut wants = vec![Want::exclusive(name(Fields::XATTRS)), Want::increment(name(Fields::TIMES))];
    if node.kind == FileType::Directory {
        wants.push(Want::increment(LockName::Counters { directory: inode }));
    }
    wants
}

fn read_wants<'a>(inode: u64) -> [Want<'a>; 1] {
    [Want::shared(LockName::Attributes { inode, fields: Fields::XATTRS })]
}

/// Checks the name of an attribute that is asked for; returns the flag of a row that may have it.
fn check_got(acls: &Acls<'_>, node: &Pin<'_>, name: &[u8]) -> Result<RowFlags> {
    check_name(name)?;
    let Some(kind) = AclKind::by_name(name) else { return Ok(RowFlags::XATTRS) };
    acls.check_place(node)?;
    Ok(kind.flag())
}

impl FileSystem {
    /// The value of an extended attribute. Never parks.
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported` for foreign namespaces.
    pub fn getxattr(&self, caller: &Caller, node: NodeId, name: &[u8]) -> Result<Bytes> {
        let node = self.locker().pin(node)?;
        if let Some(what) = Storage::by_name(name) {
            return StorageAttribute::new(self, what).get(caller, &node);
        }
        if name == PROJECT_ATTRIBUTE {
            return Ok(project_text(self.project(caller, NodeId(node.inode))?, node.kind));
        }
        if name == ACCESSES_ATTRIBUTE {
            return Ok(accesses_of(self, &node)?.to_text().into());
        }
        if self.shows.hides(name) {
            return Err(FsError::NoAttribute);
        }
        let flag = check_got(&Acls::new(self), &node, name)?;
        self.locker().lock_read(caller, &read_wants(node.inode))?;
        let _settled = self.nodes.settled(&node);
        if !node.header().flags.has(flag) {
            return Err(FsError::NoAttribute);
        }
        let value = self.origin.read().get(self.keyspaces.xattr, &xattr_key(node.inode, name))?;
        self.origin.confirm_read()?;
        value.ok_or(FsError::NoAttribute)
    }

    /// Sets an extended attribute. An access-control list is set as [`FileSystem::set_acl`] does, whatever
    /// `mode` is, and keeps set-group-id.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute` (by `mode`), `AttributeTooLarge`, `AttributesFull`, `NotSupported`, …
    pub fn setxattr(
        &self,
        caller: &Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        if let Some(kind) = AclKind::by_name(name) {
            return self.set_acl(caller, node, kind, value, false);
        }
        self.locker().check_writable()?;
        let node = self.locker().pin(node)?;
        if let Some(what) = Storage::by_name(name) {
            return StorageAttribute::new(self, what).set(caller, &node, value, mode);
        }
        if name == PROJECT_ATTRIBUTE {
            return self.set_project(caller, NodeId(node.inode), project_of(value, mode)?);
        }
        check_name(name)?;
        if value.len() > XATTR_LEN_MAX {
            return Err(FsError::AttributeTooLarge { len: value.len(), len_max: XATTR_LEN_MAX });
        }
        let gate = self.gate();
        let mut wants = wants(&node);
        // Privileges, as set-id bits are: whatever takes those away meanwhile conflicts.
        let lends = name == CAPABILITY;
        if lends {
            let fields = Fields::MODE;
            wants.push(Want::exclusive(LockName::Attributes { inode: node.inode, fields }));
        }
        let mut names = self.locker().latch(caller, &wants)?;
        self.orphans().give_row(&gate, &mut names, &node)?;
        let key = xattr_key(node.inode, name);
        let old = self.origin.read().get(self.keyspaces.xattr, &key)?;
        match (mode, &old) {
            (XattrMode::Create, Some(_)) => return Err(FsError::Exists),
            (XattrMode::Replace, None) => return Err(FsError::NoAttribute),
            _ => {}
        }
        let usage = XattrUsage::of(&node, self.origin.read(), self.keyspaces.xattr)?;
        let after = usage.replaced(name, old.as_ref(), Some(value));
        if !self.origin.restores() {
            usage.check(after)?;
        }
        let mut batch = Batch::new();
        batch.put(self.keyspaces.xattr, key, Bytes::copy_from_slice(value));
        let patch = RowPatch {
            mode: lends.then_some(BitsPatch { and: !0, or: 0 }),
            ..names.changed(&node)?.with_flags(RowFlags::XATTRS, RowFlags::default())
        };
        self.writer().apply_to_node(batch, &node, &patch)?;
        node.state().xattr_usage = Some(after);
        Ok(())
    }

    /// The names of all extended attributes, each followed by a zero byte; those of `trusted.*` for root
    /// alone. Never parks.
    ///
    /// # Errors
    /// `AttributeTooLarge` when they don't fit into what Linux can list, as those of a file from before there
    /// was a bound may; store errors.
    pub fn listxattr(&self, caller: &Caller, node: NodeId) -> Result<Vec<u8>> {
        let node = self.locker().pin(node)?;
        self.locker().lock_read(caller, &read_wants(node.inode))?;
        let mut names = Vec::new();
        let prefix = inode_key(node.inode);
        let mut cursor = {
            // The cursor stays where it is; a commit need not wait for what it goes over.
            let _settled = self.nodes.settled(&node);
            if !node.header().flags.has(RowFlags::XATTRS) {
                return Ok(names);
            }
            self.origin.read().cursor(self.keyspaces.xattr, KeyRange::prefix(&prefix))?
        };
        cursor.next()?;
        while let Some((key, _)) = cursor.entry() {
            let name = &key[prefix.len()..];
            let is_for_caller = (caller.uid == 0 || !name.starts_with(TRUSTED)) && !self.shows.hides(name);
            if is_for_caller && (self.options.acls || AclKind::by_name(name).is_none()) {
                let len = names.len() + name.len() + 1;
                if len > XATTR_LEN_MAX {
                    return Err(FsError::AttributeTooLarge { len, len_max: XATTR_LEN_MAX });
                }
                names.extend_from_slice(name);
                names.push(0);
            }
            cursor.next()?;
        }
        self.origin.confirm_read()?;
        Ok(names)
    }

    /// Removes an extended attribute. For an access-control list that is not there, that is no error.
    ///
    /// # Errors
    /// `NoAttribute`, …
    pub fn removexattr(&self, caller: &Caller, node: NodeId, name: &[u8]) -> Result<()> {
        if let Some(kind) = AclKind::by_name(name) {
            // A list without entries is none.
            return self.set_acl(caller, node, kind, b"", false);
        }
        self.locker().check_writable()?;
        let node = self.locker().pin(node)?;
        if let Some(what) = Storage::by_name(name) {
            return StorageAttribute::new(self, what).set(caller, &node, what.unset(), XattrMode::Set);
        }
        if name == PROJECT_ATTRIBUTE {
            return self.set_project(caller, NodeId(node.inode), Project::default());
        }
        check_name(name)?;
        self.locker().lock_read(caller, &read_wants(node.inode))?;
        if !node.header().flags.has(RowFlags::XATTRS) {
            return Err(FsError::NoAttribute);
        }
        let mut names = self.locker().latch(caller, &wants(&node))?;
        let key = xattr_key(node.inode, name);
        let old = self.origin.read().get(self.keyspaces.xattr, &key)?;
        if old.is_none() {
            return Err(FsError::NoAttribute);
        }
        // Where it is not known, it is counted when something is to be added.
        let after = node.state().xattr_usage.map(|usage| usage.replaced(name, old.as_ref(), None));
        let mut batch = Batch::new();
        batch.delete(self.keyspaces.xattr, key);
        let patch = names.changed(&node)?;
        self.writer().apply_to_node(batch, &node, &patch)?;
        node.state().xattr_usage = after;
        Ok(())
    }
}
