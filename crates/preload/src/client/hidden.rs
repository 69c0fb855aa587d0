//! Descriptors of the library's own in the table of the program: the connection, the directory of
//! placeholders, and the placeholder of the working directory.
//!
//! They have high numbers, and what the program does to them by number finds no descriptor: shells and
//! daemons close all numbers that they don't know.
//!
//! Thread safety: atomics; numbers change while the thread that changes them has the connection to itself.
//! Invariant: a child of vfork has a table of its own, but shares this memory: what it hides is listed with
//! its process.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use super::map;
use super::page::page;
use super::server::{Asking, Who, has_moved, who};
use crate::state;
use crate::sys;

/// Room for each of them, and for those that are moved or replaced meanwhile.
const HIDDEN_MAX: usize = 8;

/// Numbers from here on are taken; set at start.
static FLOOR: AtomicI32 = AtomicI32::new(960);

/// Each number and one; 0: none.
static HIDDEN: [AtomicI32; HIDDEN_MAX] = [const { AtomicI32::new(0) }; HIDDEN_MAX];

/// That of the working directory, which lives on in children and in programs that they begin.
static DIRECTORY: AtomicI32 = AtomicI32::new(0);

/// Those of children of vfork that are about to execute: the process, and the number and one.
static CHILDREN: [AtomicU64; CHILDREN_MAX] = [const { AtomicU64::new(0) }; CHILDREN_MAX];

/// Children of vfork at once, most often.
const CHILDREN_MAX: usize = 8;

fn process() -> u64 {
    sys::call(libc::SYS_getpid as u64, &[0; 6]) as u64
}

/// Numbers that are marked before the library has them: what the program does to them is looked at.
const MARKED: i32 = 64;

/// Looks how many descriptors the process may have: half of few, and few of many, are this library's.
pub(super) fn set_up() {
    let mut limit = [0_u64; 2];
    let args = [libc::RLIMIT_NOFILE.into(), limit.as_mut_ptr() as u64, 0, 0, 0, 0];
    let asked = sys::call(libc::SYS_getrlimit as u64, &args);
    let limit = if asked == 0 { limit[0].clamp(1, 1024) as i32 } else { 1024 };
    let floor = (limit - MARKED).max(limit / 2);
    (floor..floor + MARKED).for_each(state::mark);
    FLOOR.store(floor, Relaxed);
}

fn fcntl(fd: i32, command: i32, argument: i32) -> i32 {
    sys::call(libc::SYS_fcntl as u64, &[fd as u64, command as u64, argument as u64, 0, 0, 0]) as i32
}

/// Whether a number of this process is a descriptor.
pub(super) fn is_open(fd: i32) -> bool {
    fcntl(fd, libc::F_GETFD, 0) >= 0
}

/// Closes a number of this process, whatever it is.
pub(super) fn close(fd: i32) {
    sys::call(libc::SYS_close as u64, &[fd as u64, 0, 0, 0, 0, 0]);
}

/// Moves a descriptor to a high number; it stays where it is if there is none.
pub(super) fn lift(fd: OwnedFd, command: i32) -> i32 {
    let fd = fd.into_raw_fd();
    let mut lifted = fcntl(fd, command, FLOOR.load(Relaxed));
    if lifted < 0 {
        // The program has fewer than when it began.
        set_up();
        lifted = fcntl(fd, command, FLOOR.load(Relaxed));
    }
    if lifted < 0 {
        return fd;
    }
    close(fd);
    lifted
}

fn note(fd: i32) {
    state::mark(fd);
    for place in &HIDDEN {
        if place.compare_exchange(0, fd + 1, Relaxed, Relaxed).is_ok() {
            return;
        }
    }
}

fn forget(fd: i32) {
    for place in &HIDDEN {
        // Another one than this has not the number.
        let _ = place.compare_exchange(fd + 1, 0, Relaxed, Relaxed);
    }
}

/// Hides a descriptor of this process; returns its number.
pub(super) fn hide(fd: OwnedFd) -> i32 {
    let fd = lift(fd, libc::F_DUPFD_CLOEXEC);
    note(fd);
    fd
}

/// Closes a hidden descriptor.
pub(super) fn end(fd: i32) {
    forget(fd);
    close(fd);
}

/// Whether the program must not reach a number.
pub(crate) fn is_hidden(fd: i32) -> bool {
    let of_child = |place: &AtomicU64| {
        let listed = place.load(Relaxed);
        listed as u32 as i32 == fd + 1 && listed >> 32 == process()
    };
    fd >= 0
        && (map::descriptors().any(|kept| kept == fd)
            || HIDDEN.iter().any(|place| place.load(Relaxed) == fd + 1)
            || CHILDREN.iter().any(of_child))
}

/// The lowest hidden number of a range.
pub(crate) fn first_within(first: u32, last: u32) -> Option<u32> {
    let process = process();
    let of_child = |place: &AtomicU64| {
        let listed = place.load(Relaxed);
        if listed >> 32 == process { listed as u32 as i32 } else { 0 }
    };
    let listed = HIDDEN.iter().map(|place| place.load(Relaxed)).chain(CHILDREN.iter().map(of_child));
    let listed = listed.chain(map::descriptors().map(|fd| fd + 1));
    let numbers = listed.filter_map(|number| u32::try_from(number - 1).ok());
    numbers.filter(|fd| (first..=last).contains(fd)).min()
}

/// In a child of fork: the parent's connection and directory of placeholders are closed.
pub(super) fn leave_parent() {
    let directory = DIRECTORY.load(Relaxed);
    for place in &HIDDEN {
        let hidden = place.load(Relaxed);
        if hidden != 0 && hidden != directory {
            place.store(0, Relaxed);
            close(hidden - 1);
        }
    }
}

/// Whether a descriptor that the process was started with has such a number.
pub(super) fn is_high(fd: i32) -> bool {
    fd >= FLOOR.load(Relaxed)
}

/// The placeholder of the working directory is `fd`, as it was given to this program.
pub(super) fn inherit_directory(fd: i32) {
    note(fd);
    DIRECTORY.store(fd + 1, Relaxed);
}

/// A placeholder stands for the new working directory, in the place of the old one; `None`: there is none any
/// more. `is_shared`: a child of vfork.
pub(super) fn keep_directory(fd: Option<OwnedFd>, is_shared: bool) {
    // A program that was never in the store waits for no server.
    if fd.is_none() && DIRECTORY.load(Relaxed) == 0 {
        return;
    }
    let _alone = page().map(Asking::begin);
    let old = DIRECTORY.load(Relaxed) - 1;
    if old >= 0 {
        let close_old = if is_shared { close } else { end };
        close_old(old);
    }
    let new = fd.map(|fd| lift(fd, libc::F_DUPFD));
    if is_shared {
        if let Some(new) = new {
            let process = process();
            state::mark(new);
            CHILDREN[process as usize % CHILDREN_MAX].store(process << 32 | (new as u64 + 1), Relaxed);
        }
        return;
    }
    if let Some(new) = new {
        note(new);
    }
    DIRECTORY.store(new.map_or(0, |fd| fd + 1), Relaxed);
}

/// A hidden copy of a descriptor of the program's, which is on another list; a negative one is an error.
pub(super) fn copy(fd: i32) -> i32 {
    let copied = fcntl(fd, libc::F_DUPFD_CLOEXEC, FLOOR.load(Relaxed));
    if copied < 0 { fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) } else { copied }
}

/// The program gives a number to something of its own, by `make`. What is hidden there gets another one;
/// where there is none, or the table is that of a child of vfork, that is refused.
pub(super) fn replace(fd: i32, make: impl FnOnce() -> isize) -> isize {
    // One that is open may be on its way to become hidden.
    let may_be_hidden = is_hidden(fd) || is_high(fd);
    let Some(page) = page().filter(|_| may_be_hidden) else { return make() };
    // Until the program has the number: nothing of the library's gets it, and none of its calls uses it.
    let _alone = Asking::begin(page);
    if is_hidden(fd) && !(who(page) == Who::Own && make_room(fd)) {
        return -(libc::EBADF as isize);
    }
    make()
}

/// Returns `false` if there is no other number.
#[must_use]
fn make_room(fd: i32) -> bool {
    let is_directory = DIRECTORY.load(Relaxed) == fd + 1;
    let command = if is_directory { libc::F_DUPFD } else { libc::F_DUPFD_CLOEXEC };
    let moved = fcntl(fd, command, FLOOR.load(Relaxed));
    if moved < 0 {
        return false;
    }
    if map::has_moved(fd, moved) {
        return true;
    }
    note(moved);
    forget(fd);
    if is_directory {
        DIRECTORY.store(moved + 1, Relaxed);
    }
    has_moved(fd, moved);
    true
}
