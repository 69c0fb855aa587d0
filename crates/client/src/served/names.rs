//! Names, attributes, extended attributes.

use kvfs_fs::{Attr, FileType, RenameMode, SetTime, StatFs, Timestamp, TxnId, XattrMode};
use kvfs_lane::{Attributes, Bytes, Call, Reply, Time};
use kvfs_posix::{Access, Place, Result, linux};

use super::{Served, at};

impl Served {
    pub(crate) fn stat<'a>(&self, place: impl Into<Place<'a>>) -> Result<Attr> {
        self.call(&Call::Stat { at: at(place) }, &[], |reply, _| match reply {
            Reply::Attributes(found) => attr(&found),
            _ => None,
        })
    }

    pub(crate) fn access<'a>(&self, place: impl Into<Place<'a>>, access: Access) -> Result<()> {
        let bit = |is_asked: bool, bit: u32| if is_asked { bit } else { 0 };
        let access = bit(access.reads, 4) | bit(access.writes, 2) | bit(access.executes, 1);
        self.done(&Call::Access { at: at(place), access }, &[])
    }

    pub(crate) fn chmod<'a>(&self, place: impl Into<Place<'a>>, mode: u32) -> Result<()> {
        self.done(&Call::Chmod { at: at(place), mode }, &[])
    }

    pub(crate) fn chown<'a>(
        &self,
        place: impl Into<Place<'a>>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.done(&Call::Chown { at: at(place), uid, gid }, &[])
    }

    pub(crate) fn utimens<'a>(
        &self,
        place: impl Into<Place<'a>>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<()> {
        let (atime, mtime) = (atime.map(time), mtime.map(time));
        self.done(&Call::Utimens { at: at(place), atime, mtime }, &[])
    }

    pub(crate) fn truncate<'a>(&self, place: impl Into<Place<'a>>, size: u64) -> Result<()> {
        self.done(&Call::Truncate { at: at(place), size }, &[])
    }

    pub(crate) fn statvfs<'a>(&self, place: impl Into<Place<'a>>) -> Result<StatFs> {
        self.call(&Call::StatFs { at: at(place) }, &[], |reply, _| match reply {
            Reply::FileSystem(found) => Some(StatFs {
                block_bytes: found.block_bytes,
                blocks: found.blocks,
                blocks_free: found.blocks_free,
                blocks_available: found.blocks_available,
                files: found.files,
                files_free: found.files_free,
                name_len_max: found.name_len_max,
            }),
            _ => None,
        })
    }

    pub(crate) fn mkdir<'a>(&self, place: impl Into<Place<'a>>, mode: u32) -> Result<()> {
        self.done(&Call::Mkdir { at: at(place), mode, umask: self.mask() }, &[])
    }

    pub(crate) fn mknod<'a>(&self, place: impl Into<Place<'a>>, mode: u32, rdev: u32) -> Result<()> {
        self.done(&Call::Mknod { at: at(place), mode, rdev, umask: self.mask() }, &[])
    }

    pub(crate) fn symlink<'a>(&self, target: &[u8], place: impl Into<Place<'a>>) -> Result<()> {
        self.done(&Call::Symlink { at: at(place) }, target)
    }

    pub(crate) fn readlink<'a>(&self, place: impl Into<Place<'a>>) -> Result<Vec<u8>> {
        self.bytes(&Call::Readlink { at: at(place) })
    }

    pub(crate) fn link<'a, 'b>(&self, old: impl Into<Place<'a>>, new: impl Into<Place<'b>>) -> Result<()> {
        self.done(&Call::Link { old: at(old), new: at(new) }, &[])
    }

    pub(crate) fn unlink<'a>(&self, place: impl Into<Place<'a>>) -> Result<()> {
        self.done(&Call::Unlink { at: at(place), is_directory: false }, &[])
    }

    pub(crate) fn rmdir<'a>(&self, place: impl Into<Place<'a>>) -> Result<()> {
        self.done(&Call::Unlink { at: at(place), is_directory: true }, &[])
    }

    pub(crate) fn remove<'a>(&self, place: impl Into<Place<'a>>) -> Result<()> {
        self.done(&Call::Remove { at: at(place) }, &[])
    }

    pub(crate) fn remove_tree<'a>(&self, place: impl Into<Place<'a>>) -> Result<Option<TxnId>> {
        let txn = self.number(&Call::RemoveTree { at: at(place) }, &[])?;
        Ok((txn != 0).then_some(TxnId(txn)))
    }

    pub(crate) fn clone_tree<'a, 'b>(
        &self,
        source: impl Into<Place<'a>>,
        target: impl Into<Place<'b>>,
    ) -> Result<Option<TxnId>> {
        let txn = self.number(&Call::CloneTree { source: at(source), target: at(target) }, &[])?;
        Ok((txn != 0).then_some(TxnId(txn)))
    }

    pub(crate) fn rename<'a, 'b>(
        &self,
        old: impl Into<Place<'a>>,
        new: impl Into<Place<'b>>,
        mode: RenameMode,
    ) -> Result<()> {
        let flags = linux::rename_flags(mode);
        self.done(&Call::Rename { old: at(old), new: at(new), flags }, &[])
    }

    pub(crate) fn getxattr<'a>(&self, place: impl Into<Place<'a>>, name: &[u8]) -> Result<Vec<u8>> {
        self.bytes(&Call::Getxattr { at: at(place), name: Bytes(name) })
    }

    pub(crate) fn setxattr<'a>(
        &self,
        place: impl Into<Place<'a>>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let flags = linux::xattr_flags(mode);
        self.done(&Call::Setxattr { at: at(place), name: Bytes(name), flags }, value)
    }

    pub(crate) fn removexattr<'a>(&self, place: impl Into<Place<'a>>, name: &[u8]) -> Result<()> {
        self.done(&Call::Removexattr { at: at(place), name: Bytes(name) }, &[])
    }

    pub(crate) fn listxattr<'a>(&self, place: impl Into<Place<'a>>) -> Result<Vec<Vec<u8>>> {
        let list = self.bytes(&Call::Listxattr { at: at(place) })?;
        let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }
}

fn time(time: SetTime) -> Time {
    match time {
        SetTime::Now => Time::Now,
        SetTime::At(Timestamp { seconds, nanos }) => Time::At { seconds, nanos },
    }
}

/// `None`: of a type that no file has.
fn attr(found: &Attributes) -> Option<Attr> {
    let timestamp = |(seconds, nanos)| Timestamp { seconds, nanos };
    Some(Attr {
        inode: found.inode,
        kind: FileType::from_mode(found.mode)?,
        mode: found.mode & 0o7777,
        nlink: found.nlink,
        uid: found.uid,
        gid: found.gid,
        rdev: found.rdev,
        size: found.size,
        blocks: found.blocks,
        atime: timestamp(found.atime),
        mtime: timestamp(found.mtime),
        ctime: timestamp(found.ctime),
        btime: timestamp(found.btime),
    })
}
