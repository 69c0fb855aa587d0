//! Requests by `io_uring` (Linux 6.14): what an entry of a queue holds, and the commands about it.

use super::{assert_size, wire};

wire! {
    /// What the daemon and the kernel tell one another about an entry.
    pub struct RingEntInOut {
        flags: u64,
        /// The number by which the answer names the entry.
        commit_id: u64,
        /// Length of what is in the payload (bytes).
        payload_sz: u32,
        padding: u32,
        reserved: u64,
    }

    /// The start of the 80 bytes of a command.
    pub struct RingCmdReq { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

/// The headers of one entry.
#[derive(
    Debug, Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
)]
#[repr(C)]
pub struct RingReqHeader {
    /// [`super::InHeader`] of a request, [`super::OutHeader`] of an answer.
    pub in_out: [u8; 128],
    /// The first argument of a request.
    pub op_in: [u8; 128],
    pub ring_ent_in_out: RingEntInOut,
}

assert_size! { RingEntInOut = 32, RingCmdReq = 24, RingReqHeader = 288 }

/// Makes an entry known, which waits for a request from then on.
pub const RING_CMD_REGISTER: u32 = 1;
/// Answers the request of an entry, which waits for the next one then.
pub const RING_CMD_COMMIT_AND_FETCH: u32 = 2;
