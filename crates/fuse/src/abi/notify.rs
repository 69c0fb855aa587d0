//! Notifications: messages to the kernel that no request asked for (unique 0, code in `error`).

use super::{assert_size, wire};

pub const POLL: i32 = 1;
pub const INVAL_INODE: i32 = 2;
pub const INVAL_ENTRY: i32 = 3;
pub const STORE: i32 = 4;
pub const RETRIEVE: i32 = 5;
pub const DELETE: i32 = 6;
pub const RESEND: i32 = 7;
pub const INC_EPOCH: i32 = 8;
pub const PRUNE: i32 = 9;

wire! {
    pub struct PollWakeupOut { kh: u64 }
    pub struct InvalInodeOut { ino: u64, off: i64, len: i64 }
    pub struct InvalEntryOut { parent: u64, namelen: u32, flags: u32 }
    pub struct DeleteOut { parent: u64, child: u64, namelen: u32, padding: u32 }
    pub struct StoreOut { nodeid: u64, offset: u64, size: u32, padding: u32 }
    pub struct RetrieveOut { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// Followed by `count` node ids.
    pub struct PruneOut { count: u32, padding: u32, spare: u64 }
}

assert_size! {
    PollWakeupOut = 8,
    InvalInodeOut = 24,
    InvalEntryOut = 16,
    DeleteOut = 24,
    StoreOut = 24,
    RetrieveOut = 32,
    PruneOut = 16,
}
