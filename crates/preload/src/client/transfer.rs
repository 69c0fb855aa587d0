//! Content from one descriptor to another.
//!
//! Thread safety: see the back end. Invariant: a call that moves less than was asked for says so, and
//! programs go on.

use super::content::PIECE;
use super::{Done, ask, ask_with, error, handle, number, number_of};
use crate::call::Call;
use crate::slow::Verdict;
use crate::sys::{self, word};

/// Each of them.
pub(super) fn serve(call: &Call<'_>) -> Done {
    match call.nr as i64 {
        libc::SYS_copy_file_range => copy(call),
        libc::SYS_sendfile => send(call),
        _ => error(libc::EINVAL),
    }
}

/// The handles of both, where they are the store's.
fn handles(call: &Call<'_>) -> Result<[Option<u64>; 2], Verdict> {
    let both = call.fds.map(|fd| fd.and_then(|fd| handle(fd).ok()));
    if both == [None, None] { Err(Verdict::Native) } else { Ok(both) }
}

/// What an offset of the program's points to, or none.
fn offset(address: u64) -> Option<u64> {
    (address != 0).then(|| word(address, 0))
}

fn advance(address: u64, moved: isize) {
    if address != 0 {
        sys::put_words(address, &[word(address, 0) + moved as u64]);
    }
}

fn copy(call: &Call<'_>) -> Done {
    let args = call.args;
    let [Some(from), Some(to)] = handles(call)? else { return error(libc::EXDEV) };
    let (from_offset, to_offset) = (offset(args[1]), offset(args[3]));
    let copied = number(call, &kvfs_lane::Call::Copy { from, from_offset, to, to_offset, len: args[4] })?;
    advance(args[1], copied);
    advance(args[3], copied);
    Ok(copied)
}

/// sendfile: to, from, the offset, how much.
fn send(call: &Call<'_>) -> Done {
    let args = call.args;
    let (to_fd, from_fd, address, len) = (args[0], args[1], args[2], (args[3] as usize).min(PIECE));
    match handles(call)? {
        [Some(to), Some(from)] => {
            let len = args[3];
            let asked =
                kvfs_lane::Call::Copy { from, from_offset: offset(address), to, to_offset: None, len };
            let copied = number(call, &asked)?;
            advance(address, copied);
            Ok(copied)
        }
        [Some(to), None] => {
            let fill = |space: &mut [u8]| {
                let space = &mut space[..len];
                let (address, len) = (space.as_mut_ptr() as u64, space.len() as u64);
                match offset(args[2]) {
                    Some(at) => sys::call(libc::SYS_pread64 as u64, &[from_fd, address, len, at, 0, 0]),
                    None => sys::call(libc::SYS_read as u64, &[from_fd, address, len, 0, 0, 0]),
                }
            };
            let asked = kvfs_lane::Call::Write { handle: to, offset: None };
            let written = ask_with(call, &asked, fill, number_of)?;
            advance(address, written);
            Ok(written)
        }
        [None, Some(from)] => {
            let seek =
                |offset, whence: i32| kvfs_lane::Call::Seek { handle: from, offset, whence: whence as u32 };
            let start = match offset(address) {
                Some(offset) => offset,
                None => number(call, &seek(0, libc::SEEK_CUR))? as u64,
            };
            let asked = kvfs_lane::Call::Read { handle: from, len: len as u32, offset: Some(start) };
            let sent = ask(call, &asked, |_, data| {
                let args = [to_fd, data.as_ptr() as u64, data.len() as u64, 0, 0, 0];
                Some(sys::call(libc::SYS_write as u64, &args))
            })?;
            if sent < 0 {
                return Err(Verdict::Done(sent));
            }
            advance(address, sent);
            if address == 0 {
                number(call, &seek(start as i64 + sent as i64, libc::SEEK_SET))?;
            }
            Ok(sent)
        }
        [None, None] => Err(Verdict::Native),
    }
}
