//! Between the types of the file system and those of the kernel.

use std::time::Duration;

use kvfs_fs::{Attr, FileType, SeekKind, SetAttr, SetTime, StatFs, Timestamp};
use rustix::io::Errno;

use super::BridgeConfig;
use crate::abi::{self, Kstatfs, SxTime};
use crate::dispatch::{AttributeChange, Attributes, Entry, ExtendedAttributes, Statfs, TimeChange};

const BLOCK_BYTES: u32 = 4096;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
const STATX_BASIC_AND_BIRTH: u32 = 0xfff;

pub(super) fn attr(from: &Attr) -> abi::Attr {
    abi::Attr {
        ino: from.inode,
        size: from.size,
        blocks: from.blocks,
        atime: from.atime.seconds as u64,
        mtime: from.mtime.seconds as u64,
        ctime: from.ctime.seconds as u64,
        atimensec: from.atime.nanos,
        mtimensec: from.mtime.nanos,
        ctimensec: from.ctime.nanos,
        mode: from.st_mode(),
        nlink: from.nlink,
        uid: from.uid,
        gid: from.gid,
        rdev: from.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// The mode of a program that lends privileges changes with its content, which the kernel does not always
/// expect: it asks for it each time, last before it runs the program.
fn attr_timeout(of: &Attr, config: &BridgeConfig) -> Duration {
    match of.kind {
        FileType::Directory => config.directory_attr_timeout,
        FileType::Regular if of.mode & SET_ID != 0 => Duration::ZERO,
        _ => config.attr_timeout,
    }
}

pub(super) fn attributes(from: &Attr, config: &BridgeConfig) -> Attributes {
    Attributes { attr: attr(from), timeout: attr_timeout(from, config) }
}

pub(super) fn entry(from: &kvfs_fs::Entry, config: &BridgeConfig) -> Entry {
    Entry {
        node: from.node.0,
        generation: from.generation,
        attr: attr(&from.attr),
        entry_timeout: config.entry_timeout,
        attr_timeout: attr_timeout(&from.attr, config),
    }
}

pub(super) fn extended(from: &Attr, config: &BridgeConfig) -> ExtendedAttributes {
    let time = |time: Timestamp| SxTime { tv_sec: time.seconds, tv_nsec: time.nanos, reserved: 0 };
    let stat = abi::Statx {
        mask: STATX_BASIC_AND_BIRTH,
        blksize: BLOCK_BYTES,
        nlink: from.nlink,
        uid: from.uid,
        gid: from.gid,
        mode: from.st_mode() as u16,
        ino: from.inode,
        size: from.size,
        blocks: from.blocks,
        atime: time(from.atime),
        btime: time(from.btime),
        ctime: time(from.ctime),
        mtime: time(from.mtime),
        rdev_major: from.rdev >> 8 & 0xfff,
        rdev_minor: from.rdev & 0xff | from.rdev >> 12 & 0xfff00,
        ..abi::Statx::default()
    };
    ExtendedAttributes { stat, timeout: attr_timeout(from, config) }
}

pub(super) fn changes(from: &AttributeChange) -> SetAttr {
    let at = |seconds, nanos| Timestamp { seconds, nanos };
    let time = |change| match change {
        TimeChange::Now => SetTime::Now,
        TimeChange::At(seconds, nanos) => SetTime::At(at(seconds, nanos)),
    };
    SetAttr {
        mode: from.mode.map(|mode| mode & 0o7777),
        uid: from.uid,
        gid: from.gid,
        size: from.size,
        atime: from.atime.map(time),
        mtime: from.mtime.map(time),
        ctime: from.ctime.map(|(seconds, nanos)| at(seconds, nanos)),
        kill_suidgid: from.kill_suidgid,
    }
}

pub(super) fn statfs(from: &StatFs) -> Statfs {
    Statfs(Kstatfs {
        blocks: from.blocks,
        bfree: from.blocks_free,
        bavail: from.blocks_available,
        files: from.files,
        ffree: from.files_free,
        bsize: from.block_bytes,
        namelen: from.name_len_max,
        frsize: from.block_bytes,
        ..Kstatfs::default()
    })
}

pub(super) fn seek_kind(whence: u32) -> Result<SeekKind, Errno> {
    match whence {
        3 => Ok(SeekKind::Data),
        4 => Ok(SeekKind::Hole),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_programs_that_lend_privileges_are_not_cached() {
        let config = BridgeConfig::default();
        let of = |kind, mode| Attr {
            inode: 2,
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
        };
        for (kind, mode, is_cached) in [
            (FileType::Regular, 0o4755, false),
            (FileType::Regular, 0o2745, false),
            (FileType::Regular, 0o755, true),
            (FileType::Directory, 0o2775, true),
        ] {
            let attr = of(kind, mode);
            let entry = kvfs_fs::Entry { node: kvfs_fs::NodeId(2), generation: 0, attr };
            let timeouts = [
                attributes(&attr, &config).timeout,
                super::entry(&entry, &config).attr_timeout,
                extended(&attr, &config).timeout,
            ];
            assert!(timeouts.iter().all(|timeout| timeout.is_zero() != is_cached), "{mode:o}");
        }
    }
}
