//! What the kernel sends.

use super::{assert_size, wire};

wire! {
    pub struct InHeader {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        /// Length of the extensions at the end of the request, in units of 8 bytes.
        total_extlen: u16,
        padding: u16,
    }

    /// The part of INIT that every supported kernel sends.
    pub struct InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// What follows [`InitIn`] since 7.36.
    pub struct InitInExt { flags2: u32, unused: [u32; 11] }

    pub struct ForgetIn { nlookup: u64 }
    pub struct ForgetOne { nodeid: u64, nlookup: u64 }
    pub struct BatchForgetIn { count: u32, dummy: u32 }
    pub struct GetattrIn { getattr_flags: u32, dummy: u32, fh: u64 }
    pub struct StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    pub struct MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    pub struct MkdirIn { mode: u32, umask: u32 }
    pub struct RenameIn { newdir: u64 }
    pub struct Rename2In { newdir: u64, flags: u32, padding: u32 }
    pub struct LinkIn { oldnodeid: u64 }
    pub struct SetattrIn {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    pub struct OpenIn { flags: u32, open_flags: u32 }
    pub struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    pub struct ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    pub struct FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    pub struct ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    pub struct WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    pub struct FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    /// SETXATTR without the extension that `SETXATTR_EXT` negotiates.
    pub struct SetxattrInCompat { size: u32, flags: u32 }
    pub struct SetxattrExt { setxattr_flags: u32, padding: u32 }
    pub struct GetxattrIn { size: u32, padding: u32 }
    pub struct FileLock { start: u64, end: u64, lock_type: u32, pid: u32 }
    pub struct LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    pub struct AccessIn { mask: u32, padding: u32 }
    pub struct InterruptIn { unique: u64 }
    pub struct BmapIn { block: u64, blocksize: u32, padding: u32 }
    pub struct IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    pub struct PollIn { fh: u64, kh: u64, flags: u32, events: u32 }
    pub struct FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    pub struct LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    pub struct CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    pub struct SyncfsIn { padding: u64 }
    /// Head of one request extension; `size` includes it.
    pub struct ExtHeader { size: u32, ext_type: u32 }
    pub struct SecctxHeader { size: u32, nr_secctx: u32 }
    pub struct Secctx { size: u32, padding: u32 }
    /// Followed by `nr_groups` group ids.
    pub struct SuppGroups { nr_groups: u32 }
    /// Answer to a RETRIEVE notification, followed by the data.
    pub struct NotifyRetrieveIn {
        dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64,
    }
}

assert_size! {
    InHeader = 40,
    InitIn = 16,
    InitInExt = 48,
    ForgetIn = 8,
    ForgetOne = 16,
    BatchForgetIn = 8,
    GetattrIn = 16,
    StatxIn = 24,
    MknodIn = 16,
    MkdirIn = 8,
    RenameIn = 8,
    Rename2In = 16,
    LinkIn = 8,
    SetattrIn = 88,
    OpenIn = 8,
    CreateIn = 16,
    ReleaseIn = 24,
    FlushIn = 24,
    ReadIn = 40,
    WriteIn = 40,
    FsyncIn = 16,
    SetxattrInCompat = 8,
    SetxattrExt = 8,
    GetxattrIn = 8,
    FileLock = 24,
    LkIn = 48,
    AccessIn = 8,
    InterruptIn = 8,
    BmapIn = 16,
    IoctlIn = 32,
    PollIn = 24,
    FallocateIn = 32,
    LseekIn = 24,
    CopyFileRangeIn = 56,
    SyncfsIn = 8,
    ExtHeader = 8,
    SecctxHeader = 8,
    Secctx = 8,
    SuppGroups = 4,
    NotifyRetrieveIn = 40,
}
