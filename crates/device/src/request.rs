//! The checks that every device makes on a request before it touches the medium.
//!
//! Thread safety: pure functions.

use crate::SECTOR_BYTES;
use std::io;

/// Checks alignment and bounds of a read.
pub(crate) fn check_read(len_bytes: u64, offset: u64, len: usize) -> io::Result<()> {
    check_aligned("read", offset, len as u64)?;
    if end_of(offset, len as u64).is_none_or(|end| end > len_bytes) {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("read of {len} bytes at {offset} passes the end of the device at {len_bytes}"),
        ));
    }
    Ok(())
}

/// The error of a read up to `end` on a device of this length. A medium that ends before has gone, or was
/// shortened: that is no read past the end.
pub(crate) fn read_error(error: io::Error, len_bytes: u64, end: u64) -> io::Error {
    if error.kind() != io::ErrorKind::UnexpectedEof || end > len_bytes {
        return error;
    }
    io::Error::other(format!("the medium has gone, or ends before its {len_bytes} bytes: {error}"))
}

/// Checks alignment and bounds of a write or allocation; `call` names it in the message.
pub(crate) fn check_write(call: &str, len_bytes: u64, offset: u64, len: u64) -> io::Result<()> {
    check_aligned(call, offset, len)?;
    if end_of(offset, len).is_none_or(|end| end > len_bytes) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{call} of {len} bytes at {offset} passes the end of the device at {len_bytes}"),
        ));
    }
    Ok(())
}

/// Checks that a length asked of `grow` is whole sectors.
pub(crate) fn check_grow(len: u64) -> io::Result<()> {
    check_aligned("grow", 0, len)
}

/// The error of a `grow` that finds no space.
pub(crate) fn storage_full(len_now: u64, len_asked: u64, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::StorageFull,
        format!("no space to grow the device from {len_now} to {len_asked} bytes: {why}"),
    )
}

fn check_aligned(call: &str, offset: u64, len: u64) -> io::Result<()> {
    let sector = SECTOR_BYTES as u64;
    if offset.is_multiple_of(sector) && len.is_multiple_of(sector) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{call} of {len} bytes at {offset} is not in whole sectors of {sector} bytes"),
    ))
}

fn end_of(offset: u64, len: u64) -> Option<u64> {
    offset.checked_add(len)
}
