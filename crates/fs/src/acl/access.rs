//! Which users may use a file, for front ends that the kernel does not decide for.
//!
//! Thread safety: as [`FileSystem`]. Invariant: the answer is that of Linux for the same user, groups,
//! permission bits and list; what root may beyond it is the front end's to say.

use super::{AclKind, list::Acl};
use crate::{Attr, Caller, FileSystem, FsError, NodeId, Result};

const S_IRWXG: u32 = 0o070;

impl FileSystem {
    /// Checks that user `caller.uid`, in `groups` (its own among them), may do to `node` all that `access`
    /// asks for: 4 read, 2 write, 1 execute or search. `attr` is the node's. Never parks, but in a view that
    /// locks what it reads.
    ///
    /// # Errors
    /// `AccessDenied`; store errors.
    pub fn check_access(
        &self,
        caller: &Caller,
        groups: &[u32],
        node: NodeId,
        attr: &Attr,
        access: u32,
    ) -> Result<()> {
        let allows = |shift: u32| (attr.mode >> shift) & access == access;
        // Linux does not ask for a list where the mask in the permission bits is empty.
        let may_have_list = caller.uid != attr.uid && attr.mode & S_IRWXG != 0;
        let list = match may_have_list.then(|| self.getxattr(caller, node, AclKind::Access.name())) {
            Some(Ok(list)) => Acl::parse(&list)?,
            Some(Err(FsError::NoAttribute | FsError::NotSupported(_))) | None => None,
            Some(Err(error)) => return Err(error),
        };
        let is_allowed = if caller.uid == attr.uid {
            allows(6)
        } else if let Some(acl) = list {
            acl.allows(caller.uid, groups, attr.gid, access as u16)
        } else if groups.contains(&attr.gid) {
            allows(3)
        } else {
            allows(0)
        };
        if is_allowed { Ok(()) } else { Err(FsError::AccessDenied("its permissions don't allow that")) }
    }
}
