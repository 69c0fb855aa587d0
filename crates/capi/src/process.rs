//! Processes: users of a store, with working directory, umask and descriptors.
//!
//! Thread safety: any number of threads use a process at once; it is freed by one, behind all others.

use std::ffi::c_int;
use std::sync::Arc;

use kvfs_posix::Identity;
use libc::{gid_t, mode_t, size_t, uid_t};

use crate::failure::{Failure, Result, call, end};
use crate::foreign::{Groups, Text, TextBuffer, missing};
use crate::places::CheckedPlace;
use crate::store::{OpenVolume, Store};

/// A user of a store.
pub struct Process {
    pub(crate) acting: Arc<Acting>,
}

/// A process, for as long as a handle of C or one of its streams needs it. The order of the fields is that in
/// which they go.
pub(crate) struct Acting {
    pub(crate) posix: kvfs_client::Process,
    store: Arc<OpenVolume>,
}

impl Process {
    pub(crate) fn new(posix: impl Into<kvfs_client::Process>, store: &Arc<OpenVolume>) -> Self {
        Self { acting: Arc::new(Acting { posix: posix.into(), store: Arc::clone(store) }) }
    }
}

/// The calls of `process`.
pub(crate) fn of(process: Option<&Process>) -> Result<&kvfs_client::Process> {
    Ok(&process.ok_or_else(missing)?.acting.posix)
}

/// Does something that returns nothing.
pub(crate) fn with(
    process: Option<&Process>,
    work: impl FnOnce(&kvfs_client::Process) -> kvfs_posix::Result<()>,
) -> c_int {
    call(|| {
        work(of(process)?)?;
        Ok(0)
    })
}

pub(crate) fn own_identity() -> Result<Identity> {
    Identity::of_this_process()
        .map_err(|errno| Failure::new(errno.raw_os_error(), "cannot ask for the groups"))
}

pub(crate) fn identity(uid: uid_t, gid: gid_t, groups: &Groups, len: size_t) -> Result<Identity> {
    Ok(Identity { uid, gid, groups: groups.ids(len)?.to_vec() })
}

fn in_volume(store: &Arc<OpenVolume>, identity: &Identity) -> Result<Process> {
    Ok(match &**store {
        OpenVolume::Embedded(own) => Process::new(own.volume.process(identity), store),
        OpenVolume::Served(daemon) if is_own(identity)? => Process::new(daemon.process()?, store),
        OpenVolume::Served(daemon) => Process::new(daemon.process_as(identity)?, store),
    })
}

/// Whether it is the user that runs this program, who has a process of a daemon without being root or the
/// daemon's user.
pub(crate) fn is_own(identity: &Identity) -> Result<bool> {
    Ok(own_identity()? == *identity)
}

/// A process that acts for the user that runs this program: working directory `/`, umask 022, no open files.
/// Free it with `kvfs_process_free`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_process_new(store: Option<&Store>) -> Option<Box<Process>> {
    call(|| {
        let store = &store.ok_or_else(missing)?.inner;
        Ok(Some(Box::new(in_volume(store, &own_identity()?)?)))
    })
}

/// As `kvfs_process_new`, for another user, with `group_count` further groups. User 0 may do everything.
///
/// EPERM: a daemon has the store open, and this program runs neither as root nor as the user that the daemon
/// runs as.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_process_new_as(
    store: Option<&Store>,
    uid: uid_t,
    gid: gid_t,
    groups: Groups,
    group_count: size_t,
) -> Option<Box<Process>> {
    call(|| {
        let store = &store.ok_or_else(missing)?.inner;
        Ok(Some(Box::new(in_volume(store, &identity(uid, gid, &groups, group_count)?)?)))
    })
}

/// A child of `process`, as fork(2) makes it: the same open files with the same offsets, the same working
/// directory and umask; no locks of ranges.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_process_fork(process: Option<&Process>) -> Option<Box<Process>> {
    call(|| {
        let Acting { posix, store } = &*process.ok_or_else(missing)?.acting;
        Ok(Some(Box::new(Process::new(posix.fork()?, store))))
    })
}

/// Closes the descriptors of `process` that have `FD_CLOEXEC`, as execve(2) does.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_process_exec(process: Option<&Process>) -> c_int {
    with(process, kvfs_client::Process::exec)
}

/// Ends a process: its descriptors are closed and its locks end, when its directory streams are closed, too.
/// NULL: nothing happens.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_process_free(process: Option<Box<Process>>) {
    end(process);
}

/// umask(2). Returns the mask of before.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_umask(process: Option<&Process>, mask: mode_t) -> c_int {
    call(|| Ok(of(process)?.umask(mask) as c_int))
}

/// chdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_chdir(process: Option<&Process>, path: Text) -> c_int {
    call(|| {
        of(process)?.chdir(CheckedPlace::path(&path)?.0)?;
        Ok(0)
    })
}

/// fchdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fchdir(process: Option<&Process>, fd: c_int) -> c_int {
    with(process, |posix| posix.chdir(kvfs_posix::Fd(fd)))
}

/// getcwd(3); `buffer` must not be NULL. ERANGE: it is too small.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_getcwd(
    process: Option<&Process>,
    mut buffer: TextBuffer,
    size: size_t,
) -> *mut std::ffi::c_char {
    call(|| {
        let path = of(process)?.getcwd()?;
        buffer.fill(size, &path)
    })
}
