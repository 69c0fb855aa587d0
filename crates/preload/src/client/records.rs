//! Structures that the kernel fills in for programs, as words.
//!
//! Thread safety: pure. Invariant: the layouts are those of x86-64.

use kvfs_lane::{Attributes, FsNumbers};

/// Device of the store's files: major 0, as of every file system without a disk of its own.
const DEVICE_MINOR: u32 = 0xb_6b76;
const BLOCK_BYTES: u64 = 4096;

/// Of FUSE, which programs know.
const FS_TYPE: u64 = 0x6573_5546;

/// struct stat.
pub(super) fn stat(found: &Attributes) -> [u64; 18] {
    let device = u64::from(DEVICE_MINOR & 0xff) | u64::from(DEVICE_MINOR & !0xff) << 12;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let [atime, mtime, ctime] =
        [found.atime, found.mtime, found.ctime].map(|(seconds, nanos)| (seconds as u64, u64::from(nanos)));
    [
        device,
        found.inode,
        found.nlink.into(),
        pair(found.mode, found.uid),
        found.gid.into(),
        found.rdev.into(),
        found.size,
        BLOCK_BYTES,
        found.blocks,
        atime.0,
        atime.1,
        mtime.0,
        mtime.1,
        ctime.0,
        ctime.1,
        0,
        0,
        0,
    ]
}

/// struct statx, with the basic fields and the birth time.
pub(super) fn statx(found: &Attributes) -> [u64; 32] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut words = [0; 32];
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    words[0] = pair(mask, BLOCK_BYTES as u32);
    words[2] = pair(found.nlink, found.uid);
    words[3] = pair(found.gid, found.mode);
    words[4] = found.inode;
    words[5] = found.size;
    words[6] = found.blocks;
    let times = [found.atime, found.btime, found.ctime, found.mtime];
    for (words, (seconds, nanos)) in words[8..16].as_chunks_mut::<2>().0.iter_mut().zip(times) {
        *words = [seconds as u64, nanos.into()];
    }
    // Numbers of 32 bits: 12 of the major one, 20 of the minor one.
    words[16] = pair(found.rdev >> 8 & 0xfff, found.rdev & 0xff | found.rdev >> 12 & 0xfff00);
    words[17] = pair(0, DEVICE_MINOR);
    words
}

/// struct statfs.
pub(super) fn statfs(found: &FsNumbers) -> [u64; 15] {
    let mut words = [0; 15];
    words[0] = FS_TYPE;
    words[1] = found.block_bytes.into();
    words[2] = found.blocks;
    words[3] = found.blocks_free;
    words[4] = found.blocks_available;
    words[5] = found.files;
    words[6] = found.files_free;
    words[7] = DEVICE_MINOR.into();
    words[8] = found.name_len_max.into();
    words[9] = found.block_bytes.into();
    words
}
