//! What replies carry, and how it is laid out for the kernel.

use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;
use zerocopy::IntoBytes;

use super::DirectoryBuffer;
use crate::abi::{self, Attr, FileLock, Kstatfs, Opcode};

/// Slices that are passed to the kernel at once without joining them first; more are joined.
pub(crate) const PARTS_MAX: usize = 64;

/// An answer to a request.
pub trait Payload: Sized {
    /// Calls `send` with the parts of the answer to a request with `opcode`.
    fn with_parts<R>(&self, opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R;
}

/// A name was found or made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry {
    /// The kernel's handle of the inode from now on; 0 says "no such name" and lets the kernel remember that.
    pub node: u64,
    /// With `node` unique for the life of the file system.
    pub generation: u64,
    /// Attributes.
    pub attr: Attr,
    /// How long the kernel may use the name without asking.
    pub entry_timeout: Duration,
    /// How long the kernel may use the attributes without asking.
    pub attr_timeout: Duration,
}

impl Entry {
    /// "No such name", valid for `timeout`.
    pub fn negative(timeout: Duration) -> Self {
        Self { entry_timeout: timeout, ..Self::default() }
    }

    pub(crate) fn to_wire(self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.node,
            generation: self.generation,
            entry_valid: self.entry_timeout.as_secs(),
            attr_valid: self.attr_timeout.as_secs(),
            entry_valid_nsec: self.entry_timeout.subsec_nanos(),
            attr_valid_nsec: self.attr_timeout.subsec_nanos(),
            attr: self.attr,
        }
    }
}

/// Attributes of a node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes {
    /// The attributes.
    pub attr: Attr,
    /// How long the kernel may use them without asking.
    pub timeout: Duration,
}

/// Attributes in the form of statx(2), with the birth time.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExtendedAttributes {
    /// The attributes; `mask` says which are valid.
    pub stat: abi::Statx,
    /// How long the kernel may use them without asking.
    pub timeout: Duration,
}

/// An opened file or directory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opened {
    /// Handle that the kernel passes with later requests.
    pub fh: u64,
    /// Bits of [`abi::flags::open`].
    pub flags: u32,
}

/// A made and opened file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Created {
    /// The new name.
    pub entry: Entry,
    /// The open file.
    pub opened: Opened,
}

/// Bytes that were written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written(pub u32);

/// Bytes that were copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied(pub u64);

/// A position in a file (bytes).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offset(pub u64);

/// A block number on the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceBlock(pub u64);

/// Numbers for statfs(2).
#[derive(Debug, Clone, Copy, Default)]
pub struct Statfs(pub Kstatfs);

/// The lock that is in the way, or an unlocked range.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lock(pub FileLock);

/// Events that are ready.
#[derive(Debug, Clone, Copy, Default)]
pub struct PollEvents(pub u32);

/// The answer to an ioctl.
#[derive(Debug, Clone, Default)]
pub struct Ioctl {
    /// What ioctl(2) returns.
    pub result: i32,
    /// What is copied to the caller's argument.
    pub data: Bytes,
}

/// An extended attribute, or a list of names.
#[derive(Debug, Clone)]
pub enum Xattr {
    /// Its size (bytes), to a request that asked with size 0.
    Size(u32),
    /// Its value; names end with NUL each.
    Value(Bytes),
}

/// File data.
#[derive(Debug, Clone)]
pub enum Data {
    /// In one piece.
    Whole(Bytes),
    /// In pieces, in order.
    Pieces(Vec<Bytes>),
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }
}

impl Payload for () {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[])
    }
}

impl Payload for Entry {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(self.to_wire().as_bytes())])
    }
}

impl Payload for Attributes {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let out = abi::AttrOut {
            attr_valid: self.timeout.as_secs(),
            attr_valid_nsec: self.timeout.subsec_nanos(),
            dummy: 0,
            attr: self.attr,
        };
        send(&[IoSlice::new(out.as_bytes())])
    }
}

impl Payload for ExtendedAttributes {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let out = abi::StatxOut {
            attr_valid: self.timeout.as_secs(),
            attr_valid_nsec: self.timeout.subsec_nanos(),
            stat: self.stat,
            ..abi::StatxOut::default()
        };
        send(&[IoSlice::new(out.as_bytes())])
    }
}

impl Opened {
    fn to_wire(self) -> abi::OpenOut {
        abi::OpenOut { fh: self.fh, open_flags: self.flags, backing_id: 0 }
    }
}

impl Payload for Opened {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(self.to_wire().as_bytes())])
    }
}

impl Payload for Created {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let (entry, opened) = (self.entry.to_wire(), self.opened.to_wire());
        send(&[IoSlice::new(entry.as_bytes()), IoSlice::new(opened.as_bytes())])
    }
}

impl Payload for Written {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(abi::WriteOut { size: self.0, padding: 0 }.as_bytes())])
    }
}

impl Payload for Copied {
    fn with_parts<R>(&self, opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        if opcode == Opcode::CopyFileRange64 {
            return send(&[IoSlice::new(abi::CopyFileRangeOut { bytes_copied: self.0 }.as_bytes())]);
        }
        Written(u32::try_from(self.0).unwrap_or(u32::MAX)).with_parts(opcode, send)
    }
}

impl Payload for Offset {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(abi::LseekOut { offset: self.0 }.as_bytes())])
    }
}

impl Payload for DeviceBlock {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(abi::BmapOut { block: self.0 }.as_bytes())])
    }
}

impl Payload for Statfs {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(self.0.as_bytes())])
    }
}

impl Payload for Lock {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(self.0.as_bytes())])
    }
}

impl Payload for PollEvents {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(abi::PollOut { revents: self.0, padding: 0 }.as_bytes())])
    }
}

impl Payload for Ioctl {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let out = abi::IoctlOut { result: self.result, ..abi::IoctlOut::default() };
        send(&[IoSlice::new(out.as_bytes()), IoSlice::new(&self.data)])
    }
}

impl Payload for Xattr {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        match self {
            Self::Size(size) => {
                send(&[IoSlice::new(abi::GetxattrOut { size: *size, padding: 0 }.as_bytes())])
            }
            Self::Value(value) => send(&[IoSlice::new(value)]),
        }
    }
}

impl Payload for Data {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        match self {
            Self::Whole(bytes) => send(&[IoSlice::new(bytes)]),
            Self::Pieces(pieces) if pieces.len() <= PARTS_MAX => {
                let parts: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                send(&parts)
            }
            Self::Pieces(pieces) => send(&[IoSlice::new(&pieces.concat())]),
        }
    }
}

impl Payload for DirectoryBuffer {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(self.bytes())])
    }
}

impl Payload for Bytes {
    fn with_parts<R>(&self, _opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        send(&[IoSlice::new(self)])
    }
}
