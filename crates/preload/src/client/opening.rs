//! Opening files, and what becomes of their descriptors.
//!
//! Thread safety: see the back end. Invariant: the program gets the lowest number that is free, as POSIX
//! wants it.

use kvfs_lane::Reply;

use super::server::{Who, exchange, spare, who};
use super::{Done, UMASK, ask, at, error, fail, hidden};
use crate::call::Call;
use crate::slow::Verdict;
use crate::state;
use crate::sys::{self, Args, Number, word};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

/// open, openat, openat2, creat.
pub(super) fn open(call: &Call<'_>) -> Done {
    let args = call.args;
    let (flags, mode) = match call.nr as i64 {
        libc::SYS_open => (args[1] as i32, args[2]),
        libc::SYS_creat => (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, args[1]),
        libc::SYS_openat => (args[2] as i32, args[3]),
        _ => {
            // struct open_how: flags, mode, resolve.
            if args[3] < 24 || word(args[2], 2) != 0 {
                // Programs go on with openat.
                return error(libc::ENOSYS);
            }
            (word(args[2], 0) as i32, word(args[2], 1))
        }
    };
    let follows = flags & libc::O_NOFOLLOW == 0;
    let place = at(call, 0, follows, false)?;
    let spare = spare().map_err(fail)?;
    let asked = kvfs_lane::Call::Open {
        at: place,
        flags: flags as u32,
        mode: mode as u32 & 0o7777,
        umask: UMASK.load(Relaxed),
        handle: Some(spare.handle),
    };
    let closes_on_exec = flags & libc::O_CLOEXEC != 0;
    let is_full = |failed: &Verdict| [fail(libc::EMFILE), fail(libc::ENFILE)].contains(failed);
    // An open that finds no number makes and truncates nothing. Of what else fails here the server tells.
    let taken = if flags & (libc::O_CREAT | libc::O_TRUNC) == 0 {
        Ok(None)
    } else {
        spare.open(closes_on_exec).map(Some)
    };
    let taken = match taken {
        Err(verdict) if is_full(&verdict) => {
            spare.give_back();
            return Err(verdict);
        }
        taken => taken.ok().flatten(),
    };
    let opened = ask(call, &asked, |reply, _| matches!(reply, Reply::Opened { .. }).then_some(()));
    match (opened, taken) {
        (Ok(()), taken) => {
            let fd = taken.map_or_else(|| spare.take(closes_on_exec), Ok)?;
            state::mark(fd);
            Ok(fd as isize)
        }
        (Err(verdict), Some(fd)) => {
            // It goes back to the server.
            hidden::close(fd);
            Err(verdict)
        }
        (Err(verdict), None) => {
            spare.give_back();
            Err(verdict)
        }
    }
}

/// Whether a path elsewhere is opened that leads to a placeholder: `/proc/PID/fd/N`, or what links to
/// `/dev/stdout`. What is written there is lost.
pub(super) fn leads_to_placeholder(nr: Number, args: &Args) -> bool {
    let which = match nr as i64 {
        libc::SYS_open | libc::SYS_creat => 0,
        libc::SYS_openat | libc::SYS_openat2 => 1,
        _ => return false,
    };
    let address = args[which];
    let is_name = |path: &[u8]| path.starts_with(b"/proc/") || path.starts_with(b"/dev/");
    let mut found = sys::Stat::new();
    address >= 4096
        && sys::string(address).is_some_and(is_name)
        && found.of_path(address)
        && super::is_placeholder(&found)
}

/// Numbers of the program are about to be closed: locks of ranges that the process has on their files end. A
/// child of vfork closes those of its own table, and the locks are its parent's.
pub(super) fn release(fds: RangeInclusive<i32>) {
    if !super::page::page().is_some_and(|page| page.has_locks.load(Relaxed) && who(page) == Who::Own) {
        return;
    }
    for fd in fds.filter(|fd| state::is_marked(*fd) && !hidden::is_hidden(*fd)) {
        if let Ok(handle) = super::handle(fd) {
            // Whatever it says, the descriptor is closed.
            let _ = exchange(&kvfs_lane::Call::Close { handle }, |_| 0, |_, _| ());
        }
    }
}
