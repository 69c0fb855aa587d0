//! Extended attributes and access-control lists.

use kvfs_fs::{AclKind, FileType, FsError, PROJECT_ATTRIBUTE, XattrMode};
use rustix::io::Errno;

use super::{Process, Scope};
use crate::Place;
use crate::error::{Result, refuse};
use crate::held::{settled, with_space};
use crate::identity::{READ, WRITE};
use crate::walk::Found;

const S_ISVTX: u32 = 0o1000;
/// Of users, for files and directories alone.
const USER: &[u8] = b"user.";
/// Root's; others don't see it.
const TRUSTED: &[u8] = b"trusted.";
const SECURITY: &[u8] = b"security.";
/// Lists.
const SYSTEM: &[u8] = b"system.";

impl Process {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA, EACCES, EOPNOTSUPP: no such namespace; those of the walk.
    pub fn getxattr<'a>(&self, place: impl Into<Place<'a>>, name: &[u8]) -> Result<Vec<u8>> {
        let found = self.scope.find_open(place.into())?;
        if name.starts_with(TRUSTED) && !self.scope.actor.is_root() {
            return Err(FsError::NoAttribute.into());
        }
        if name.starts_with(USER) && !can_have(&found) {
            return Err(FsError::NoAttribute.into());
        }
        if ![TRUSTED, SECURITY, SYSTEM].iter().any(|namespace| name.starts_with(namespace)) {
            self.scope.check(&found, READ)?;
        }
        let node = found.held.node();
        Ok(settled(self.scope.caller(), |caller| self.scope.fs().getxattr(caller, node, name))?.to_vec())
    }

    /// Sets an extended attribute, or an access-control list (`system.posix_acl_access`,
    /// `system.posix_acl_default`).
    ///
    /// # Errors
    /// EEXIST, ENODATA: as `mode` says; EPERM, EACCES; E2BIG, ENOSPC, EINVAL; those of the walk.
    pub fn setxattr<'a>(
        &self,
        place: impl Into<Place<'a>>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let found = self.scope.find_open(place.into())?;
        self.scope.check_change(&found, name)?;
        let (fs, node) = (self.scope.fs(), found.held.node());
        let clears_setgid = !self.scope.actor.is_member(found.attr.gid);
        with_space(fs, self.scope.caller(), |caller| match AclKind::by_name(name) {
            Some(kind) => fs.set_acl(caller, node, kind, value, clears_setgid),
            None => fs.setxattr(caller, node, name, value, mode),
        })?;
        self.scope.shared.tell(&[(node, false)]);
        Ok(())
    }

    /// Removes one.
    ///
    /// # Errors
    /// ENODATA, EPERM, EACCES; those of the walk.
    pub fn removexattr<'a>(&self, place: impl Into<Place<'a>>, name: &[u8]) -> Result<()> {
        let found = self.scope.find_open(place.into())?;
        self.scope.check_change(&found, name)?;
        let node = found.held.node();
        with_space(self.scope.fs(), self.scope.caller(), |caller| {
            self.scope.fs().removexattr(caller, node, name)
        })?;
        self.scope.shared.tell(&[(node, false)]);
        Ok(())
    }

    /// Their names, each of those that the user may know.
    ///
    /// # Errors
    /// Those of the walk.
    pub fn listxattr<'a>(&self, place: impl Into<Place<'a>>) -> Result<Vec<Vec<u8>>> {
        let found = self.scope.find_open(place.into())?;
        let node = found.held.node();
        let list = settled(self.scope.caller(), |caller| self.scope.fs().listxattr(caller, node))?;
        let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let is_shown = |name: &&[u8]| self.scope.actor.is_root() || !name.starts_with(TRUSTED);
        Ok(names.filter(is_shown).map(<[u8]>::to_vec).collect())
    }
}

impl Scope {
    fn check_change(&self, found: &Found, name: &[u8]) -> Result<()> {
        if AclKind::by_name(name).is_some() {
            return self.actor.check_owner(&found.attr);
        }
        let is_of_root = [TRUSTED, SECURITY].iter().any(|namespace| name.starts_with(namespace));
        if (is_of_root || name == PROJECT_ATTRIBUTE) && !self.actor.is_root() {
            return refuse(Errno::PERM, "only root changes these attributes");
        }
        if name.starts_with(USER) {
            if !can_have(found) {
                return refuse(Errno::PERM, "only files and directories have attributes of users");
            }
            if found.attr.kind == FileType::Directory && found.attr.mode & S_ISVTX != 0 {
                self.actor.check_owner(&found.attr)?;
            }
        }
        if self.actor.is_root() { Ok(()) } else { self.check(found, WRITE) }
    }
}

/// Whether attributes of users may be there.
fn can_have(found: &Found) -> bool {
    matches!(found.attr.kind, FileType::Regular | FileType::Directory)
}
