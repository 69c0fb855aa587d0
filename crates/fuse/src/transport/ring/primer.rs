//! Requests of no consequence, made for their replies.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "there is no wrapper of ustat(2)"))]
//!
//! Purpose: a request that finds no entry is fetched by the next reply of its queue. Where all entries wait
//! for answers there is none, and entries that are added then stay idle while it waits. So the queue is given
//! one more request, whose reply fetches it: a statfs of the file system that is served, made on the CPU of
//! the queue. ustat(2) needs neither a path nor a descriptor, either of which would keep the file system from
//! being unmounted.
//!
//! That request, too, may find no entry, if another one was faster: then it is fetched like the others, and
//! the next one is made by another thread. There are as many of these as requests of programs that were
//! faster.
//!
//! Thread safety: a primer is one thread, which waits for its request; nothing waits for it. Invariant: it
//! holds nothing.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Shared;

/// Starts threads that make requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Primer {
    /// The device number of the file system.
    number: u32,
}

impl Primer {
    /// # Errors
    /// The system has no ustat(2), or forbids it; or it does not tell the file system's number.
    pub(super) fn new(device: &OwnedFd) -> Result<Self, Errno> {
        let number = connection(device).ok_or(Errno::NOSYS)?;
        match ustat(0) {
            Err(errno @ (Errno::NOSYS | Errno::PERM)) => Err(errno),
            _ => Ok(Self { number }),
        }
    }

    /// An entry was added to this queue.
    pub(super) fn prime(self, shared: &Arc<Shared>, queue: u16) {
        if !shared.exchange.ask_for_priming(queue) {
            return;
        }
        let shared = Arc::clone(shared);
        let started = thread::Builder::new().name("ring-primer".to_owned()).spawn(move || self.run(&shared));
        if let Err(error) = started {
            tracing::warn!(%error, queue, "requests of this CPU may wait for others");
        }
    }

    /// Makes a request for each queue that is short of entries, until the connection ends or there are
    /// primers enough.
    fn run(self, shared: &Shared) {
        let number = self.number;
        while let Some(queue) = shared.exchange.next_to_prime() {
            let mut cpu = CpuSet::new();
            cpu.set(usize::from(queue));
            let primed = sched_setaffinity(None, &cpu).and_then(|()| ustat(number));
            if let Err(errno) = primed
                && !shared.has_ended()
            {
                tracing::warn!(%errno, queue, "requests of this CPU may wait for others");
            }
        }
    }
}

/// The number of the file system that a descriptor of the device belongs to, as stat(2) tells it.
fn connection(device: &OwnedFd) -> Option<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).ok()?;
    let number: u32 =
        info.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()?;
    // Anonymous devices have major 0.
    Some(number & 0xff | (number & !0xff) << 12)
}

#[cfg(target_arch = "x86_64")]
fn ustat(number: u32) -> Result<(), Errno> {
    // The kernel's `struct ustat` has 32 bytes.
    let mut figures = [0u64; 8];
    // SAFETY: the call writes at most its struct to the place that it is given.
    match unsafe { libc::syscall(libc::SYS_ustat, libc::c_ulong::from(number), figures.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn ustat(_number: u32) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}
