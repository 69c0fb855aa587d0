//! What goes back to the kernel.

use super::{FileLock, assert_size, wire};

wire! {
    pub struct OutHeader { len: u32, error: i32, unique: u64 }
    pub struct Attr {
        ino: u64,
        size: u64,
        /// In units of 512 bytes.
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    pub struct SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    pub struct Statx {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: SxTime,
        btime: SxTime,
        ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }
    pub struct Kstatfs {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    pub struct EntryOut {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    pub struct AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    pub struct StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    pub struct OpenOut { fh: u64, open_flags: u32, backing_id: i32 }
    pub struct WriteOut { size: u32, padding: u32 }
    pub struct CopyFileRangeOut { bytes_copied: u64 }
    pub struct GetxattrOut { size: u32, padding: u32 }
    pub struct LkOut { lk: FileLock }
    pub struct InitOut {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    pub struct BmapOut { block: u64 }
    pub struct IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    pub struct PollOut { revents: u32, padding: u32 }
    pub struct LseekOut { offset: u64 }
    /// Followed by the name, padded to 8 bytes.
    pub struct Dirent { ino: u64, off: u64, namelen: u32, dirent_type: u32 }
    /// Followed by the name, padded to 8 bytes.
    pub struct Direntplus { entry_out: EntryOut, dirent: Dirent }
}

assert_size! {
    OutHeader = 16,
    Attr = 88,
    SxTime = 16,
    Statx = 256,
    Kstatfs = 80,
    EntryOut = 128,
    AttrOut = 104,
    StatxOut = 288,
    OpenOut = 16,
    WriteOut = 8,
    CopyFileRangeOut = 8,
    GetxattrOut = 8,
    LkOut = 24,
    InitOut = 64,
    BmapOut = 8,
    IoctlOut = 16,
    PollOut = 8,
    LseekOut = 8,
    Dirent = 24,
    Direntplus = 152,
}
