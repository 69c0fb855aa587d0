//! What the kernel is told about the memory of the process.
#![expect(unsafe_code, reason = "there is no safe form of this system call")]

use std::ffi::c_ulong;
use std::{fs, io};

/// `PR_THP_DISABLE_EXCEPT_ADVISED`, since Linux 6.18.
const EXCEPT_ADVISED: c_ulong = 1 << 1;

/// What the system does without being asked.
const POLICY: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Keeps the kernel from giving this process huge pages unasked: one that was freed in part stays resident as
/// a whole. Older kernels can't tell the two apart; where they give them to every process, this process then
/// gets none.
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
