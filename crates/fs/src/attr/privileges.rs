//! The privileges that a program lends to its users, and what takes them away: set-user-id, set-group-id, and
//! file capabilities (`security.capability`).
//!
//! Purpose: a program that lends privileges must be what its owner meant. Every change of content, size or
//! owner goes through [`Privileges::stage_loss`], which adds to the operation's batch what Linux takes away
//! with it, as ext4 does:
//!
//! * Capabilities go with every change of content or owner, also one by root.
//! * Set-user-id goes unless the caller has `CAP_FSETID`; with a change of owner always.
//! * Set-group-id goes likewise where the group may execute; elsewhere it marks mandatory locking, and goes
//!   unless the caller is in the group or has `CAP_FSETID`.
//!
//! Two changes take nothing away. Dirty pages that the kernel writes out have no caller: a change by a
//! mapping leaves privileges, as everywhere on Linux, and what a write call changed in the kernel's cache has
//! taken them before. A restore says itself what a file has in the end (`view/restore`).
//!
//! Thread safety: as [`FileSystem`]. Invariant: what takes set-id bits away, or would if there were any,
//! counts as a change of the mode, and so does what gives a file capabilities: a transaction that lends a
//! program privileges conflicts with changes of its content by callers that would have lost them.

use std::fmt;

use kvfs_store::{Batch, Keyspace};
use kvfs_txn::{Fields, LockName, Want};

use super::S_ISGID;
use crate::node::{Node, Pin};
use crate::schema::{BitsPatch, RowFlags, RowPatch, xattr_key};
use crate::view::{Names, Origin};
use crate::{Caller, FileSystem, FileType, FsError, Result};

/// The extended attribute that holds file capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

const S_ISUID: u32 = 0o4000;
const S_IXGRP: u32 = 0o010;

/// Both set-id bits.
pub(crate) const SET_ID: u32 = S_ISUID | S_ISGID;

/// What the kernel knows of a caller beyond its ids, where a request does not say it.
pub trait Credentials: fmt::Debug + Send + Sync {
    /// Whether set-id bits stay when the caller changes the content of a file: `CAP_FSETID`. When in doubt,
    /// false.
    fn keeps_set_id(&self, caller: &Caller) -> bool;

    /// Whether the caller is in the group. When in doubt, false.
    fn is_in_group(&self, caller: &Caller, gid: u32) -> bool;

    /// Whether the caller may do with files of others what their owners may: `CAP_FOWNER`, or `CAP_CHOWN`,
    /// which has the front end have let it through. When in doubt, false.
    fn acts_as_owner(&self, caller: &Caller) -> bool {
        let _ = caller;
        false
    }
}

/// What only the owner of a file may do. A front end that checks that by what its kernel knows of the file is
/// asked for it only where the file was given away behind its back: its caller may have waited for that. The
/// caller must hold the file's owner.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn expect_owner(caller: &Caller, node: &Node) -> Result<()> {
    let Some(credentials) = caller.credentials else { return Ok(()) };
    let (owner, is_given_away) = {
        let state = node.state();
        (state.header.uid, state.is_given_away)
    };
    if caller.uid == owner || caller.uid == 0 || (caller.goes_by_names && !is_given_away) {
        return Ok(());
    }
    if credentials.acts_as_owner(caller) {
        return Ok(());
    }
    Err(FsError::NotPermitted("the file is another user's"))
}

/// What a change takes away of a file's privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrivilegeLoss {
    /// Nothing.
    None,
    /// Capabilities alone: the caller keeps set-id bits.
    Capability,
    /// Set-id bits, too, as far as the group does not keep its own.
    All,
    /// As the caller's credentials say: the request does not tell.
    AsCaller,
}

impl PrivilegeLoss {
    /// Of a change of content: `kills` says whether the request takes set-id bits away.
    pub(crate) fn by_request(kills: bool) -> Self {
        if kills { Self::All } else { Self::Capability }
    }

    /// What an operation holds for it from its beginning, where it is known to be needed.
    pub(crate) fn want(self, inode: u64) -> Option<Want<'static>> {
        (self == Self::All).then(|| mode_want(inode))
    }

    /// Whether it takes set-id bits of a file with this mode, or would if there were any.
    fn concerns(self, caller: &Caller, mode: u32) -> bool {
        match self {
            Self::None | Self::Capability => false,
            Self::All => true,
            // Where there is nothing to lose, nothing needs to be asked: root keeps what comes meanwhile.
            Self::AsCaller if mode & SET_ID == 0 => caller.uid != 0,
            Self::AsCaller => !caller.keeps_set_id(),
        }
    }

    /// The caller holds the mode exclusively.
    fn stage_lost_bits(self, caller: &Caller, node: &Pin<'_>, patch: &mut RowPatch) {
        let header = node.header();
        let mode = patch.mode.map_or(header.mode, |bits| bits.apply(header.mode));
        if self.concerns(caller, mode) {
            // Also where none is set now: whatever sets one meanwhile must conflict.
            let clears = BitsPatch { and: !lost_bits(caller, mode, header.gid), or: 0 };
            patch.mode = Some(patch.mode.map_or(clears, |bits| bits.then(clears)));
        }
    }
}

fn mode_want(inode: u64) -> Want<'static> {
    Want::exclusive(LockName::Attributes { inode, fields: Fields::MODE })
}

/// The set-id bits that a file with these attributes loses, if they are concerned.
fn lost_bits(caller: &Caller, mode: u32, gid: u32) -> u32 {
    let set = mode & SET_ID;
    let is_locking = set & S_ISGID != 0 && mode & S_IXGRP == 0;
    if is_locking && (caller.is_in_group(gid) || caller.keeps_set_id()) { set & !S_ISGID } else { set }
}

impl Caller {
    /// Without credentials it is the file system itself.
    fn keeps_set_id(&self) -> bool {
        self.credentials.is_none_or(|credentials| credentials.keeps_set_id(self))
    }

    fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.credentials.is_none_or(|credentials| credentials.is_in_group(self, gid))
    }
}

/// The privileges that the files of a view lend.
pub(crate) struct Privileges<'v> {
    origin: &'v Origin,
    xattr: Keyspace,
}

impl<'v> Privileges<'v> {
    /// Those that files of this view lend.
    pub(crate) fn new(fs: &'v FileSystem) -> Self {
        Self { origin: &fs.origin, xattr: fs.keyspaces.xattr }
    }

    /// Adds to a change of the content, the size or the owner of `node`, which `batch` and `patch` make, what
    /// it takes away of the file's privileges. `names` hold [`PrivilegeLoss::want`].
    ///
    /// # Errors
    /// `Parked`; store errors.
    pub(crate) fn stage_loss(
        &self,
        loss: PrivilegeLoss,
        caller: &Caller,
        node: &Pin<'_>,
        names: &mut Names<'_>,
        batch: &mut Batch,
        patch: &mut RowPatch,
    ) -> Result<()> {
        if loss == PrivilegeLoss::None || node.kind == FileType::Directory || self.origin.restores() {
            return Ok(());
        }
        if loss.concerns(caller, node.header().mode) {
            if loss == PrivilegeLoss::AsCaller {
                names.try_extend(&[mode_want(node.inode)])?;
            }
            loss.stage_lost_bits(caller, node, patch);
        }
        if self.has_capability(node)? {
            let fields = Fields::XATTRS;
            names.try_extend(&[Want::exclusive(LockName::Attributes { inode: node.inode, fields })])?;
            batch.delete(self.xattr, xattr_key(node.inode, CAPABILITY));
            node.state().xattr_usage = None;
        }
        Ok(())
    }

    /// Whether the file has capabilities. Asks the store once while the node is known, and only for files
    /// with extended attributes.
    fn has_capability(&self, node: &Pin<'_>) -> Result<bool> {
        if !node.header().flags.has(RowFlags::XATTRS) {
            return Ok(false);
        }
        let absence = node.state().absence;
        if absence.is_known() {
            return Ok(false);
        }
        let key = xattr_key(node.inode, CAPABILITY);
        let is_there = self.origin.read().get(self.xattr, &key)?.is_some();
        if !is_there {
            node.state().absence.learn(absence);
        }
        Ok(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::PrivilegeLoss::{All, AsCaller, Capability, None as Nothing};
    use super::*;

    /// In group 500, and with or without `CAP_FSETID`.
    #[derive(Debug)]
    struct Known {
        keeps: bool,
    }

    impl Credentials for Known {
        fn keeps_set_id(&self, _: &Caller) -> bool {
            self.keeps
        }

        fn is_in_group(&self, _: &Caller, gid: u32) -> bool {
            gid == 500
        }
    }

    static PLAIN: Known = Known { keeps: false };
    static CAPABLE: Known = Known { keeps: true };

    #[test]
    fn set_id_bits_lost_depend_on_request_group_and_capability() {
        let plain = Caller { uid: 1000, gid: 100, credentials: Some(&PLAIN), ..Caller::default() };
        let capable = Caller { credentials: Some(&CAPABLE), ..plain.clone() };
        let system = Caller::default();
        let weak_root = Caller { uid: 0, ..plain.clone() };
        for (loss, caller, mode, gid, lost) in [
            (All, &plain, 0o6775, 500, Some(0o6000)),
            (All, &plain, 0o6765, 500, Some(0o4000)),
            (All, &plain, 0o6765, 100, Some(0o4000)),
            (All, &plain, 0o6765, 7, Some(0o6000)),
            (All, &plain, 0o2767, 7, Some(0o2000)),
            (All, &plain, 0o755, 7, Some(0)),
            (All, &capable, 0o6765, 7, Some(0o4000)),
            (AsCaller, &plain, 0o4775, 7, Some(0o4000)),
            (AsCaller, &capable, 0o4775, 7, None),
            (AsCaller, &capable, 0o775, 7, Some(0)),
            (AsCaller, &system, 0o6775, 7, None),
            (AsCaller, &weak_root, 0o6775, 7, Some(0o6000)),
            (AsCaller, &weak_root, 0o775, 7, None),
            (Capability, &plain, 0o6775, 7, None),
            (Nothing, &plain, 0o6775, 7, None),
        ] {
            let found = loss.concerns(caller, mode).then(|| lost_bits(caller, mode, gid));
            assert_eq!(found, lost, "{loss:?} {caller:?} {mode:o} {gid}");
        }
    }
}
