//! The kernel's FUSE interface, protocol 7.45: numbers and structs as they cross `/dev/fuse`.
//!
//! Purpose: a faithful statement of the wire form, nothing else. Field names are the kernel's, so that they
//! can be looked up in `<linux/fuse.h>`; every struct has its size asserted at compile time.
//! Invariants: all structs are `repr(C)`, without padding, and in native byte order (the kernel on the other
//! side is the same machine).

#![expect(missing_docs, reason = "names are those of <linux/fuse.h>, which documents them")]

pub mod flags;
pub mod notify;
mod opcode;
mod reply;
mod request;
mod ring;

pub use opcode::Opcode;
pub use reply::*;
pub use request::*;
pub use ring::*;

/// Major protocol version that this crate speaks.
pub const KERNEL_VERSION: u32 = 7;
/// Newest minor version that this crate speaks.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// Oldest minor version that this crate speaks (Linux 5.4).
pub const KERNEL_MINOR_VERSION_MIN: u32 = 31;
/// Node of the root directory.
pub const ROOT_ID: u64 = 1;
/// Bit that tells the answer to an INTERRUPT from the answer to the request it names.
pub const UNIQUE_INTERRUPT_BIT: u64 = 1;
/// Bit that marks a request which the kernel sends again after a RESEND notification.
pub const UNIQUE_RESEND_BIT: u64 = 1 << 63;
/// Smallest buffer that the kernel accepts in a read of `/dev/fuse` (bytes).
pub const READ_BUFFER_BYTES_MIN: usize = 8192;

/// Checks the size of a wire struct at compile time.
macro_rules! assert_size {
    ($($name:ident = $bytes:expr),+ $(,)?) => {
        $(const _: () = assert!(size_of::<$name>() == $bytes);)+
    };
}
pub(crate) use assert_size;

/// Defines wire structs with the derives that they all need.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $ty:ty),* $(,)? })+) => {
        $($(#[$meta])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),* })+
    };
}
pub(crate) use wire;
