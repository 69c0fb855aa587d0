//! The system calls about how a thread is scheduled that rustix has not.
#![expect(unsafe_code, reason = "rustix has no form of these system calls")]

use std::io;

/// The policy of ordinary threads.
pub(crate) const NORMAL: i32 = libc::SCHED_OTHER;
/// Runs only where no other thread wants the CPU.
pub(crate) const IDLE: i32 = libc::SCHED_IDLE;

/// The calling thread's policy, or −1.
pub(crate) fn policy() -> i32 {
    // SAFETY: takes a number (0: the caller) and touches no memory.
    unsafe { libc::sched_getscheduler(0) }
}

/// Changes the calling thread's policy to [`NORMAL`] or [`IDLE`]. About half a microsecond.
///
/// # Errors
/// Going back from [`IDLE`] needs `CAP_SYS_NICE`, or a `RLIMIT_NICE` that allows it.
pub(crate) fn set_policy(policy: i32) -> io::Result<()> {
    set_policy_of(0, policy)
}

/// As [`set_policy`], for a thread of this process; 0: the caller.
///
/// # Errors
/// As there; or the thread is gone.
pub(crate) fn set_policy_of(tid: i32, policy: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure lives during the call, which only reads it.
    match unsafe { libc::sched_setscheduler(tid, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How often the calling thread has given its CPU away because it had to wait. A third of a microsecond.
pub(crate) fn sleeps_of_thread() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is the caller's, large enough, and valid with any content, zeros included.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw.unsigned_abs()
}
