//! Attributes as the structures of the system have them.
//!
//! Thread safety: functions.

use kvfs_fs::{Attr, StatFs, Timestamp};

use crate::failure::{Result, refuse};
use crate::foreign::blank;

/// What reads and writes go well with (bytes).
const BLOCK_BYTES: i64 = 4096;

/// As stat(2) has it. Its `st_dev` is 0: the file system is on no device of the system.
pub(crate) fn stat(attr: &Attr) -> libc::stat {
    let mut stat: libc::stat = blank();
    stat.st_ino = attr.inode;
    stat.st_mode = attr.st_mode();
    stat.st_nlink = attr.nlink.into();
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    // The numbers of Linux, as makedev(3) has them.
    stat.st_rdev = device(attr.rdev);
    stat.st_size = attr.size as i64;
    stat.st_blksize = BLOCK_BYTES as _;
    stat.st_blocks = attr.blocks as i64;
    (stat.st_atime, stat.st_atime_nsec) = (attr.atime.seconds, attr.atime.nanos.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (attr.mtime.seconds, attr.mtime.nanos.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (attr.ctime.seconds, attr.ctime.nanos.into());
    stat
}

/// As statx(2) has it: all of it, whatever was asked for.
pub(crate) fn statx(attr: &Attr) -> libc::statx {
    let mut found: libc::statx = blank();
    let moment = |time: &Timestamp| {
        let mut moment = found.stx_atime;
        (moment.tv_sec, moment.tv_nsec) = (time.seconds, time.nanos);
        moment
    };
    let [atime, btime, ctime, mtime] = [&attr.atime, &attr.btime, &attr.ctime, &attr.mtime].map(moment);
    (found.stx_atime, found.stx_btime, found.stx_ctime, found.stx_mtime) = (atime, btime, ctime, mtime);
    found.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    found.stx_blksize = BLOCK_BYTES as u32;
    found.stx_nlink = attr.nlink;
    (found.stx_uid, found.stx_gid) = (attr.uid, attr.gid);
    found.stx_mode = attr.st_mode() as u16;
    found.stx_ino = attr.inode;
    found.stx_size = attr.size;
    found.stx_blocks = attr.blocks;
    let rdev = device(attr.rdev);
    (found.stx_rdev_major, found.stx_rdev_minor) = (libc::major(rdev), libc::minor(rdev));
    found
}

/// From the number that file systems keep (12 bits of major, 20 of minor) to that of programs.
fn device(rdev: u32) -> libc::dev_t {
    let (major, minor) = ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00));
    libc::makedev(major, minor)
}

/// The other way round.
pub(crate) fn rdev(device: libc::dev_t) -> Result<u32> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    if major > 0xfff || minor > 0xf_ffff {
        return refuse(libc::EINVAL, "the numbers of the device are too large");
    }
    Ok((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// As statvfs(3) has it.
pub(crate) fn statvfs(found: &StatFs) -> libc::statvfs {
    let mut stat: libc::statvfs = blank();
    stat.f_bsize = found.block_bytes.into();
    stat.f_frsize = found.block_bytes.into();
    stat.f_blocks = found.blocks;
    stat.f_bfree = found.blocks_free;
    stat.f_bavail = found.blocks_available;
    stat.f_files = found.files;
    stat.f_ffree = found.files_free;
    stat.f_favail = found.files_free;
    stat.f_namemax = found.name_len_max.into();
    stat
}

/// From a time of C.
pub(crate) fn timestamp(time: &libc::timespec) -> Result<Timestamp> {
    match u32::try_from(time.tv_nsec) {
        Ok(nanos) if nanos < 1_000_000_000 => Ok(Timestamp { seconds: time.tv_sec, nanos }),
        _ => refuse(libc::EINVAL, "no number of nanoseconds"),
    }
}
