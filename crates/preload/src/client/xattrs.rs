//! Extended attributes.
//!
//! Thread safety: see the back end.

use kvfs_lane::{Bytes, Reply};

use super::{Done, ask, ask_with, at, do_it, error};
use crate::call::Call;
use crate::sys;

/// Each of them.
pub(super) fn serve(call: &Call<'_>) -> Done {
    let args = call.args;
    let nr = call.nr as i64;
    let follows = ![libc::SYS_lsetxattr, libc::SYS_lgetxattr, libc::SYS_llistxattr, libc::SYS_lremovexattr]
        .contains(&nr);
    let at = at(call, 0, follows, false)?;
    if matches!(nr, libc::SYS_listxattr | libc::SYS_llistxattr | libc::SYS_flistxattr) {
        return fetch(call, &kvfs_lane::Call::Listxattr { at }, args[1], args[2] as usize);
    }
    let Some(name) = sys::string(args[1]).map(Bytes) else { return error(libc::ERANGE) };
    match nr {
        libc::SYS_getxattr | libc::SYS_lgetxattr | libc::SYS_fgetxattr => {
            fetch(call, &kvfs_lane::Call::Getxattr { at, name }, args[2], args[3] as usize)
        }
        libc::SYS_removexattr | libc::SYS_lremovexattr | libc::SYS_fremovexattr => {
            do_it(call, &kvfs_lane::Call::Removexattr { at, name })
        }
        _ => {
            let len = args[3] as usize;
            let fill = |space: &mut [u8]| match space.get_mut(..len) {
                Some(space) => {
                    space.copy_from_slice(sys::bytes(args[2], len));
                    len as isize
                }
                None => -(libc::E2BIG as isize),
            };
            let asked = kvfs_lane::Call::Setxattr { at, name, flags: args[4] as u32 };
            ask_with(call, &asked, fill, |reply, _| (reply == Reply::Done).then_some(0))
        }
    }
}

/// Copies the answer; without room its length is asked for.
fn fetch(call: &Call<'_>, asked: &kvfs_lane::Call<'_>, address: u64, size: usize) -> Done {
    let fetched = ask(call, asked, |_, value| {
        if size > 0 && value.len() > size {
            return Some(error(libc::ERANGE));
        }
        if size > 0 {
            sys::bytes(address, value.len()).copy_from_slice(value);
        }
        Some(Ok(value.len() as isize))
    });
    fetched?
}
