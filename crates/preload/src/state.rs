//! What the entry knows of the process: the prefix, which descriptors may belong to the store, where the
//! process may be.
//!
//! Thread safety: atomics; the prefix is written once, before any site is patched.
//! Invariant: bits are supersets of the truth. A child of vfork shares them, so no `close` may clear one.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Descriptors from this number on are always asked about.
pub(crate) const DESCRIPTORS: usize = 65536;

/// The longest prefix, with its NUL.
pub(crate) const PREFIX_MAX: usize = 256;

/// The working directory is elsewhere.
pub(crate) const CWD_OUTSIDE: u8 = 0;
/// The working directory may belong to the store, or lie above the prefix.
pub(crate) const CWD_NEAR: u8 = 1;

/// A bit for each descriptor that may belong to the store.
pub(crate) static MARKS: [AtomicU32; DESCRIPTORS / 32] = [const { AtomicU32::new(0) }; DESCRIPTORS / 32];
/// The highest descriptor that may belong to the store; -1: none.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);
/// Where the working directory is.
pub(crate) static CWD: AtomicU8 = AtomicU8::new(CWD_OUTSIDE);
/// Whether memory is or was shared with other processes by way of the store.
pub(crate) static HAS_SHARED: AtomicU8 = AtomicU8::new(0);
/// The prefix as a C string; an empty one is none.
pub(crate) static PREFIX: [AtomicU8; PREFIX_MAX] = [const { AtomicU8::new(0) }; PREFIX_MAX];
static PREFIX_LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Notes that a descriptor may belong to the store.
pub(crate) fn mark(fd: i32) {
    HIGHEST.fetch_max(fd, Relaxed);
    if let Some(word) = usize::try_from(fd).ok().and_then(|fd| MARKS.get(fd / 32)) {
        word.fetch_or(1 << (fd % 32), Relaxed);
    }
}

/// Whether a descriptor may belong to the store.
pub(crate) fn is_marked(fd: i32) -> bool {
    let Ok(at) = usize::try_from(fd) else { return false };
    MARKS.get(at / 32).is_none_or(|word| word.load(Relaxed) & (1 << (fd % 32)) != 0)
}

/// No higher descriptor belongs to the store.
pub(crate) fn highest() -> i32 {
    HIGHEST.load(Relaxed)
}

/// Sets the prefix: absolute, without a slash at the end. Returns `false` if it is not.
#[must_use]
pub(crate) fn set_prefix(prefix: &[u8]) -> bool {
    let is_valid =
        prefix.len() > 1 && prefix.len() < PREFIX_MAX && prefix[0] == b'/' && !prefix.ends_with(b"/");
    if is_valid {
        for (place, byte) in PREFIX.iter().zip(prefix) {
            place.store(*byte, Relaxed);
        }
        PREFIX[prefix.len()].store(0, Relaxed);
        PREFIX_LENGTH.store(prefix.len(), Relaxed);
    }
    is_valid
}

/// The prefix, copied into `buffer`.
pub(crate) fn prefix(buffer: &mut [u8; PREFIX_MAX]) -> &[u8] {
    let length = PREFIX_LENGTH.load(Relaxed);
    for (to, from) in buffer.iter_mut().zip(&PREFIX[..length]) {
        *to = from.load(Relaxed);
    }
    &buffer[..length]
}

/// The directory that holds the prefix.
pub(crate) fn parent(prefix: &[u8]) -> &[u8] {
    &prefix[..prefix.iter().rposition(|b| *b == b'/').unwrap_or(0).max(1)]
}
