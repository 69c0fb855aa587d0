//! Flags and projects of inodes, as `chattr`, `lsattr` and programs for quotas of XFS ask for them: four
//! ioctls that the kernel passes on for files and directories.
//!
//! Thread safety: as [`Files`]. Invariant: what is asked for is what there is; a flag that means nothing here
//! is refused and not forgotten.

use kvfs_fs::{FsError, NodeId, Project};
use rustix::io::Errno;

use super::commit::attributes_of;
use super::{Changed, Failure, Files, Nature};
use crate::dispatch::{Ioctl, Reply, RequestContext};

/// `FS_PROJINHERIT_FL`: what is made in the directory gets its project.
const FLAG_HANDS_DOWN: u32 = 0x2000_0000;
/// `FS_XFLAG_PROJINHERIT`: the same among the flags of `struct fsxattr`.
const XFLAG_HANDS_DOWN: u32 = 0x200;

/// Bytes of `struct fsxattr`: flags, extent size, number of extents, project, extent size of copies, and 8
/// bytes of nothing.
const EXTENDED_LEN: usize = 28;
const EXTENDED_PROJECT: usize = 12;

/// One of the four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagCall {
    Get,
    Set,
    GetExtended,
    SetExtended,
}

impl FlagCall {
    /// The one with this number.
    pub(super) fn of(command: u32) -> Option<Self> {
        Some(match command {
            0x8008_6601 => Self::Get,
            0x4008_6602 => Self::Set,
            0x801c_581f => Self::GetExtended,
            0x401c_5820 => Self::SetExtended,
            _ => return None,
        })
    }

    /// What is told of a project, in as many bytes as the caller has room for.
    fn answer(self, project: Project, room: u32) -> Vec<u8> {
        let mut bytes = match self {
            Self::Get => (if project.hands_down { FLAG_HANDS_DOWN } else { 0 }).to_ne_bytes().to_vec(),
            Self::GetExtended => {
                let flags: u32 = if project.hands_down { XFLAG_HANDS_DOWN } else { 0 };
                let mut bytes = vec![0; EXTENDED_LEN];
                bytes[..4].copy_from_slice(&flags.to_ne_bytes());
                bytes[EXTENDED_PROJECT..EXTENDED_PROJECT + 4].copy_from_slice(&project.id.to_ne_bytes());
                bytes
            }
            Self::Set | Self::SetExtended => Vec::new(),
        };
        if !bytes.is_empty() {
            bytes.resize((room as usize).min(EXTENDED_LEN), 0);
        }
        bytes
    }

    /// What is to be set, where `now` is there.
    fn wish(self, now: Project, data: &[u8]) -> Result<Project, Errno> {
        let word = |at: usize| {
            let bytes = data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_ne_bytes).ok_or(Errno::INVAL)
        };
        let flags = word(0)?;
        if self == Self::Set {
            let is_known = flags & !FLAG_HANDS_DOWN == 0;
            let wish = Project { hands_down: flags & FLAG_HANDS_DOWN != 0, ..now };
            return if is_known { Ok(wish) } else { Err(Errno::OPNOTSUPP) };
        }
        // Extent sizes have no meaning either; the number of extents is only ever told.
        if flags & !XFLAG_HANDS_DOWN != 0 || word(4)? != 0 || word(16)? != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Project { id: word(EXTENDED_PROJECT)?, hands_down: flags & XFLAG_HANDS_DOWN != 0 })
    }
}

/// Whether the caller may change projects: their limits would mean little if every user could leave them.
pub(super) fn may_change_projects(cx: &RequestContext) -> bool {
    cx.uid == 0 || cx.uid == rustix::process::geteuid().as_raw()
}

impl Files {
    pub(super) fn inode_flags(
        &self,
        cx: &RequestContext,
        node: u64,
        call: FlagCall,
        room: u32,
        data: &[u8],
        reply: Reply<Ioctl>,
    ) {
        let is_change = matches!(call, FlagCall::Set | FlagCall::SetExtended);
        let (data, may_change) = (data.to_vec(), may_change_projects(cx));
        self.run_as(Nature::default(), cx, reply.map(), move |on, caller| {
            // The time of the change is new, and the kernel knows of no change by an ioctl.
            let stale = is_change.then(|| attributes_of(on.base + node));
            let node = NodeId(node);
            let now = on.fs.project(caller, node)?;
            if is_change {
                let wish = call.wish(now, &data).map_err(Failure::Plain)?;
                if wish != now && !may_change {
                    return Err(
                        FsError::NotPermitted("projects are given by root and the store's owner").into()
                    );
                }
                on.fs.set_project(caller, node, wish)?;
            }
            Ok(Changed { answer: Ioctl { result: 0, data: call.answer(now, room).into() }, stale })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_layouts_are_those_of_linux() {
        // _IOR('f', 1, long), _IOW('f', 2, long), _IOR('X', 31, struct fsxattr), _IOW('X', 32, struct
        // fsxattr)
        let number = |direction: u32, group: u8, number: u32, len: u32| {
            direction << 30 | len << 16 | u32::from(group) << 8 | number
        };
        assert_eq!(FlagCall::of(number(2, b'f', 1, 8)), Some(FlagCall::Get));
        assert_eq!(FlagCall::of(number(1, b'f', 2, 8)), Some(FlagCall::Set));
        assert_eq!(FlagCall::of(number(2, b'X', 31, 28)), Some(FlagCall::GetExtended));
        assert_eq!(FlagCall::of(number(1, b'X', 32, 28)), Some(FlagCall::SetExtended));
        assert_eq!(FlagCall::of(number(2, b'k', 1, 8)), None);
        let project = Project { id: 42, hands_down: true };
        let bytes = FlagCall::GetExtended.answer(project, 28);
        assert_eq!(FlagCall::SetExtended.wish(Project::default(), &bytes), Ok(project));
        assert_eq!((bytes.len(), bytes[12]), (28, 42));
        let flags = FlagCall::Get.answer(project, 4);
        assert_eq!(flags, 0x2000_0000_u32.to_ne_bytes());
        let alone = Project { hands_down: false, ..project };
        assert_eq!(FlagCall::Set.wish(alone, &flags), Ok(project));
        assert_eq!(FlagCall::Get.answer(project, 8).len(), 8);
    }

    #[test]
    fn what_means_nothing_here_is_refused() {
        let nothing = Project::default();
        let immutable = 0x10_u32.to_ne_bytes();
        assert_eq!(FlagCall::Set.wish(nothing, &immutable), Err(Errno::OPNOTSUPP));
        let mut bytes = FlagCall::GetExtended.answer(nothing, 28);
        bytes[4] = 1;
        assert_eq!(FlagCall::SetExtended.wish(nothing, &bytes), Err(Errno::OPNOTSUPP));
        assert_eq!(FlagCall::SetExtended.wish(nothing, &bytes[..20]), Err(Errno::OPNOTSUPP));
        assert_eq!(FlagCall::SetExtended.wish(nothing, &bytes[..8]), Err(Errno::OPNOTSUPP));
        assert_eq!(FlagCall::SetExtended.wish(nothing, &bytes[..2]), Err(Errno::INVAL));
    }
}
