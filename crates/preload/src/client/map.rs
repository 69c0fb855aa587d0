//! Mapping a file.
//!
//! A private mapping is a copy that nothing else sees, and so is a shared one of a file that is open for
//! reading alone, but that it does not follow later writes. For a shared one of a file that is open for
//! writing, too, the server has memory: all processes map the same, and it is the file's as long as a hidden
//! copy of the descriptor is there.
//!
//! Thread safety: see the back end; the list of mappings is atomic, and a child of fork has a copy of it.
//! What changes their descriptors does so as the one that asks on the connection.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU64};

use kvfs_lane::Reply;

use super::content::PIECE;
use super::page::page;
use super::server::Asking;
use super::{Done, ask_bytes, error, first, hidden, number, server};
use crate::call::Call;
use crate::slow::Verdict;
use crate::state;
use crate::sys::{self, Args};

const PAGE: u64 = 4096;

/// Most mappings at a time: one that is not listed would be synced by nothing.
const MAPPINGS_MAX: usize = 64;

/// A mapping of memory that is shared.
struct Mapping {
    /// 0: none.
    start: AtomicU64,
    len: AtomicU64,
    /// What keeps its file, and one; 0: the place is free.
    fd: AtomicI32,
}

impl Mapping {
    /// The pages that it has; empty: none.
    fn pages(&self) -> Range<u64> {
        let start = self.start.load(Acquire);
        if start == 0 { 0..0 } else { start..behind(start, self.len.load(Relaxed)) }
    }

    /// The handle of its file; `None`: it is over.
    fn handle(&self) -> Option<u64> {
        loop {
            let fd = self.fd.load(Acquire);
            let handle = super::handle(fd - 1).ok();
            // Otherwise something else may have the number by now.
            if self.fd.load(Acquire) == fd {
                return handle;
            }
        }
    }
}

/// Where the last page ends.
fn behind(start: u64, len: u64) -> u64 {
    start.saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

static MAPPINGS: [Mapping; MAPPINGS_MAX] =
    [const { Mapping { start: AtomicU64::new(0), len: AtomicU64::new(0), fd: AtomicI32::new(0) } };
        MAPPINGS_MAX];

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
    if len == 0 || offset % PAGE != 0 {
        return error(libc::EINVAL);
    }
    if mode == libc::O_WRONLY || (is_shared && protection & libc::PROT_WRITE != 0 && mode != libc::O_RDWR) {
        return error(libc::EACCES);
    }
    if is_shared && mode == libc::O_RDWR {
        return share(call, handle);
    }
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags & KEPT;
    let while_filled = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let start = place(&[address, len, while_filled, kind as u64, u64::MAX, 0]);
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

/// Maps the memory of the file, and remembers where.
fn share(call: &Call<'_>, handle: u64) -> Done {
    let memory = server::memory(handle).map_err(super::fail)?;
    let fd = call.fds[0].ok_or(Verdict::Native)?;
    let mapping = list(fd)?;
    let mut args = *call.args;
    args[4] = memory.as_raw_fd() as u64;
    let start = place(&args);
    if start < 0 {
        let_go(mapping);
        return Err(Verdict::Done(start));
    }
    state::HAS_SHARED.store(1, Relaxed);
    mapping.len.store(args[1], Relaxed);
    mapping.start.store(start as u64, Release);
    Ok(start)
}

/// Lists a mapping that is not there yet, with a hidden copy of a descriptor.
fn list(fd: i32) -> Result<&'static Mapping, Verdict> {
    let _alone = page().map(Asking::begin);
    let copy = hidden::copy(fd);
    if copy < 0 {
        return Err(Verdict::Done(copy as isize));
    }
    state::mark(copy);
    let mut mappings = MAPPINGS.iter();
    let is_taken = |mapping: &&Mapping| mapping.fd.compare_exchange(0, copy + 1, Acquire, Relaxed).is_ok();
    mappings.find(is_taken).ok_or_else(|| {
        hidden::close(copy);
        super::fail(libc::ENOMEM)
    })
}

/// The kernel's mmap. A mapping that has to be at its address replaces what is there.
pub(crate) fn place(args: &Args) -> isize {
    let start = sys::call(libc::SYS_mmap as u64, args);
    if start >= 0 && args[3] as i32 & libc::MAP_FIXED != 0 {
        let_go_all(&forget(&(start as u64..behind(start as u64, args[1]))));
    }
    start
}

/// Mappings that have no pages any more.
type Ended = [bool; MAPPINGS_MAX];

/// Pages are no longer those of mappings that are listed.
fn forget(gone: &Range<u64>) -> Ended {
    let mut ended = [false; MAPPINGS_MAX];
    for (mapping, has_ended) in MAPPINGS.iter().zip(&mut ended) {
        let pages = mapping.pages();
        if !meet(&pages, gone) {
            continue;
        }
        match (gone.start <= pages.start, pages.end <= gone.end) {
            (true, true) => {
                *has_ended = mapping.start.compare_exchange(pages.start, 0, Acquire, Relaxed).is_ok();
            }
            (true, false) => {
                mapping.start.store(gone.end, Release);
                mapping.len.store(pages.end - gone.end, Relaxed);
            }
            (false, true) => mapping.len.store(gone.start - pages.start, Relaxed),
            // Both sides keep it.
            (false, false) => {}
        }
    }
    ended
}

fn let_go_all(ended: &Ended) {
    MAPPINGS.iter().zip(ended).filter(|(_, has_ended)| **has_ended).for_each(|(mapping, _)| let_go(mapping));
}

/// A mapping has no pages any more.
fn let_go(mapping: &Mapping) {
    let _alone = page().map(Asking::begin);
    hidden::close(mapping.fd.load(Relaxed) - 1);
    mapping.fd.store(0, Release);
}

/// Whether `from` is the descriptor of a mapping. It is about to have the number `to`; called by the one that
/// [asks](Asking).
pub(super) fn has_moved(from: i32, to: i32) -> bool {
    state::mark(to);
    MAPPINGS.iter().any(|mapping| mapping.fd.compare_exchange(from + 1, to + 1, Relaxed, Relaxed).is_ok())
}

/// mremap: address, length, new length, flags, new address. A mapping that is listed stays a whole one.
pub(crate) fn remap(args: &Args) -> isize {
    let named = args[0]..behind(args[0], args[1].max(1));
    let mapping = MAPPINGS.iter().find(|mapping| meet(&mapping.pages(), &named));
    // Otherwise there would be two.
    let moves_whole = args[1] != 0 && args[3] as i32 & libc::MREMAP_DONTUNMAP == 0;
    if mapping.is_some_and(|mapping| mapping.pages() != named || !moves_whole) {
        return -(libc::ENOMEM as isize);
    }
    let start = sys::call(libc::SYS_mremap as u64, args);
    if start >= 0 && args[3] as i32 & libc::MREMAP_FIXED != 0 {
        let_go_all(&forget(&(args[4]..behind(args[4], args[2]))));
    }
    if start >= 0
        && let Some(mapping) = mapping
    {
        mapping.len.store(args[2], Relaxed);
        mapping.start.store(start as u64, Release);
    }
    start
}

/// munmap: files whose mappings are gone are let go.
pub(crate) fn unmap(args: &Args) -> isize {
    // Before: another thread may have the pages at once.
    let ended = forget(&(args[0]..behind(args[0], args[1])));
    let result = sys::call(libc::SYS_munmap as u64, args);
    let_go_all(&ended);
    result
}

/// msync: what was written reaches the file, and the disk.
pub(crate) fn sync(args: &Args) -> isize {
    let range = args[0]..args[0].saturating_add(args[1]);
    for mapping in &MAPPINGS {
        if !meet(&mapping.pages(), &range) || args[2] as i32 & libc::MS_SYNC == 0 {
            continue;
        }
        let Some(handle) = mapping.handle() else { continue };
        let failed = |reply, _: &mut [u8]| match reply {
            Reply::Done => 0,
            Reply::Failed { errno } => errno,
            // The file is another server's.
            _ => libc::EIO,
        };
        let errno =
            server::exchange(&kvfs_lane::Call::Sync { handle }, |_| 0, failed).unwrap_or_else(|errno| errno);
        if errno != 0 {
            return -(errno as isize);
        }
    }
    sys::call(libc::SYS_msync as u64, args)
}

/// Descriptors that keep files which are mapped.
pub(super) fn descriptors() -> impl Iterator<Item = i32> {
    MAPPINGS.iter().map(|mapping| mapping.fd.load(Relaxed) - 1).filter(|fd| *fd >= 0)
}

/// Copies what there is of the file.
fn fill(call: &Call<'_>, handle: u64, start: u64, len: usize, offset: u64) -> Result<(), Verdict> {
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(PIECE);
        let asked = kvfs_lane::Call::Read { handle, len: piece as u32, offset: Some(offset + done as u64) };
        let got = ask_bytes(call, &asked, piece, |_, data| {
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
