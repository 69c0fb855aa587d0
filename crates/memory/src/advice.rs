//! What the kernel is told about memory.
#![expect(unsafe_code, reason = "there is no safe form of these system calls")]

use std::ffi::c_ulong;
use std::{fs, io};

use rustix::mm::{Advice, madvise};

/// `PR_THP_DISABLE_EXCEPT_ADVISED`, since Linux 6.18.
const EXCEPT_ADVISED: c_ulong = 1 << 1;

/// What the system does without being asked.
const POLICY: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Keeps the kernel from giving this process huge pages unasked: one that was freed in part stays resident as a whole. Older
/// kernels can't tell the two apart; where they give them to everybody, this process then gets none.
///
/// # Errors
/// The kernel may be built without them.
pub fn huge_pages_only_where_asked_for() -> io::Result<()> {
    let (yes, unused): (c_ulong, c_ulong) = (1, 0);
    // SAFETY: takes numbers and touches no memory.
    let told = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, EXCEPT_ADVISED, unused, unused) };
    if told == 0 || !fs::read_to_string(POLICY)?.contains("[always]") {
        return Ok(());
    }
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
}

/// Asks for huge pages for all whole pages of `zeros`, which begin on one and hold nothing but that.
///
/// # Errors
/// The kernel may be built without them; EINVAL: `zeros` begin within a page.
pub(crate) fn use_huge_pages(zeros: &mut [u8]) -> io::Result<()> {
    let page_bytes = rustix::param::page_size();
    // The kernel would round it up.
    let len = zeros.len() / page_bytes * page_bytes;
    let start = zeros.as_mut_ptr().cast();
    // SAFETY: these are whole pages that nobody else has, and they are read as zeros before and after: the allocator's memory is
    // private and anonymous, of which this drops what was touched already, with a small page for each 4 KiB.
    unsafe { madvise(start, len, Advice::LinuxDontNeed) }?;
    // SAFETY: these are whole pages, and this advice leaves what is in them as it is.
    Ok(unsafe { madvise(start, len, Advice::LinuxHugepage) }?)
}
