//! Reading and writing, at the offset of the open file and elsewhere, into one buffer and into several.
//!
//! Thread safety: see the back end. Invariant: what fits into a lane is one call, so an append is one piece
//! up to that length.

use kvfs_lane::{LANE_DATA_BYTES, Reply};

use super::{Done, ask_bytes, ask_with, error, first, number, number_of};
use crate::call::Call;
use crate::sys::{self, word};

/// Most that one call moves (bytes).
pub(super) const PIECE: usize = LANE_DATA_BYTES - (4 << 10);

/// Most buffers of one call.
const BUFFERS_MAX: usize = 1024;

/// Flags of preadv2 and pwritev2 that ask for nothing more than is done: `RWF_HIPRI`.
const IGNORED: u64 = 1;
/// `RWF_DSYNC`, `RWF_SYNC`.
const SYNCED: u64 = 6;

/// Each of them.
pub(super) fn serve(call: &Call<'_>) -> Done {
    let handle = first(call)?;
    let args = call.args;
    let vector = || Buffers::new(args[1], args[2]);
    match call.nr as i64 {
        libc::SYS_read => read(call, handle, &Buffers::one(args[1], args[2]), None),
        libc::SYS_write => write(call, handle, &Buffers::one(args[1], args[2]), None),
        libc::SYS_pread64 => read(call, handle, &Buffers::one(args[1], args[2]), Some(args[3])),
        libc::SYS_pwrite64 => write(call, handle, &Buffers::one(args[1], args[2]), Some(args[3])),
        libc::SYS_readv => read(call, handle, &vector()?, None),
        libc::SYS_writev => write(call, handle, &vector()?, None),
        libc::SYS_preadv => read(call, handle, &vector()?, Some(args[3])),
        libc::SYS_pwritev => write(call, handle, &vector()?, Some(args[3])),
        libc::SYS_preadv2 | libc::SYS_pwritev2 => {
            let offset = Some(args[3]).filter(|offset| *offset != u64::MAX);
            if args[5] & !(IGNORED | SYNCED) != 0 {
                return error(libc::EOPNOTSUPP);
            }
            if call.nr as i64 == libc::SYS_preadv2 {
                return read(call, handle, &vector()?, offset);
            }
            let written = write(call, handle, &vector()?, offset)?;
            if args[5] & SYNCED != 0 {
                super::do_it(call, &kvfs_lane::Call::Sync { handle })?;
            }
            Ok(written)
        }
        libc::SYS_lseek => {
            let (offset, whence) = (args[1] as i64, args[2] as u32);
            number(call, &kvfs_lane::Call::Seek { handle, offset, whence })
        }
        _ => list(call, handle, args[1], args[2]),
    }
}

/// Buffers of the program, one behind the other.
struct Buffers {
    /// Of struct iovec; or the only buffer.
    address: u64,
    count: usize,
    /// Of the only buffer.
    len: Option<usize>,
}

impl Buffers {
    fn one(address: u64, len: u64) -> Self {
        Self { address, count: 1, len: Some(len as usize) }
    }

    fn new(address: u64, count: u64) -> Result<Self, super::Verdict> {
        let count = usize::try_from(count as i32).ok().filter(|count| *count <= BUFFERS_MAX);
        let count = count.ok_or(super::fail(libc::EINVAL))?;
        Ok(Self { address, count, len: None })
    }

    fn get(&self, index: usize) -> (u64, usize) {
        match self.len {
            Some(len) => (self.address, len),
            None => (word(self.address, 2 * index), word(self.address, 2 * index + 1) as usize),
        }
    }

    /// Bytes of all.
    fn len(&self) -> usize {
        (0..self.count).fold(0, |sum, index| sum.saturating_add(self.get(index).1))
    }

    /// Calls `with` for each stretch of the `len` bytes from `start` on, until it has handled fewer than
    /// there are.
    fn each(&self, start: usize, len: usize, mut with: impl FnMut(&mut [u8])) {
        let (mut skip, mut rest) = (start, len);
        for index in 0..self.count {
            let (address, size) = self.get(index);
            let from = skip.min(size);
            let taken = (size - from).min(rest);
            skip -= from;
            rest -= taken;
            if taken > 0 {
                with(sys::bytes(address + from as u64, taken));
            }
        }
    }
}

fn read(call: &Call<'_>, handle: u64, buffers: &Buffers, offset: Option<u64>) -> Done {
    if offset.is_some_and(|offset| offset > i64::MAX as u64) {
        return error(libc::EINVAL);
    }
    let (mut done, len) = (0, buffers.len());
    loop {
        let piece = (len - done).min(PIECE);
        let offset = offset.map(|offset| offset + done as u64);
        let asked = kvfs_lane::Call::Read { handle, len: piece as u32, offset };
        let answered = ask_bytes(call, &asked, piece, |_, payload| {
            let mut from = 0;
            buffers.each(done, payload.len(), |space| {
                space.copy_from_slice(&payload[from..from + space.len()]);
                from += space.len();
            });
            Some(payload.len())
        });
        match answered {
            Ok(got) => {
                done += got;
                if got < piece || done == len {
                    return Ok(done as isize);
                }
            }
            Err(_) if done > 0 => return Ok(done as isize),
            Err(verdict) => return Err(verdict),
        }
    }
}

fn write(call: &Call<'_>, handle: u64, buffers: &Buffers, offset: Option<u64>) -> Done {
    if offset.is_some_and(|offset| offset > i64::MAX as u64) {
        return error(libc::EINVAL);
    }
    let (mut done, len) = (0, buffers.len());
    loop {
        let piece = (len - done).min(PIECE);
        let offset = offset.map(|offset| offset + done as u64);
        let fill = |space: &mut [u8]| {
            let mut to = 0;
            buffers.each(done, piece, |data| {
                space[to..to + data.len()].copy_from_slice(data);
                to += data.len();
            });
            to as isize
        };
        let within = |reply, payload: &mut [u8]| {
            number_of(reply, payload).filter(|written| (0..=piece as isize).contains(written))
        };
        match ask_with(call, &kvfs_lane::Call::Write { handle, offset }, fill, within) {
            Ok(written) => {
                done += written as usize;
                if (written as usize) < piece || done == len {
                    return Ok(done as isize);
                }
            }
            Err(_) if done > 0 => return Ok(done as isize),
            Err(verdict) => return Err(verdict),
        }
    }
}

fn list(call: &Call<'_>, handle: u64, address: u64, size: u64) -> Done {
    let len = (size as usize).min(PIECE) as u32;
    ask_bytes(call, &kvfs_lane::Call::List { handle, len }, len as usize, |reply, records| {
        sys::bytes(address, records.len()).copy_from_slice(records);
        (reply == Reply::Done).then_some(records.len() as isize)
    })
}
