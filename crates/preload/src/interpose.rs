//! Functions of libc whose system call has a form that cannot be patched, replaced by symbol.
//!
//! Thread safety: as libc's. Invariant: each does what libc's does, with the call going through [`dispatch`].

use crate::slow::dispatch;

/// Sets errno as libc does.
fn result(value: isize) -> i32 {
    if value < 0 {
        // SAFETY: libc has an errno for each thread.
        unsafe { *libc::__errno_location() = -value as i32 };
        return -1;
    }
    value as i32
}

/// ioctl of libc; the third argument is absent in some calls, and then not looked at.
///
/// # Safety
/// As ioctl.
// SAFETY: replaces the symbol of libc with the same signature; a variadic argument is passed as a plain one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: i32, request: u64, argument: u64) -> i32 {
    result(dispatch(libc::SYS_ioctl as u64, &[fd as u64, request, argument, 0, 0, 0]))
}

/// umask of libc: the back end hears of it.
// SAFETY: replaces the symbol of libc with the same signature.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umask(mask: u32) -> u32 {
    dispatch(libc::SYS_umask as u64, &[u64::from(mask), 0, 0, 0, 0, 0]) as u32
}

/// `posix_fadvise` of libc: returns the error number.
// SAFETY: replaces the symbol of libc with the same signature.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn posix_fadvise(fd: i32, offset: i64, length: i64, advice: i32) -> i32 {
    let args = [fd as u64, offset as u64, length as u64, advice as u64, 0, 0];
    -dispatch(libc::SYS_fadvise64 as u64, &args) as i32
}

/// `posix_fadvise64` of libc.
// SAFETY: replaces the symbol of libc with the same signature.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn posix_fadvise64(fd: i32, offset: i64, length: i64, advice: i32) -> i32 {
    posix_fadvise(fd, offset, length, advice)
}
