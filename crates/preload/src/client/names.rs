//! Names: made, removed, moved, read.
//!
//! Thread safety: see the back end.

use std::sync::atomic::Ordering::Relaxed;

use kvfs_lane::{At, Reply};

use super::{Done, UMASK, ask, ask_with, at, do_it, error};
use crate::call::Call;
use crate::sys;

/// Each of them.
pub(super) fn serve(call: &Call<'_>) -> Done {
    let (args, umask) = (call.args, UMASK.load(Relaxed));
    let itself = |which| at(call, which, false, false);
    match call.nr as i64 {
        libc::SYS_mkdir => mkdir(call, args[1]),
        libc::SYS_mkdirat => mkdir(call, args[2]),
        libc::SYS_mknod | libc::SYS_mknodat => {
            let first = 1 + usize::from(call.nr as i64 == libc::SYS_mknodat);
            let (mode, rdev) = (args[first] as u32, args[first + 1] as u32);
            do_it(call, &kvfs_lane::Call::Mknod { at: itself(0)?, mode, rdev, umask })
        }
        libc::SYS_rmdir => unlink(call, true),
        libc::SYS_unlink => unlink(call, false),
        libc::SYS_unlinkat => match args[2] as i32 {
            0 => unlink(call, false),
            libc::AT_REMOVEDIR => unlink(call, true),
            _ => error(libc::EINVAL),
        },
        libc::SYS_symlink | libc::SYS_symlinkat => symlink(call, args[0]),
        libc::SYS_link => link(call, 0),
        libc::SYS_linkat => link(call, args[4] as i32),
        libc::SYS_rename | libc::SYS_renameat => rename(call, 0),
        libc::SYS_renameat2 => rename(call, args[4] as u32),
        libc::SYS_readlink => readlink(call, args[1], args[2] as i32),
        _ => readlink(call, args[2], args[3] as i32),
    }
}

fn mkdir(call: &Call<'_>, mode: u64) -> Done {
    let umask = UMASK.load(Relaxed);
    let mode = mode as u32 & 0o7777;
    do_it(call, &kvfs_lane::Call::Mkdir { at: at(call, 0, false, false)?, mode, umask })
}

fn unlink(call: &Call<'_>, is_directory: bool) -> Done {
    do_it(call, &kvfs_lane::Call::Unlink { at: at(call, 0, false, false)?, is_directory })
}

fn symlink(call: &Call<'_>, target: u64) -> Done {
    let Some(target) = sys::string(target) else { return error(libc::ENAMETOOLONG) };
    let fill = |space: &mut [u8]| {
        space[..target.len()].copy_from_slice(target);
        target.len() as isize
    };
    let asked = kvfs_lane::Call::Symlink { at: at(call, 0, false, false)? };
    ask_with(call, &asked, fill, |reply, _| (reply == Reply::Done).then_some(0))
}

/// Both of them, of which one may lie outside.
fn both<'a>(call: &Call<'a>, follows: bool, may_be_empty: bool) -> Result<(At<'a>, At<'a>), super::Verdict> {
    Ok((at(call, 0, follows, may_be_empty)?, at(call, 1, false, false)?))
}

fn link(call: &Call<'_>, flags: i32) -> Done {
    if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return error(libc::EINVAL);
    }
    let (follows, is_empty) = (flags & libc::AT_SYMLINK_FOLLOW != 0, flags & libc::AT_EMPTY_PATH != 0);
    let (old, new) = both(call, follows, is_empty)?;
    do_it(call, &kvfs_lane::Call::Link { old, new })
}

fn rename(call: &Call<'_>, flags: u32) -> Done {
    let (old, new) = both(call, false, false)?;
    do_it(call, &kvfs_lane::Call::Rename { old, new, flags })
}

fn readlink(call: &Call<'_>, buffer: u64, size: i32) -> Done {
    let Some(size) = usize::try_from(size).ok().filter(|size| *size > 0) else { return error(libc::EINVAL) };
    // A name of a descriptor is a link that the kernel makes up.
    if matches!(call.paths[0], Some((_, crate::place::Place::Descriptor(_)))) {
        return Err(super::Verdict::Native);
    }
    let asked = kvfs_lane::Call::Readlink { at: at(call, 0, false, true)? };
    ask(call, &asked, |_, target| {
        let len = target.len().min(size);
        sys::bytes(buffer, len).copy_from_slice(&target[..len]);
        Some(len as isize)
    })
}
