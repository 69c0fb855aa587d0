//! System calls made by the library itself, and the memory of the program that they name.
//!
//! Thread safety: functions without state. Invariant: no function here goes through libc, so none is
//! intercepted.

use std::arch::asm;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// The number of a system call.
pub(crate) type Number = u64;

/// Arguments of a system call in the order of the kernel.
pub(crate) type Args = [u64; 6];

/// The longest path that the kernel takes, with its NUL.
pub(crate) const PATH_MAX: usize = 4096;

/// Makes a system call as the program would. A negative result is an error number.
pub(crate) fn call(nr: Number, args: &Args) -> isize {
    let result: isize;
    // SAFETY: the caller forwards a call of the program, or passes memory that it owns.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The string of the program at `address`, without its NUL, or `None` if it is longer than the kernel takes.
pub(crate) fn string<'a>(address: u64) -> Option<&'a [u8]> {
    let start = address as *const u8;
    for length in 0..PATH_MAX {
        // SAFETY: the program passed a C string; no byte behind its NUL is read.
        if unsafe { start.add(length).read() } == 0 {
            // SAFETY: as above; the string outlives the call that it is an argument of.
            return Some(unsafe { std::slice::from_raw_parts(start, length) });
        }
    }
    None
}

/// The word of the program at `address`, as of an array of pointers.
pub(crate) fn word(address: u64, index: usize) -> u64 {
    // SAFETY: the program passed an array that ends with a null pointer, or a structure of at least that many
    // words.
    unsafe { (address as *const u64).add(index).read_unaligned() }
}

/// Bytes that the kernel filled in for the program.
pub(crate) fn bytes<'a>(address: u64, length: usize) -> &'a mut [u8] {
    // SAFETY: the kernel accepted `length` bytes at `address` in the same call.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length) }
}

/// Fills in a structure of the program, word by word.
pub(crate) fn put_words(address: u64, words: &[u64]) {
    // SAFETY: the program passed room for a structure of that size, which the kernel would fill in.
    unsafe { (address as *mut u8).copy_from_nonoverlapping(words.as_ptr().cast(), size_of_val(words)) }
}

/// A descriptor of the library's own, which it closes.
pub(crate) fn own(fd: i32) -> OwnedFd {
    // SAFETY: the caller has it from the kernel, and keeps no other record of it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A descriptor of the library's own that stays open.
pub(crate) fn borrow(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: no number is negative; the program can't close what is hidden from it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Lets each child of fork begin with a call of `child`. Returns `false` if libc refuses.
#[must_use]
pub(crate) fn at_fork(child: extern "C" fn()) -> bool {
    // SAFETY: the function lives as long as the library, which is never unloaded, and does what may be done
    // in such a child.
    unsafe { libc::pthread_atfork(None, None, Some(child)) == 0 }
}

/// The error number of libc's `read` from a descriptor that is not open.
pub(crate) fn error_of_read(fd: i32) -> i32 {
    // SAFETY: nothing is read.
    unsafe { libc::read(fd, std::ptr::null_mut(), 0) };
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Words of a mapping of the library's own.
pub(crate) fn words<'a>(address: u64, count: usize) -> &'a mut [u64] {
    // SAFETY: the caller has mapped `count` words at `address` for itself alone.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u64, count) }
}

/// The current directory as the kernel sees it.
pub(crate) fn current_directory(buffer: &mut [u8; PATH_MAX]) -> &[u8] {
    let length = call(libc::SYS_getcwd as u64, &[buffer.as_mut_ptr() as u64, PATH_MAX as u64, 0, 0, 0, 0]);
    buffer.get(..(length.max(1) - 1) as usize).unwrap_or(&[])
}

/// What stat says of a file: the first words are the device and the inode number.
pub(crate) struct Stat([u64; 18]);

impl Stat {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self([0; 18])
    }

    /// Asks about an open file.
    pub(crate) fn of_descriptor(&mut self, fd: i32) -> bool {
        call(libc::SYS_fstat as u64, &[fd as u64, self.0.as_mut_ptr() as u64, 0, 0, 0, 0]) == 0
    }

    /// Type and rights.
    pub(crate) fn mode(&self) -> u32 {
        self.0[3] as u32
    }

    /// Whose it is.
    pub(crate) fn uid(&self) -> u32 {
        (self.0[3] >> 32) as u32
    }

    /// Asks about the path at an address.
    pub(crate) fn of_path(&mut self, path: u64) -> bool {
        call(libc::SYS_stat as u64, &[path, self.0.as_mut_ptr() as u64, 0, 0, 0, 0]) == 0
    }

    /// Device and inode number.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.0[0], self.0[1])
    }
}
