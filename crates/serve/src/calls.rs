//! Each call of a client, done by its process.
//!
//! Thread safety: functions. Invariant: whatever bytes come, an answer goes.

use std::cell::Cell;
use std::sync::Arc;

use kvfs_fs::operations::OperationKind;
use kvfs_fs::{FallocateMode, SetTime, Timestamp};
use kvfs_lane::{
    At, Attributes, Bytes, Call, FsNumbers, LANE_DATA_BYTES, LockRange, Reply, Time, decode, encode,
};
use kvfs_posix::{
    Access, Fd, NewMode, Place, PosixError, ProcessTrees, RangeLock, Result, SharedFile, Truncation, Whence,
    close_all, linux,
};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::images::Image;
use crate::session::{Session, handle_of, refused};
use crate::{keys, records, report};

/// Bytes of an answer in front of its payload, at most.
const HEAD_BYTES: usize = 256;

/// Most bytes of a payload.
const PAYLOAD_MAX: usize = LANE_DATA_BYTES - HEAD_BYTES;

/// What is answered if all is well.
pub(crate) enum Answered {
    With(Reply),
    /// So many bytes lie in the space for the payload.
    Payload(usize),
    Bytes(Vec<u8>),
}

pub(crate) fn done((): ()) -> Answered {
    Answered::With(Reply::Done)
}

pub(crate) fn number(number: u64) -> Answered {
    Answered::With(Reply::Number(number))
}

/// A call that was answered.
pub(crate) struct Done {
    /// Of the answer (bytes).
    pub(crate) len: usize,
    /// `None`: it is not reported here.
    pub(crate) kind: Option<OperationKind>,
    /// 0: it was done.
    pub(crate) errno: i32,
    /// Content or values that were moved.
    pub(crate) bytes: u64,
}

/// Does what `message` asks; the answer lies at the beginning of `space`.
pub(crate) fn answer(session: &Arc<Session>, message: &[u8], space: &mut [u8]) -> Done {
    // An answer without a payload is one byte: what is read lies behind it at once.
    let head = encode(&Reply::Done, &[], space).unwrap_or_default();
    let caller = Caller { session, has_unknown: Cell::new(false) };
    let (mut kind, mut written) = (Some(OperationKind::Other), 0);
    let answered = match decode::<Call<'_>>(message) {
        Ok((call, payload)) => {
            (kind, written) = (report::kind_of(&call), payload.len() as u64);
            caller.call(&call, payload, &mut space[head..head + PAYLOAD_MAX])
        }
        Err(_) => Err(refused(Errno::PROTO)),
    };
    let errno = answered.as_ref().err().map_or(0, |error| error.errno().raw_os_error());
    let encoded = match answered {
        Ok(Answered::Payload(len)) => return Done { len: head + len, kind, errno, bytes: len as u64 },
        Ok(Answered::With(reply)) => encode(&reply, &[], space),
        Ok(Answered::Bytes(bytes)) if bytes.len() > PAYLOAD_MAX => {
            encode(&Reply::Failed { errno: Errno::OVERFLOW.raw_os_error() }, &[], space)
        }
        Ok(Answered::Bytes(bytes)) => encode(&Reply::Done, &bytes, space),
        Err(PosixError::Outside { path }) => encode(&Reply::Outside, &path, space),
        Err(_) if caller.has_unknown.get() => encode(&Reply::Unknown, &[], space),
        Err(error) => {
            let reply = Reply::Failed { errno: error.errno().raw_os_error() };
            encode(&reply, error.to_string().as_bytes(), space)
        }
    };
    // Replies and paths are shorter than a lane.
    Done { len: encoded.unwrap_or_default(), kind, errno, bytes: written }
}

/// Puts the failure of a call that has not come to its end into `space`.
pub(crate) fn panicked(space: &mut [u8]) -> Done {
    let errno = Errno::IO.raw_os_error();
    let len = encode(&Reply::Failed { errno }, &[], space).unwrap_or_default();
    Done { len, kind: Some(OperationKind::Other), errno, bytes: 0 }
}

struct Caller<'s> {
    session: &'s Arc<Session>,
    /// No open file has a handle that the call names.
    has_unknown: Cell<bool>,
}

impl Caller<'_> {
    fn descriptor(&self, handle: u64) -> Result<Fd> {
        let found = self.session.descriptor(handle);
        if found.as_ref().is_err_and(|error| error.errno() == Errno::BADF) {
            self.has_unknown.set(true);
        }
        found
    }

    fn place<'a>(&self, at: &At<'a>) -> Result<Place<'a>> {
        let place = match (at.base, at.path) {
            (Some(base), Some(Bytes(path))) if path.first() != Some(&b'/') => {
                Place::from((self.descriptor(base)?, path))
            }
            (Some(base), None) if at.is_named => Place::named(self.descriptor(base)?),
            (Some(base), None) => Place::from(self.descriptor(base)?),
            (_, Some(Bytes(path))) => Place::from(path),
            (None, None) => Place::from("/"),
        };
        Ok(if at.follows { place } else { place.no_follow() })
    }

    fn call(&self, call: &Call<'_>, payload: &[u8], space: &mut [u8]) -> Result<Answered> {
        let process = self.session.process();
        match *call {
            Call::Open { at, flags, mode, umask, handle } => {
                let mode = NewMode::masked(mode, umask);
                self.open(&at, OFlags::from_bits_retain(flags), mode, handle)
            }
            Call::Close { handle } => self.session.close(handle).map(done),
            Call::Mkdir { at, mode, umask } => {
                process.mkdir(self.place(&at)?, NewMode::masked(mode, umask)).map(done)
            }
            Call::Mknod { at, mode, rdev, umask } => {
                process.mknod(self.place(&at)?, NewMode::masked(mode, umask), rdev).map(done)
            }
            Call::Symlink { at } => process.symlink(payload, self.place(&at)?).map(done),
            Call::Link { old, new } => process.link(self.place(&old)?, self.place(&new)?).map(done),
            Call::Unlink { at, is_directory: false } => process.unlink(self.place(&at)?).map(done),
            Call::Unlink { at, is_directory: true } => process.rmdir(self.place(&at)?).map(done),
            Call::Rename { old, new, flags } => {
                let mode = linux::rename_mode(flags)?;
                process.rename(self.place(&old)?, self.place(&new)?, mode).map(done)
            }
            Call::Readlink { at } => process.readlink(self.place(&at)?).map(Answered::Bytes),
            Call::Remove { at } => process.remove(self.place(&at)?).map(done),
            Call::RemoveTree { at } => {
                let txn = ProcessTrees::of(process).remove(self.place(&at)?)?;
                Ok(number(txn.map_or(0, |txn| txn.0)))
            }
            Call::CloneTree { source, target } => {
                let txn = ProcessTrees::of(process).clone_to(self.place(&source)?, self.place(&target)?)?;
                Ok(number(txn.map_or(0, |txn| txn.0)))
            }
            Call::PathOf { handle } => process.path_of(self.descriptor(handle)?).map(Answered::Bytes),
            Call::List { handle, len } => {
                self.list(handle, None, &mut space[..PAYLOAD_MAX.min(len as usize)])
            }
            Call::ListFrom { handle, offset, len } => {
                self.list(handle, Some(offset), &mut space[..PAYLOAD_MAX.min(len as usize)])
            }
            Call::Settle => self.session.settle_all().map(done),
            Call::SyncAll => {
                let settled = self.session.settle_all();
                process.sync().and(settled).map(done)
            }
            Call::Stat { .. }
            | Call::Access { .. }
            | Call::Chmod { .. }
            | Call::Chown { .. }
            | Call::Utimens { .. }
            | Call::Truncate { .. }
            | Call::StatFs { .. } => self.describe(call),
            Call::Getxattr { .. }
            | Call::Setxattr { .. }
            | Call::Listxattr { .. }
            | Call::Removexattr { .. } => self.xattr(call, payload),
            Call::Flock { .. } | Call::Lock { .. } | Call::FindLock { .. } => self.lock(call),
            Call::Begin { is_serializable, label } => {
                self.session.begun().begin(is_serializable, label).map(number)
            }
            Call::Commit { txn } => self.session.begun().commit(txn).map(done),
            Call::Abort { txn } => self.session.begun().abort(txn).map(done),
            Call::GetKey { .. }
            | Call::WriteKeys { .. }
            | Call::DeleteKey { .. }
            | Call::DeleteKeys { .. }
            | Call::ListKeys { .. }
            | Call::CreateKeyspace { .. }
            | Call::DropKeyspace { .. }
            | Call::ListKeyspaces => keys::answer(process, call, payload, &mut space[..PAYLOAD_MAX]),
            Call::Chdir { .. }
            | Call::WorkingDirectory
            | Call::Dup { .. }
            | Call::DupTo { .. }
            | Call::ClosesOnExec { .. }
            | Call::SetClosesOnExec { .. }
            | Call::Exec
            | Call::Exit => self.own(call),
            _ => self.content(call, payload, space),
        }
    }

    fn open(&self, at: &At<'_>, flags: OFlags, mode: NewMode, handle: Option<u64>) -> Result<Answered> {
        let process = self.session.process();
        handle.map_or(Ok(()), |handle| self.session.check_unused(handle))?;
        let place = self.place(at)?;
        // What is cut off must not be written back meanwhile. Without a file there is none.
        let cut = flags.contains(OFlags::TRUNC).then(|| self.image_at(place).ok().flatten()).flatten();
        let held = cut.as_ref().map(|image| image.hold(process)).transpose()?;
        let file = SharedFile::open(process, place, flags, mode)?;
        if flags.contains(OFlags::TRUNC)
            && let Some(image) = self.session.images().of(&file)
        {
            // Another file may have the name by now, and one that was not mapped may be.
            match held.filter(|held| held.is_of(&image)) {
                Some(mut held) => held.refresh()?,
                None => drop(image.hold(process)?),
            }
        }
        let handle = self.session.name(file, flags.contains(OFlags::CLOEXEC), handle)?;
        Ok(Answered::With(Reply::Opened { handle }))
    }

    /// Of what the process has: its working directory and its table of descriptors.
    fn own(&self, call: &Call<'_>) -> Result<Answered> {
        let process = self.session.process();
        let opened = |fd| Ok(Answered::With(Reply::Opened { handle: handle_of(fd) }));
        match *call {
            Call::Chdir { at } => process.chdir(self.place(&at)?).map(done),
            Call::WorkingDirectory => process.getcwd().map(Answered::Bytes),
            Call::Dup { handle, min, closes_on_exec } => {
                opened(process.dup(self.descriptor(handle)?, min, closes_on_exec)?)
            }
            Call::DupTo { handle, new, closes_on_exec } => {
                opened(process.dup_to(self.descriptor(handle)?, Fd(new), closes_on_exec)?)
            }
            Call::ClosesOnExec { handle } => {
                Ok(number(process.closes_on_exec(self.descriptor(handle)?)?.into()))
            }
            Call::SetClosesOnExec { handle, closes_on_exec } => {
                process.set_closes_on_exec(self.descriptor(handle)?, closes_on_exec).map(done)
            }
            Call::Exec => {
                process.exec();
                Ok(done(()))
            }
            Call::Exit => {
                close_all(process);
                Ok(done(()))
            }
            _ => Err(refused(Errno::NOSYS)),
        }
    }

    /// Of attributes.
    fn describe(&self, call: &Call<'_>) -> Result<Answered> {
        let process = self.session.process();
        match *call {
            Call::Stat { at } => {
                Ok(Answered::With(Reply::Attributes(attributes(&process.stat(self.place(&at)?)?))))
            }
            Call::Access { at, access } => {
                let [reads, writes, executes] = [4, 2, 1].map(|bit| access & bit != 0);
                process.access(self.place(&at)?, Access { reads, writes, executes }).map(done)
            }
            Call::Chmod { at, mode } => process.chmod(self.place(&at)?, mode).map(done),
            Call::Chown { at, uid, gid } => process.chown(self.place(&at)?, uid, gid).map(done),
            Call::Utimens { at, atime, mtime } => {
                process.utimens(self.place(&at)?, atime.map(time), mtime.map(time)).map(done)
            }
            Call::Truncate { at, size } => {
                let place = self.place(&at)?;
                // Before anything is done for its sake.
                let truncation = Truncation::of(process, place)?;
                let Some(image) = self.image_at(place)? else {
                    return truncation.set(size).map(done);
                };
                let mut held = image.hold(process)?;
                held.write_back()?;
                held.reserve(size, self.session.uid())?;
                let truncated = truncation.set(size);
                let refreshed = held.refresh();
                truncated.and(refreshed).map(done)
            }
            Call::StatFs { at } => {
                let found = process.statvfs(self.place(&at)?)?;
                Ok(Answered::With(Reply::FileSystem(FsNumbers {
                    block_bytes: found.block_bytes,
                    blocks: found.blocks,
                    blocks_free: found.blocks_free,
                    blocks_available: found.blocks_available,
                    files: found.files,
                    files_free: found.files_free,
                    name_len_max: found.name_len_max,
                })))
            }
            _ => Err(refused(Errno::NOSYS)),
        }
    }

    /// Of extended attributes.
    fn xattr(&self, call: &Call<'_>, payload: &[u8]) -> Result<Answered> {
        let process = self.session.process();
        match *call {
            Call::Getxattr { at, name } => process.getxattr(self.place(&at)?, name.0).map(Answered::Bytes),
            Call::Setxattr { at, name, flags } => {
                let mode = linux::xattr_mode(flags)?;
                process.setxattr(self.place(&at)?, name.0, payload, mode).map(done)
            }
            Call::Listxattr { at } => {
                let names = process.listxattr(self.place(&at)?)?;
                let mut list = Vec::new();
                for name in names {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                Ok(Answered::Bytes(list))
            }
            Call::Removexattr { at, name } => process.removexattr(self.place(&at)?, name.0).map(done),
            _ => Err(refused(Errno::NOSYS)),
        }
    }

    /// What is refused because another one has a lock is tried again when all files have ended that are
    /// closed.
    fn settled<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        match work() {
            Err(error) if error.errno() == Errno::AGAIN => {
                self.session.settle();
                work()
            }
            done => done,
        }
    }

    /// Of locks.
    fn lock(&self, call: &Call<'_>) -> Result<Answered> {
        let process = self.session.process();
        match *call {
            Call::Flock { handle, is_exclusive, waits } => {
                let fd = self.descriptor(handle)?;
                self.settled(|| process.flock(fd, is_exclusive, waits)).map(done)
            }
            Call::Lock { handle, lock, waits } => {
                let (fd, range) = (self.descriptor(handle)?, lock.start..lock.end);
                match lock.is_exclusive {
                    None => process.unlock_range(fd, &range, lock.of_file).map(done),
                    Some(is_exclusive) => {
                        let wish = RangeLock { range, is_exclusive };
                        self.settled(|| process.lock_range(fd, &wish, lock.of_file, waits)).map(done)
                    }
                }
            }
            Call::FindLock { handle, lock } => {
                let is_exclusive = lock.is_exclusive.ok_or(refused(Errno::INVAL))?;
                let wish = RangeLock { range: lock.start..lock.end, is_exclusive };
                let found = process.find_lock(self.descriptor(handle)?, &wish, lock.of_file)?;
                let found = found.map(|found| LockRange {
                    start: found.range.start,
                    end: found.range.end,
                    is_exclusive: Some(found.is_exclusive),
                    of_file: lock.of_file,
                });
                Ok(Answered::With(Reply::Locked(found)))
            }
            _ => Err(refused(Errno::NOSYS)),
        }
    }

    /// Of content and open files. Memory of a file that is mapped holds what the file does; nothing of it is
    /// written back while a call writes there, since it would be older.
    fn content(&self, call: &Call<'_>, payload: &[u8], space: &mut [u8]) -> Result<Answered> {
        let process = self.session.process();
        let (read, written) = match *call {
            Call::Read { handle, .. } => (Some(handle), None),
            Call::Write { handle, .. } | Call::Allocate { handle, .. } => (None, Some(handle)),
            Call::Copy { from, to, .. } => (Some(from), Some(to)),
            _ => (None, None),
        };
        let image = |handle: Option<u64>| handle.and_then(|handle| self.image_of(handle));
        if let Some(image) = image(read) {
            image.write_back(process)?;
        }
        if let Call::Sync { handle } = *call
            && let Some(image) = self.image_of(handle)
        {
            image.sync(process)?;
        }
        let Some(mapped) = image(written) else {
            let answered = self.move_content(call, payload, space)?;
            // What was mapped meanwhile is brought up to date before the answer.
            image(written).map_or(Ok(()), |mapped| mapped.hold(process).map(drop))?;
            return Ok(answered);
        };
        let mut held = mapped.hold(process)?;
        held.write_back()?;
        held.reserve(self.end_of(call, payload)?, self.session.uid())?;
        let moved = self.move_content(call, payload, space);
        let refreshed = held.refresh();
        let answered = moved?;
        refreshed.map(|()| answered)
    }

    /// How long a file is at least when a call has written to it; 0: as it was.
    fn end_of(&self, call: &Call<'_>, payload: &[u8]) -> Result<u64> {
        let process = self.session.process();
        let at = |fd, offset: Option<u64>| offset.map_or_else(|| process.lseek(fd, 0, Whence::Current), Ok);
        match *call {
            Call::Write { handle, offset } if !payload.is_empty() => {
                let fd = self.descriptor(handle)?;
                let appends = process.flags(fd)?.contains(OFlags::APPEND);
                let start = if appends { process.stat(fd)?.size } else { at(fd, offset)? };
                Ok(start.saturating_add(payload.len() as u64))
            }
            Call::Allocate { mode, offset, len, .. } => Ok(match linux::fallocate_mode(mode)? {
                FallocateMode::Allocate { keep_size: false }
                | FallocateMode::ZeroRange { keep_size: false } => offset.saturating_add(len),
                _ => 0,
            }),
            Call::Copy { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.descriptor(from)?, self.descriptor(to)?);
                let left = process.stat(from)?.size.saturating_sub(at(from, from_offset)?).min(len);
                Ok(if left == 0 { 0 } else { at(to, to_offset)?.saturating_add(left) })
            }
            _ => Ok(0),
        }
    }

    /// The memory of an open file that is mapped.
    fn image_of(&self, handle: u64) -> Option<Arc<Image>> {
        let images = self.session.images();
        if images.is_empty() {
            return None;
        }
        images.of(&SharedFile::of(self.session.process(), self.descriptor(handle).ok()?).ok()?)
    }

    /// That of what is at a place.
    fn image_at(&self, place: Place<'_>) -> Result<Option<Arc<Image>>> {
        if self.session.images().is_empty() {
            return Ok(None);
        }
        let file = SharedFile::open(self.session.process(), place, OFlags::PATH, 0)?;
        Ok(self.session.images().of(&file))
    }

    fn move_content(&self, call: &Call<'_>, payload: &[u8], space: &mut [u8]) -> Result<Answered> {
        let process = self.session.process();
        match *call {
            Call::Read { handle, len, offset } => {
                let (fd, space) = (self.descriptor(handle)?, &mut space[..PAYLOAD_MAX.min(len as usize)]);
                match offset {
                    Some(offset) => process.pread(fd, space, offset),
                    None => process.read(fd, space),
                }
                .map(Answered::Payload)
            }
            Call::Write { handle, offset } => {
                let fd = self.descriptor(handle)?;
                let written = match offset {
                    Some(offset) => process.pwrite(fd, payload, offset),
                    None => process.write(fd, payload),
                };
                written.map(|len| number(len as u64))
            }
            Call::Seek { handle, offset, whence } => {
                process.lseek(self.descriptor(handle)?, offset, linux::whence(whence)?).map(number)
            }
            Call::Sync { handle } => process.fsync(self.descriptor(handle)?).map(done),
            Call::Allocate { handle, mode, offset, len } => {
                let mode = linux::fallocate_mode(mode)?;
                process.fallocate(self.descriptor(handle)?, mode, offset, len).map(done)
            }
            Call::Copy { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.descriptor(from)?, self.descriptor(to)?);
                process.copy_file_range(from, from_offset, to, to_offset, len).map(number)
            }
            Call::Flags { handle } => Ok(number(process.flags(self.descriptor(handle)?)?.bits().into())),
            Call::SetFlags { handle, flags } => {
                process.set_flags(self.descriptor(handle)?, OFlags::from_bits_retain(flags)).map(done)
            }
            _ => Err(refused(Errno::NOSYS)),
        }
    }

    fn list(&self, handle: u64, from: Option<u64>, space: &mut [u8]) -> Result<Answered> {
        let fd = self.descriptor(handle)?;
        let (mut used, mut is_short) = (0, false);
        self.session.process().list(fd, from, &mut |entry| {
            let put = records::put(entry, &mut space[used..]);
            is_short |= put.is_none() && used == 0;
            used += put.unwrap_or_default();
            put.is_some()
        })?;
        if is_short { Err(refused(Errno::INVAL)) } else { Ok(Answered::Payload(used)) }
    }
}

fn time(time: Time) -> SetTime {
    match time {
        Time::Now => SetTime::Now,
        Time::At { seconds, nanos } => SetTime::At(Timestamp { seconds, nanos }),
    }
}

fn attributes(attr: &kvfs_fs::Attr) -> Attributes {
    let pair = |time: Timestamp| (time.seconds, time.nanos);
    Attributes {
        inode: attr.inode,
        mode: attr.st_mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        blocks: attr.blocks,
        atime: pair(attr.atime),
        mtime: pair(attr.mtime),
        ctime: pair(attr.ctime),
        btime: pair(attr.btime),
    }
}
