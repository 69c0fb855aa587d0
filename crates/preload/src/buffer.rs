//! A path of at most `PATH_MAX` bytes on the stack, since nothing may be allocated.
//!
//! Thread safety: a value of its owner. Invariant: `bytes[length]` is NUL.

use crate::sys::PATH_MAX;

/// A path that is being put together.
pub(crate) struct PathBuffer {
    bytes: [u8; PATH_MAX],
    length: usize,
}

impl PathBuffer {
    /// An empty path.
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; PATH_MAX], length: 0 }
    }

    /// Appends; returns `false` if the path would be too long.
    #[must_use]
    pub(crate) fn push(&mut self, part: &[u8]) -> bool {
        let end = self.length + part.len();
        let Some(place) = self.bytes.get_mut(self.length..end).filter(|_| end < PATH_MAX) else {
            return false;
        };
        place.copy_from_slice(part);
        self.bytes[end] = 0;
        self.length = end;
        true
    }

    /// The path without its NUL.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The address of the path for a system call.
    pub(crate) fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}
