//! Mapping a file: its content is copied into memory of the process.
//!
//! A private mapping is a copy that nothing else sees, and so is a shared one that is only read, but that it does not follow later
//! writes. A shared one that is written would have to be one memory for all, and is refused.
//!
//! Thread safety: see the back end.

use super::content::PIECE;
use super::{Done, ask, error, first, number};
use crate::call::Call;
use crate::slow::Verdict;
use crate::sys;

/// Flags of a mapping that mean something without a file.
const KEPT: i32 = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_32BIT
    | libc::MAP_LOCKED;

/// mmap: address, length, protection, flags, descriptor, offset.
pub(super) fn map(call: &Call<'_>) -> Done {
    let [address, len, protection, flags, _, offset] = *call.args;
    let (protection, flags) = (protection as i32, flags as i32);
    if flags & libc::MAP_ANONYMOUS != 0 {
        return Err(Verdict::Native);
    }
    let handle = first(call)?;
    let mode = number(call, &kvfs_lane::Call::Flags { handle })? as i32 & libc::O_ACCMODE;
    let is_shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    if len == 0 || offset % 4096 != 0 {
        return error(libc::EINVAL);
    }
    if mode == libc::O_WRONLY || (is_shared && protection & libc::PROT_WRITE != 0 && mode != libc::O_RDWR) {
        return error(libc::EACCES);
    }
    if is_shared && protection & libc::PROT_WRITE != 0 {
        return error(libc::ENODEV);
    }
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags & KEPT;
    let while_filled = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let start = sys::call(call.nr, &[address, len, while_filled, kind as u64, u64::MAX, 0]);
    if start < 0 {
        return Err(Verdict::Done(start));
    }
    let filled = fill(call, handle, start as u64, len as usize, offset);
    if let Err(verdict) = filled {
        sys::call(libc::SYS_munmap as u64, &[start as u64, len, 0, 0, 0, 0]);
        return Err(verdict);
    }
    if protection as u64 != while_filled {
        sys::call(libc::SYS_mprotect as u64, &[start as u64, len, protection as u64, 0, 0, 0]);
    }
    Ok(start)
}

/// Copies what there is of the file.
fn fill(call: &Call<'_>, handle: u64, start: u64, len: usize, offset: u64) -> Result<(), Verdict> {
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(PIECE);
        let asked = kvfs_lane::Call::Read { handle, len: piece as u32, offset: Some(offset + done as u64) };
        let got = ask(call, &asked, |_, data| {
            sys::bytes(start + done as u64, data.len()).copy_from_slice(data);
            Some(data.len())
        })?;
        done += got;
        if got < piece {
            break;
        }
    }
    Ok(())
}
