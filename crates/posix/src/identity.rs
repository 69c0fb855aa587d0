//! Whom a process acts for, and what that user may do: the checks that the kernel makes for a mounted file
//! system.
//!
//! Purpose: user 0 may do everything, others what permission bits and access-control lists allow.
//! Capabilities apart from those of user 0 are not known here: the ids are given by the program, which owns
//! the store, not by a kernel.
//!
//! Thread safety: immutable values.

use std::sync::Arc;

use kvfs_fs::{Attr, Caller, Credentials, FileSystem, FileType, FsError, NodeId, Waits};
use rustix::io::Errno;

use crate::error::{Result, refuse};
use crate::held::settled;

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_ISVTX: u32 = 0o1000;
const S_IXGRP: u32 = 0o010;
/// Execute bits.
const S_IXUGO: u32 = 0o111;
const S_IWGRP: u32 = 0o020;
const S_IWOTH: u32 = 0o002;

/// Whether a file with this mode is a program that runs with the ids of its owner or group.
pub(crate) fn lends_ids(mode: u32) -> bool {
    mode & S_ISUID != 0 || mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP
}

/// Whom a process acts for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// User; 0 may do everything.
    pub uid: u32,
    /// Group, that of new files.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// User and group 0.
    pub fn root() -> Self {
        Self::default()
    }

    /// The effective ids of the process that runs this.
    ///
    /// # Errors
    /// Its groups can't be asked for.
    pub fn of_this_process() -> Result<Self, Errno> {
        let groups = rustix::process::getgroups()?;
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        })
    }
}

/// Users by their own ids and the groups that they bring along.
#[derive(Debug)]
struct OfActors;

impl Credentials for OfActors {
    fn keeps_set_id(&self, caller: &Caller) -> bool {
        caller.uid == 0
    }

    fn is_in_group(&self, caller: &Caller, gid: u32) -> bool {
        caller.gid == gid || groups_of(caller).binary_search(&gid).is_ok()
    }
}

fn groups_of(caller: &Caller) -> &[u32] {
    caller.groups.as_deref().unwrap_or_default()
}

/// A user at work.
#[derive(Debug)]
pub(crate) struct Actor {
    /// With all its groups, the first one among them, and its waits.
    pub(crate) caller: Caller,
    /// End with its process.
    pub(crate) waits: Arc<Waits>,
}

impl Actor {
    pub(crate) fn new(identity: &Identity, waits: Arc<Waits>) -> Self {
        let mut groups = identity.groups.clone();
        groups.push(identity.gid);
        groups.sort_unstable();
        groups.dedup();
        let caller = Caller {
            uid: identity.uid,
            gid: identity.gid,
            pid: std::process::id(),
            credentials: Some(&OfActors),
            groups: Some(groups.into()),
            waits: Some(Arc::clone(&waits)),
            ..Caller::default()
        };
        Self { caller, waits }
    }

    /// The same user in another process.
    pub(crate) fn waiting(&self, waits: Arc<Waits>) -> Self {
        let caller = Caller { waits: Some(Arc::clone(&waits)), ..self.caller.clone() };
        Self { caller, waits }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.caller.uid == 0
    }

    pub(crate) fn groups(&self) -> &[u32] {
        groups_of(&self.caller)
    }

    pub(crate) fn is_member(&self, gid: u32) -> bool {
        self.is_root() || self.groups().contains(&gid)
    }

    /// EACCES unless `access` (of 4, 2, 1) is allowed. Root may all, but run what no user may run. EROFS:
    /// nothing is changed there.
    pub(crate) fn check(&self, fs: &FileSystem, node: NodeId, attr: &Attr, access: u32) -> Result<()> {
        let is_content = matches!(attr.kind, FileType::Regular | FileType::Directory | FileType::Symlink);
        if access & WRITE != 0 && is_content && kvfs_fs::is_read_only(fs) {
            return Err(FsError::ReadOnly.into());
        }
        if !self.is_root() {
            return settled(&self.caller, |caller| {
                fs.check_access(caller, self.groups(), node, attr, access)
            });
        }
        let runs = access & EXECUTE != 0 && attr.kind != FileType::Directory;
        if runs && attr.mode & S_IXUGO == 0 { refuse(Errno::ACCESS, "no user may run it") } else { Ok(()) }
    }

    /// EPERM unless the user owns it.
    pub(crate) fn check_owner(&self, attr: &Attr) -> Result<()> {
        if self.is_root() || self.caller.uid == attr.uid {
            Ok(())
        } else {
            refuse(Errno::PERM, "only its owner may do that")
        }
    }

    /// Whether a name may be taken away: what lies in a sticky directory only by its owner or that of the
    /// directory.
    pub(crate) fn check_sticky(&self, directory: &Attr, victim: &Attr) -> Result<()> {
        let is_free = directory.mode & S_ISVTX == 0 || self.is_root();
        if is_free || [directory.uid, victim.uid].contains(&self.caller.uid) {
            Ok(())
        } else {
            refuse(Errno::PERM, "the directory is sticky, and another user's")
        }
    }

    /// Whether a symbolic link at the end of a path is followed: in a sticky directory in which all may
    /// write, that of the user or of the owner of the directory. As the kernel has it with
    /// `fs.protected_symlinks`.
    pub(crate) fn check_follow(&self, directory: &Attr, link: &Attr) -> Result<()> {
        let is_shared = directory.mode & (S_ISVTX | S_IWOTH) == S_ISVTX | S_IWOTH;
        if !is_shared || [directory.uid, self.caller.uid].contains(&link.uid) {
            Ok(())
        } else {
            refuse(Errno::ACCESS, "another user's link in a sticky directory")
        }
    }

    /// Whether what is there is opened where a file would be made: in a sticky directory in which others may
    /// write, if it is the user's or of the owner of the directory. As the kernel has it with
    /// `fs.protected_regular` and `fs.protected_fifos` of 2.
    pub(crate) fn check_found(&self, directory: &Attr, found: &Attr) -> Result<()> {
        let writers = if matches!(found.kind, FileType::Regular | FileType::Fifo) {
            S_IWOTH | S_IWGRP
        } else {
            S_IWOTH
        };
        let is_shared = directory.mode & S_ISVTX != 0 && directory.mode & writers != 0;
        if !is_shared || [directory.uid, self.caller.uid].contains(&found.uid) {
            Ok(())
        } else {
            refuse(Errno::ACCESS, "another user's file in a sticky directory")
        }
    }

    /// The mode of a new file that is no directory, in `directory`: no program of a group that the user is
    /// not in.
    pub(crate) fn mode_of_new(&self, directory: &Attr, mode: u32) -> u32 {
        let is_program = mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
        let is_foreign = directory.mode & S_ISGID != 0 && !self.is_member(directory.gid);
        if is_program && is_foreign { mode & !S_ISGID } else { mode }
    }

    /// The mode that a chmod to `mode` sets.
    pub(crate) fn mode_to_set(&self, attr: &Attr, mode: u32) -> u32 {
        if self.is_member(attr.gid) { mode } else { mode & !S_ISGID }
    }
}

#[cfg(test)]
mod tests;
