//! The calls that the entry does not pass: sorts their arguments, keeps the hints, asks the server.
//!
//! Thread safety: no state of its own; runs in signal handlers and in children of vfork.
//! Invariant: a call that is not served is made with the program's own arguments.

use crate::call::Call;
use crate::client;
use crate::exec;
use crate::kinds::{Kind, kind};
use crate::place::{self, Place, resolve};
use crate::state::{self, CWD};
use crate::sys::{self, Args, Number, PATH_MAX, word};
use std::sync::atomic::Ordering::Relaxed;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is done: the result, or a negative error number.
    Done(isize),
    /// The kernel shall do it as it is.
    Native,
}

/// Serves a call of the program.
pub(crate) fn slow(nr: Number, args: &Args) -> Verdict {
    match nr as i64 {
        libc::SYS_execve => exec::exec(libc::AT_FDCWD, args[0], args[1], args[2], 0),
        libc::SYS_execveat => exec::exec(args[0] as i32, args[1], args[2], args[3], args[4] as i32),
        // Programs go on without it; through it calls would pass unseen.
        libc::SYS_io_uring_setup => Verdict::Done(-(libc::ENOSYS as isize)),
        libc::SYS_chdir | libc::SYS_fchdir => change_directory(nr, args),
        libc::SYS_dup | libc::SYS_dup2 | libc::SYS_dup3 => duplicate(nr, args),
        libc::SYS_mmap => Verdict::Done(match client::serve(&sort(nr, args)) {
            Verdict::Done(result) => result,
            Verdict::Native => client::place_mapping(args),
        }),
        libc::SYS_munmap => Verdict::Done(client::unmap(args)),
        libc::SYS_mremap => Verdict::Done(client::remap(args)),
        libc::SYS_msync => Verdict::Done(client::sync_mapping(args)),
        libc::SYS_close_range => close_range(args),
        libc::SYS_fcntl if matches!(args[1] as i32, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
            duplicate(nr, args)
        }
        libc::SYS_recvmsg | libc::SYS_recvmmsg => receive(nr, args),
        libc::SYS_pidfd_getfd => {
            let result = sys::call(nr, args);
            state::mark(result as i32);
            Verdict::Done(result)
        }
        libc::SYS_open | libc::SYS_openat => open(&sort(nr, args)),
        _ => client::serve(&sort(nr, args)),
    }
}

/// Where a file elsewhere is opened it may be the directory that holds the prefix: a path from it may lead
/// below the prefix.
fn open(call: &Call<'_>) -> Verdict {
    let verdict = client::serve(call);
    if verdict != Verdict::Native {
        return verdict;
    }
    let result = sys::call(call.nr, call.args);
    let mut prefix = [0; state::PREFIX_MAX];
    if result >= 0 && place::is_parent(result as i32, state::prefix(&mut prefix)) {
        state::mark(result as i32);
    }
    Verdict::Done(result)
}

/// Makes a call that did not come from the entry, as the program would.
pub(crate) fn dispatch(nr: Number, args: &Args) -> isize {
    match slow(nr, args) {
        Verdict::Done(result) => result,
        Verdict::Native => sys::call(nr, args),
    }
}

/// Sorts the arguments by the kind of the call.
fn sort(nr: Number, args: &Args) -> Call<'_> {
    const CWD_FD: i32 = libc::AT_FDCWD;
    let fd = |at: usize| Some(args[at] as i32).filter(|fd| state::is_marked(*fd));
    let path = |directory: i32, at: usize| Some((at, resolve(directory, args[at])));
    let (mut fds, mut paths) = ([None, None], [None, None]);
    match kind(nr) {
        Kind::Pass | Kind::Always | Kind::Cwd | Kind::Memory => {}
        Kind::Fd | Kind::Receive => fds[0] = fd(0),
        Kind::Fd2 => fds[0] = fd(2),
        Kind::Fd4 => fds[0] = fd(4),
        Kind::Fd02 => fds = [fd(0), fd(2)],
        Kind::Fd01 => fds = [fd(0), fd(1)],
        Kind::Path => paths[0] = path(CWD_FD, 0),
        Kind::At => paths[0] = path(args[0] as i32, 1),
        Kind::Paths => paths = [path(CWD_FD, 0), path(CWD_FD, 1)],
        Kind::Path1 => paths[0] = path(CWD_FD, 1),
        Kind::Ats => paths = [path(args[0] as i32, 1), path(args[2] as i32, 3)],
        Kind::At1 => paths[0] = path(args[1] as i32, 2),
    }
    Call { nr, args, fds, paths }
}

/// chdir and fchdir: afterwards the kernel is asked where the process is.
fn change_directory(nr: Number, args: &Args) -> Verdict {
    let place = if nr as i64 == libc::SYS_chdir {
        (0, resolve(libc::AT_FDCWD, args[0]))
    } else {
        let fd = args[0] as i32;
        (0, if state::is_marked(fd) { Place::At(fd, b"") } else { Place::Outside })
    };
    let verdict = if place.1 == Place::Outside {
        Verdict::Native
    } else {
        client::serve(&Call { nr, args, fds: [None, None], paths: [Some(place), None] })
    };
    let result = match verdict {
        Verdict::Done(result) => result,
        Verdict::Native => sys::call(nr, args),
    };
    if result >= 0 {
        note_directory();
        client::leave_directory();
    }
    Verdict::Done(result)
}

/// Asks the kernel where the process is, and sets the flag of the working directory. It is never cleared: the
/// memory may be that of a parent of vfork, which is still where it was.
pub(crate) fn note_directory() {
    let mut buffer = [0; PATH_MAX];
    let path = sys::current_directory(&mut buffer);
    let mut prefix = [0; state::PREFIX_MAX];
    let above = path.strip_suffix(b"/").unwrap_or(path);
    let leads_there = |prefix: &[u8]| prefix.strip_prefix(above).is_some_and(|from| from.starts_with(b"/"));
    if client::owns(path) || leads_there(state::prefix(&mut prefix)) {
        CWD.store(state::CWD_NEAR, Relaxed);
    }
}

/// Closes what the program knows of a range.
fn close_range(args: &Args) -> Verdict {
    let (mut first, last) = (args[0] as u32, args[1] as u32);
    // With other flags it closes nothing.
    if args[2] as u32 & !libc::CLOSE_RANGE_UNSHARE == 0 {
        client::release(first, last);
    }
    while let Some(hidden) = client::first_within(first, last) {
        if hidden > first {
            let range = [first.into(), u64::from(hidden) - 1, args[2], 0, 0, 0];
            let result = sys::call(libc::SYS_close_range as u64, &range);
            if result < 0 {
                return Verdict::Done(result);
            }
        }
        if hidden == last {
            return Verdict::Done(0);
        }
        first = hidden + 1;
    }
    let range = [first.into(), last.into(), args[2], 0, 0, 0];
    Verdict::Done(sys::call(libc::SYS_close_range as u64, &range))
}

/// A copy of a descriptor belongs where the descriptor does.
fn duplicate(nr: Number, args: &Args) -> Verdict {
    if client::is_hidden(args[0] as i32) {
        return Verdict::Done(-(libc::EBADF as isize));
    }
    let result = match nr as i64 {
        libc::SYS_dup2 | libc::SYS_dup3 => client::replace(nr, args),
        _ => sys::call(nr, args),
    };
    if result >= 0 && state::is_marked(args[0] as i32) {
        state::mark(result as i32);
    }
    Verdict::Done(result)
}

/// Bytes of struct mmsghdr.
const MESSAGE_BYTES: u64 = 64;

/// Descriptors that arrive in messages may belong to the store.
fn receive(nr: Number, args: &Args) -> Verdict {
    let fd = args[0] as i32;
    if state::is_marked(fd)
        && let Verdict::Done(result) =
            client::serve(&Call { nr, args, fds: [Some(fd), None], paths: [None, None] })
    {
        return Verdict::Done(result);
    }
    let result = sys::call(nr, args);
    // recvmmsg tells how many there are, recvmsg how long the only one is.
    let count = if nr as i64 == libc::SYS_recvmmsg { result } else { (result >= 0).into() };
    for message in 0..count {
        mark_arrivals(args[1] + message as u64 * MESSAGE_BYTES);
    }
    Verdict::Done(result)
}

/// Marks the descriptors of a message that has arrived.
fn mark_arrivals(message: u64) {
    // struct msghdr: control and its length are the words 4 and 5; struct cmsghdr: length, level, type, data.
    let (control, length) = (word(message, 4), word(message, 5) as usize);
    if control == 0 {
        return;
    }
    let control = sys::bytes(control, length);
    let mut at = 0;
    while let Some(head) = control.get(at..at + 16) {
        let number =
            |from: usize| i32::from_ne_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
        let length = number(0) as usize;
        let Some(data) = control.get(at + 16..at + length.max(16)) else { break };
        if number(8) == libc::SOL_SOCKET && number(12) == libc::SCM_RIGHTS {
            for fd in data.chunks_exact(4) {
                state::mark(i32::from_ne_bytes([fd[0], fd[1], fd[2], fd[3]]));
            }
        }
        at += length.max(16).next_multiple_of(8);
    }
}
