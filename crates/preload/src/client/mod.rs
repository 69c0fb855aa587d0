//! The back end: calls of the program become calls of the server that owns the store
//! (docs/decisions/serving.md).
//!
//! Nothing is kept here that the kernel keeps. An open file is the inode number of its placeholder, the
//! working directory the name of a real one (`RUN/cwd/HANDLE`), which its processes have as theirs; so
//! copies, forks, and programs that are begun need no help of this library.
//!
//! Thread safety: any thread, signal handler, child of vfork. Nothing is allocated, nothing of libc is
//! called.
//!
//! Invariants: a placeholder never reaches the kernel as the file that it is: a call on one that the server
//! does not know, or that the user may not have, fails. A descriptor of anything else is the program's own
//! affair.

mod attributes;
mod content;
mod control;
mod directory;
mod hidden;
mod map;
mod names;
mod opening;
mod page;
mod reach;
mod records;
mod server;
mod transfer;
mod xattrs;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use kvfs_lane::greeting::PLACEHOLDER_MODE;
use kvfs_lane::{At, Bytes, Reply};

use crate::buffer::PathBuffer;
use crate::call::Call;
use crate::place::Place;
use crate::slow::Verdict;
use crate::start::PROBE;
use crate::state;
use crate::sys::{self, Args, Number};

pub(crate) use directory::{leave_directory, owns};
pub(crate) use hidden::{first_within, is_hidden};
pub(crate) use map::{place as place_mapping, remap, sync as sync_mapping, unmap};

/// The socket of the server: `KVFS_EXEC_SOCKET`.
const SOCKET: &str = "KVFS_EXEC_SOCKET";

/// What is compared of a server before it is talked to: `KVFS_EXEC_EXPECTED`, a user that it may be of, and,
/// behind colons, file system and inode of the directory of its socket.
const EXPECTED: &str = "KVFS_EXEC_EXPECTED";

/// The open transaction that the program is in: `KVFS_EXEC_TXN`.
const TXN: &str = "KVFS_EXEC_TXN";

/// Bits that new files don't get. In a child of vfork, those of its parent.
static UMASK: AtomicU32 = AtomicU32::new(0o022);

/// What a call comes to: its result, or how else it is done.
type Done = Result<isize, Verdict>;

/// Takes the server from the environment. Returns `false` if there is none.
#[must_use]
pub(crate) fn set_up() -> bool {
    let Some(socket) = std::env::var_os(SOCKET) else { return false };
    let expected = std::env::var(EXPECTED).unwrap_or_default();
    if !reach::set_up(&socket, &expected) {
        return false;
    }
    let txn = std::env::var(TXN).map_or(Ok(0), |id| id.parse());
    let (Ok(txn), mut prefix) = (txn, [0; state::PREFIX_MAX]) else { return false };
    if !server::set_up(state::prefix(&mut prefix), txn) || !directory::set_up() || !page::set_up() {
        return false;
    }
    // Its page is this process's from here on, and not that of a child of vfork that calls first.
    server::claim_page();
    hidden::set_up();
    // Nothing else runs yet.
    let mask = sys::call(libc::SYS_umask as u64, &[0; 6]);
    sys::call(libc::SYS_umask as u64, &[mask as u64, 0, 0, 0, 0, 0]);
    UMASK.store(mask as u32, Relaxed);
    sys::at_fork(server::claim_page)
}

/// Serves a call, or says that the kernel is to.
pub(crate) fn serve(call: &Call<'_>) -> Verdict {
    if call.nr as i64 == libc::SYS_read && call.fds[0] == Some(PROBE) {
        return fail(libc::EBADFD);
    }
    if call.fds.iter().flatten().any(|fd| is_hidden(*fd)) {
        return fail(libc::EBADF);
    }
    match route(call) {
        Ok(result) => Verdict::Done(result),
        Err(verdict) => verdict,
    }
}

fn route(call: &Call<'_>) -> Done {
    match call.nr as i64 {
        libc::SYS_getcwd => directory::name(call),
        libc::SYS_umask => {
            let before = sys::call(call.nr, call.args);
            if page::page().is_some_and(|page| server::who(page) == server::Who::Own) {
                UMASK.store(call.args[0] as u32 & 0o777, Relaxed);
            }
            Ok(before)
        }
        _ if call.paths != [None, None] => by_path(call),
        _ if call.fds != [None, None] => by_descriptor(call),
        _ => Err(Verdict::Native),
    }
}

fn by_path(call: &Call<'_>) -> Done {
    if call.paths.iter().flatten().all(|(_, place)| *place == Place::Outside) {
        return if opening::leads_to_placeholder(call.nr, call.args) {
            error(libc::ENXIO)
        } else {
            Err(Verdict::Native)
        };
    }
    match call.nr as i64 {
        libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 | libc::SYS_creat => opening::open(call),
        libc::SYS_chdir | libc::SYS_fchdir => directory::change(call),
        libc::SYS_mkdir
        | libc::SYS_mkdirat
        | libc::SYS_mknod
        | libc::SYS_mknodat
        | libc::SYS_rmdir
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_symlink
        | libc::SYS_symlinkat
        | libc::SYS_link
        | libc::SYS_linkat
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_readlink
        | libc::SYS_readlinkat => names::serve(call),
        libc::SYS_setxattr
        | libc::SYS_lsetxattr
        | libc::SYS_getxattr
        | libc::SYS_lgetxattr
        | libc::SYS_listxattr
        | libc::SYS_llistxattr
        | libc::SYS_removexattr
        | libc::SYS_lremovexattr => xattrs::serve(call),
        // Programs that watch look from time to time, if they can't.
        libc::SYS_inotify_add_watch => error(libc::ENOSPC),
        libc::SYS_name_to_handle_at => error(libc::EOPNOTSUPP),
        _ => attributes::serve(call),
    }
}

fn by_descriptor(call: &Call<'_>) -> Done {
    match call.nr as i64 {
        libc::SYS_fstat | libc::SYS_fchmod | libc::SYS_fchown | libc::SYS_ftruncate | libc::SYS_fstatfs => {
            attributes::serve(call)
        }
        libc::SYS_fsetxattr | libc::SYS_fgetxattr | libc::SYS_flistxattr | libc::SYS_fremovexattr => {
            xattrs::serve(call)
        }
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_lseek
        | libc::SYS_getdents64 => content::serve(call),
        libc::SYS_copy_file_range | libc::SYS_sendfile | libc::SYS_splice | libc::SYS_vmsplice => {
            transfer::serve(call)
        }
        libc::SYS_mmap => map::map(call),
        _ => control::serve(call),
    }
}

/// Whether a descriptor that the process was started with belongs to a store, also where its user may not use
/// it.
pub(crate) fn may_own_descriptor(fd: i32) -> bool {
    let mut found = sys::Stat::new();
    if !found.of_descriptor(fd) || found.mode() != PLACEHOLDER_MODE {
        return false;
    }
    if hidden::is_high(fd) && directory::is_of(found.identity().1) {
        hidden::inherit_directory(fd);
    }
    true
}

/// Numbers that `close_range` closes. Those that the process may have are too many to look at each.
pub(crate) fn release(first: u32, last: u32) {
    let number = |fd| i32::try_from(fd).unwrap_or(i32::MAX);
    opening::release(number(first)..=number(last).min(state::highest()));
}

/// dup2 and dup3: the program gives a number to something else, which closes what it is.
pub(crate) fn replace(nr: Number, args: &Args) -> isize {
    let (from, onto) = (args[0] as i32, args[1] as i32);
    if from != onto && hidden::is_open(from) {
        opening::release(onto..=onto);
    }
    hidden::replace(args[1] as i32, || sys::call(nr, args))
}

const fn fail(errno: i32) -> Verdict {
    Verdict::Done(-(errno as isize))
}

const fn error(errno: i32) -> Done {
    Err(fail(errno))
}

/// Asks the server for something without a payload.
fn ask<T>(
    call: &Call<'_>,
    asked: &kvfs_lane::Call<'_>,
    read: impl FnOnce(Reply, &mut [u8]) -> Option<T>,
) -> Result<T, Verdict> {
    ask_with(call, asked, |_| 0, read)
}

/// Asks the server for at most `max` bytes. More of them are the answer of no server of kvfs (EIO).
fn ask_bytes<T>(
    call: &Call<'_>,
    asked: &kvfs_lane::Call<'_>,
    max: usize,
    read: impl FnOnce(Reply, &mut [u8]) -> Option<T>,
) -> Result<T, Verdict> {
    ask(call, asked, |reply, payload| if payload.len() <= max { read(reply, payload) } else { None })
}

/// Asks the server. A path that leads out of the store is followed by the kernel. An open file that the
/// server does not know is another server's or user's: EIO, since what the kernel would write into the
/// placeholder is lost.
fn ask_with<T>(
    call: &Call<'_>,
    asked: &kvfs_lane::Call<'_>,
    fill: impl FnOnce(&mut [u8]) -> isize,
    read: impl FnOnce(Reply, &mut [u8]) -> Option<T>,
) -> Result<T, Verdict> {
    let answered = server::exchange(asked, fill, |reply, payload| match reply {
        Reply::Failed { errno } => Err(fail(errno)),
        Reply::Unknown => Err(fail(libc::EIO)),
        Reply::Outside => Err(outside(call, payload.as_ptr() as u64)),
        reply => read(reply, payload).ok_or(fail(libc::EIO)),
    });
    answered.unwrap_or_else(|errno| Err(fail(errno)))
}

/// Asks for something that has no other answer than that it is done.
fn do_it(call: &Call<'_>, asked: &kvfs_lane::Call<'_>) -> Done {
    ask(call, asked, |reply, _| (reply == Reply::Done).then_some(0))
}

/// Asks for a number.
fn number(call: &Call<'_>, asked: &kvfs_lane::Call<'_>) -> Done {
    ask(call, asked, number_of)
}

fn number_of(reply: Reply, _: &mut [u8]) -> Option<isize> {
    match reply {
        Reply::Number(number) => isize::try_from(number).ok(),
        _ => None,
    }
}

/// The call with an absolute path in the place of the one that led out of the store.
fn outside(call: &Call<'_>, path: u64) -> Verdict {
    let [Some((index, _)), None] = call.paths else { return fail(libc::EXDEV) };
    let mut args = *call.args;
    args[index] = path;
    if opening::leads_to_placeholder(call.nr, &args) {
        return fail(libc::ENXIO);
    }
    Verdict::Done(sys::call(call.nr, &args))
}

/// Whether a file is a placeholder: one of the server's user. Other users may give the same rights to files
/// of their own; root does not, nor this process's user to its own harm, and what is theirs may be another
/// server's.
fn is_placeholder(found: &sys::Stat) -> bool {
    let is_own = || sys::call(libc::SYS_geteuid as u64, &[0; 6]) as u32 == found.uid();
    let is_of_server = || server::owner().is_none_or(|owner| owner == found.uid());
    found.mode() == PLACEHOLDER_MODE && (is_of_server() || found.uid() == 0 || is_own())
}

/// The handle of an open file of the store's.
fn handle(fd: i32) -> Result<u64, Verdict> {
    let mut found = sys::Stat::new();
    if !found.of_descriptor(fd) || !is_placeholder(&found) {
        return Err(Verdict::Native);
    }
    Ok(found.identity().1)
}

/// The handle of the first descriptor.
fn first(call: &Call<'_>) -> Result<u64, Verdict> {
    handle(call.fds[0].ok_or(Verdict::Native)?)
}

/// Where the path argument `which` leads, if it is not empty or may be.
fn at<'a>(call: &Call<'a>, which: usize, follows: bool, may_be_empty: bool) -> Result<At<'a>, Verdict> {
    let Some((index, place)) = call.paths[which] else {
        // A call by a descriptor.
        return Ok(At { base: Some(first(call)?), path: None, follows, is_named: false });
    };
    let at = |base, path: &'a [u8]| At {
        base,
        path: (!path.is_empty()).then_some(Bytes(path)),
        follows,
        is_named: path.is_empty(),
    };
    let (base, path) = match place {
        Place::Below(path) => return Ok(at(None, path)),
        Place::At(libc::AT_FDCWD, path) => (directory::current().ok_or(Verdict::Native)?, path),
        Place::At(fd, _) if is_hidden(fd) => return Err(fail(libc::EBADF)),
        Place::At(fd, path) => (handle(fd)?, path),
        Place::Descriptor(fd) => return Ok(at(Some(handle(fd)?), &[])),
        Place::Above(path) => return Err(above(call, index, path)),
        Place::Outside => return error_at(libc::EXDEV),
    };
    if path.is_empty() && !may_be_empty {
        return error_at(libc::ENOENT);
    }
    Ok(at(Some(base), path))
}

fn error_at<'a>(errno: i32) -> Result<At<'a>, Verdict> {
    Err(fail(errno))
}

/// The call with a path from the directory that holds the prefix.
#[inline(never)]
fn above(call: &Call<'_>, index: usize, path: &[u8]) -> Verdict {
    if call.paths[1].is_some() {
        return fail(libc::EXDEV);
    }
    let mut prefix = [0; state::PREFIX_MAX];
    let mut whole = PathBuffer::new();
    if !(whole.push(state::parent(state::prefix(&mut prefix))) && whole.push(b"/") && whole.push(path)) {
        return fail(libc::ENAMETOOLONG);
    }
    let mut args = *call.args;
    args[index] = whole.address();
    Verdict::Done(sys::call(call.nr, &args))
}
