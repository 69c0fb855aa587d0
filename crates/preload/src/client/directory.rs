//! The working directory: that of the kernel is `RUN/cwd/HANDLE`, whose name says which open directory of the
//! store is meant.
//!
//! Thread safety: the kernel's. Invariant: a hidden placeholder keeps that directory open, in every process
//! that has it as its own.

use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use kvfs_lane::Reply;
use rustix::fs::OFlags;

use super::server::{Who, spare, who};
use super::{Done, ask, at, error, fail, hidden, page};
use crate::buffer::PathBuffer;
use crate::call::Call;
use crate::slow::Verdict;
use crate::state;
use crate::sys::{self, PATH_MAX};

/// The directory of the session: `KVFS_EXEC_RUN`.
const RUN: &str = "KVFS_EXEC_RUN";

/// In which the directories lie: `RUN/cwd/`.
static DIRECTORIES: OnceLock<Vec<u8>> = OnceLock::new();

/// Takes the directory from the environment. Returns `false` if there is none.
#[must_use]
pub(super) fn set_up() -> bool {
    let run = std::env::var_os(RUN).filter(|run| run.as_bytes().starts_with(b"/"));
    run.is_some_and(|run| DIRECTORIES.set([run.as_bytes(), b"/cwd/"].concat()).is_ok())
}

/// The handle that a real directory stands for.
fn handle_of(path: &[u8]) -> Option<u64> {
    let name = path.strip_prefix(DIRECTORIES.get()?.as_slice())?;
    u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
}

/// Whether the real directory at `path`, as getcwd reports it, stands for one of the store.
pub(crate) fn owns(path: &[u8]) -> bool {
    handle_of(path).is_some()
}

/// The handle of the working directory, if it is in the store.
#[inline(never)]
pub(super) fn current() -> Option<u64> {
    handle_of(sys::current_directory(&mut [0; PATH_MAX]))
}

/// Whether the working directory is the open directory `handle`.
pub(super) fn is_of(handle: u64) -> bool {
    current() == Some(handle)
}

/// getcwd.
pub(super) fn name(call: &Call<'_>) -> Done {
    let Some(handle) = current() else { return Err(Verdict::Native) };
    let space = sys::bytes(call.args[0], call.args[1] as usize);
    let named = ask(call, &kvfs_lane::Call::PathOf { handle }, |_, path| {
        let mut buffer = [0; state::PREFIX_MAX];
        let prefix = state::prefix(&mut buffer);
        // The root has no name of its own.
        let path = if path == b"/" { &[][..] } else { path };
        let len = prefix.len() + path.len();
        let Some(space) = space.get_mut(..=len) else { return Some(Err(fail(libc::ERANGE))) };
        space[..prefix.len()].copy_from_slice(prefix);
        space[prefix.len()..len].copy_from_slice(path);
        space[len] = 0;
        Some(Ok(len as isize + 1))
    });
    named?
}

/// chdir and fchdir.
pub(super) fn change(call: &Call<'_>) -> Done {
    // An empty path is that of a descriptor in fchdir alone.
    let place = at(call, 0, true, call.nr as i64 == libc::SYS_fchdir)?;
    let spare = spare().map_err(fail)?;
    let flags = (OFlags::PATH | OFlags::DIRECTORY).bits();
    let handle = Some(spare.handle);
    let opened =
        ask(call, &kvfs_lane::Call::Open { at: place, flags, mode: 0, umask: 0, handle }, |reply, _| {
            matches!(reply, Reply::Opened { .. }).then_some(spare.handle)
        });
    let handle = match opened {
        Ok(handle) => handle,
        Err(verdict) => {
            spare.give_back();
            return Err(verdict);
        }
    };
    let descriptor = sys::own(spare.take(true)?);
    let here = kvfs_lane::At { base: Some(handle), path: None, follows: true, is_named: true };
    let entered = super::do_it(call, &kvfs_lane::Call::Access { at: here, access: libc::X_OK as u32 })
        .and_then(|_| enter(handle));
    if entered.is_ok() {
        hidden::keep_directory(Some(descriptor), is_shared());
    }
    entered
}

fn is_shared() -> bool {
    page::page().is_some_and(|page| who(page) == Who::Child)
}

/// The process has gone elsewhere.
pub(crate) fn leave_directory() {
    if current().is_none() {
        hidden::keep_directory(None, is_shared());
    }
}

/// Makes the real directory the one of the process.
#[inline(never)]
fn enter(handle: u64) -> Done {
    let mut path = PathBuffer::new();
    let mut digits = [0; 16];
    let name = hex(handle, &mut digits);
    let directories = DIRECTORIES.get().map_or(&[][..], Vec::as_slice);
    if !(path.push(directories) && path.push(name)) {
        return error(libc::ENAMETOOLONG);
    }
    // A program without the library that makes a file here is refused: it would be in no store.
    let made = sys::call(libc::SYS_mkdir as u64, &[path.address(), 0o500, 0, 0, 0, 0]);
    if made < 0 && made != -(libc::EEXIST as isize) {
        return Err(Verdict::Done(made));
    }
    match sys::call(libc::SYS_chdir as u64, &[path.address(), 0, 0, 0, 0, 0]) {
        0 => Ok(0),
        failed => Err(Verdict::Done(failed)),
    }
}

fn hex(mut number: u64, digits: &mut [u8; 16]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(number % 16) as usize];
        number /= 16;
        if number == 0 {
            return &digits[at..];
        }
    }
}
