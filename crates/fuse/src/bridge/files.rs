//! The files of one view, request by request. Nodes come as inode numbers, and are answered as node ids.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{
    AclKind, Append, Caller, DirEntry, FallocateMode, Fill, FsError, NodeId, PROJECT_ATTRIBUTE, RenameMode,
    SeekKind, WriteFlags, XattrMode,
};
use rustix::io::Errno;

use super::background::Job;
use super::flags::may_change_projects;
use super::timeouts::Attempt;
use super::{Changed, Counted, Failure, Files, Nature, Shared, caller, convert, errno::errno};
use crate::abi::Opcode;
use crate::abi::flags::open::KEEP_CACHE;
use crate::dispatch::{
    AttributeChange, Attributes, Copied, CopyArgs, Created, Data, DirectoryBuffer, DirectoryEntry, Entry,
    ExtendedAttributes, FallocateArgs, NodeMode, Offset, OpenArgs, Opened, Operations, Payload, ReadArgs,
    ReaddirArgs, Reply, RequestContext, SessionRecorder, SetxattrArgs, Statfs, WriteArgs, Written, Xattr,
};
use crate::notify::{Notification, Outcome};

const O_EXCL: u32 = 0o200;
const O_ACCMODE: u32 = 0o3;
const O_RDONLY: u32 = 0;
const O_APPEND: u32 = 0o2000;
const O_NOATIME: u32 = 0o1_000_000;
const O_DIRECT: u32 = 0o40000;
/// Most that one copy moves before it answers, so that a worker is soon free again (bytes).
const COPY_BYTES_MAX: u64 = 64 << 20;

/// Files are opened with their cached pages kept: nothing else changes them without a notification.
const OPENED: Opened = Opened { fh: 0, flags: KEEP_CACHE };

impl Shared {
    /// The list to be set: entries that the kernel side can't see stay.
    fn meant_list(&self, caller: &Caller, node: u64, kind: AclKind, value: &[u8]) -> Result<Bytes, FsError> {
        let Some((uid, gid)) = self.config.only_ids else { return Ok(Bytes::copy_from_slice(value)) };
        match self.fs.getxattr(caller, NodeId(node), kind.name()) {
            Ok(old) => AclKind::with_unknown_of(value, &old, uid, gid),
            Err(FsError::NoAttribute) => Ok(Bytes::copy_from_slice(value)),
            Err(error) => Err(error),
        }
    }
}

impl Attempt<'_> {
    pub(super) fn list(&self, caller: &Caller, node: NodeId, args: ReaddirArgs) -> Result<Listing, FsError> {
        let mut buffer = DirectoryBuffer::new(args.size as usize, args.plus);
        let (mut counted, mut left_out) = (Vec::new(), None);
        let mut sink = |line: &DirEntry<'_>| {
            if node == NodeId::ROOT && self.config.hidden.as_ref().is_some_and(|hidden| hidden.is(line.name))
            {
                // A file of that name can't be reached.
                left_out = line.entry.as_ref().map(|entry| entry.node);
                return Fill::Taken;
            }
            let entry = line.entry.as_ref().map(|entry| self.listed(entry));
            let head = DirectoryEntry {
                ino: self.base + line.inode,
                next_offset: line.offset,
                file_type: line.kind as u32,
                name: line.name,
            };
            if !buffer.push(&head, entry.as_ref()) {
                return Fill::Full;
            }
            counted.extend(entry.map(|entry| entry.node));
            Fill::Taken
        };
        let listed = if args.plus {
            self.fs.readdirplus(caller, node, args.offset, &mut sink)
        } else {
            self.fs.readdir(caller, node, args.offset, &mut sink)
        };
        if let Some(node) = left_out {
            self.fs.forget(node, 1);
        }
        match listed {
            // What was listed before the failure is answered; the next request meets the failure again.
            Err(_) if !buffer.is_empty() => {}
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        self.limit_listed(node, &mut buffer);
        Ok(Listing { buffer, counted })
    }
}

/// A part of a directory, and the nodes in it whose lookup counts went up.
pub(super) struct Listing {
    buffer: DirectoryBuffer,
    pub(super) counted: Vec<u64>,
}

impl Payload for Listing {
    fn with_parts<R>(&self, opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        self.buffer.with_parts(opcode, send)
    }
}

impl Files {
    /// A READ of what will be old in a moment, and what a mapping might then write back whole. It is not
    /// parked: an interrupted READ of a mapping that the kernel itself looks into fails for good.
    fn read_after_commit(&self, cx: &RequestContext, node: u64, args: ReadArgs, reply: Reply<Data>) {
        let (files, cx, retries) = (self.clone(), cx.clone(), Arc::clone(&self.background.retries));
        let again: Job = Box::new(move || files.read_into_own(&cx, node, args, reply));
        self.shared.writers.wait_for_commit(
            node,
            Box::new(move || {
                // Refused only after the end of the session, when the kernel waits for no answer.
                let _ = retries.submit(again);
            }),
        );
    }

    /// Answers with attributes of `node`, but not while a commit changes its content.
    fn run_for_attributes<T: Payload + Counted + Send + 'static>(
        &self,
        cx: &RequestContext,
        node: u64,
        reply: Reply<T>,
        operation: impl Fn(&Attempt<'_>, &Caller) -> Result<T, FsError> + Send + 'static,
    ) {
        if !self.shared.writers.is_changing(node) {
            return self.run(cx, reply, operation);
        }
        let (files, cx, retries) = (self.clone(), cx.clone(), Arc::clone(&self.background.retries));
        let again: Job = Box::new(move || files.run(&cx, reply, operation));
        self.shared.writers.wait_for_attributes(
            node,
            Box::new(move || {
                // Refused only after the end of the session, when the kernel waits for no answer.
                let _ = retries.submit(again);
            }),
        );
    }

    /// A READ that is too large for a recycled buffer, or has to wait.
    fn read_into_own(&self, cx: &RequestContext, node: u64, args: ReadArgs, reply: Reply<Data>) {
        self.run(cx, reply, move |on, caller| {
            let mut data = vec![0; args.size as usize];
            let len = on.fs.read(&reader(caller, args.flags), NodeId(node), args.offset, &mut data)?;
            data.truncate(len);
            Ok(Data::Whole(data.into()))
        });
    }
}

/// The caller with its umask: where the kernel leaves that to us, a default list of the directory comes
/// before it.
fn masked(caller: &Caller, mode: NodeMode) -> Caller {
    Caller { umask: mode.umask & 0o777, ..caller.clone() }
}

/// The caller of a request that reads, with the flags that its file was opened with.
fn reader(caller: &Caller, flags: u32) -> Caller {
    Caller { keeps_atime: flags & O_NOATIME != 0, ..caller.clone() }
}

/// The answer about an extended attribute, or a list of them, to a request for `size` bytes.
fn xattr(value: Bytes, size: u32) -> Result<Xattr, Failure> {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => Ok(Xattr::Size(len)),
        Ok(len) if len <= size => Ok(Xattr::Value(value)),
        _ => Err(Failure::Plain(Errno::RANGE)),
    }
}

/// Where data, or a hole, is looked for.
#[derive(Clone, Copy)]
struct Seek {
    node: NodeId,
    offset: u64,
    kind: SeekKind,
}

impl Files {
    /// Answers when the kernel has written what programs have put into the hole that is told of, by memory
    /// that they share with the file. It has already written those pages of `written`. Where the kernel has
    /// no time to write them, all is data.
    fn seek(&self, cx: &RequestContext, seek: Seek, written: Range<u64>, reply: Reply<Offset>) {
        let Seek { node, offset, kind } = seek;
        let may_be_dirty = !kvfs_fs::is_read_only(&self.shared.fs) && self.shared.cached.has(node.0);
        let hole = || kvfs_fs::hole_of_seek(&self.shared.fs, node, offset, kind).ok().flatten();
        let hole = may_be_dirty.then(hole).flatten();
        let Some(hole) = hole.filter(|hole| hole.start < written.start || written.end < hole.end) else {
            return self
                .run(cx, reply, move |on, caller| Ok(Offset(on.fs.seek(caller, node, offset, kind)?)));
        };
        let (offset, len) = (hole.start as i64, (hole.end - hole.start) as i64);
        let pages = Notification::InvalInode { node: node.0, offset, len };
        let (files, cx) = (self.clone(), cx.clone());
        let again = move |outcome| {
            let retries = Arc::clone(&files.background.retries);
            let job: Job = if outcome == Outcome::Late {
                Box::new(move || files.seek_without_holes(&cx, seek, reply))
            } else {
                Box::new(move || files.seek(&cx, seek, hole, reply))
            };
            // After the end of that thread the reply is dropped, which answers.
            let _ = retries.submit(job);
        };
        self.shared.after_pages(pages, Box::new(again));
    }

    /// Answers as for a file of data alone, which has more than what is before the offset.
    fn seek_without_holes(&self, cx: &RequestContext, seek: Seek, reply: Reply<Offset>) {
        let Seek { node, offset, kind } = seek;
        self.run(cx, reply, move |on, caller| {
            Ok(Offset(match kind {
                SeekKind::Data => offset,
                SeekKind::Hole => on.fs.getattr(caller, node)?.size,
            }))
        });
    }
}

impl Operations for Files {
    fn recorder(&self) -> Option<SessionRecorder> {
        let fs = &self.shared.fs;
        let recorder = Arc::clone(kvfs_fs::operations::recorder(fs)?);
        Some(SessionRecorder { recorder, txn: fs.txn().map_or(0, |txn| txn.id().0) })
    }

    fn destroy(&self) {
        self.shared.finish();
    }

    fn lookup(&self, cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<Entry>) {
        // The kernel makes, removes and moves no name that it has not asked for before.
        self.shared.names_cached.note(parent);
        let name: Box<[u8]> = name.into();
        self.run(cx, reply, move |on, caller| match on.fs.lookup(caller, NodeId(parent), &name) {
            Ok(entry) => Ok(on.entry(NodeId(parent), &entry)),
            Err(FsError::NotFound) => Ok(on.missing(NodeId(parent))),
            Err(error) => Err(error),
        });
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.shared.forget(node, lookups);
    }

    fn getattr(&self, cx: &RequestContext, node: u64, _fh: Option<u64>, reply: Reply<Attributes>) {
        self.run_for_attributes(cx, node, reply, move |on, caller| {
            let attr = on.fs.getattr(caller, NodeId(node))?;
            Ok(on.attributes(&attr))
        });
    }

    fn statx(
        &self,
        cx: &RequestContext,
        node: u64,
        _fh: Option<u64>,
        _mask: u32,
        reply: Reply<ExtendedAttributes>,
    ) {
        if !self.shared.config.btimes {
            // From here on the kernel asks for the other attributes alone, and knows them, mostly.
            return reply.error(Errno::NOSYS);
        }
        self.run_for_attributes(cx, node, reply, move |on, caller| {
            let attr = on.fs.getattr(caller, NodeId(node))?;
            Ok(on.extended(&attr))
        });
    }

    fn setattr(&self, cx: &RequestContext, node: u64, change: &AttributeChange, reply: Reply<Attributes>) {
        let changes = convert::changes(change);
        // A truncation keeps the kernel from writing the file's dirty pages until it is answered.
        let nature = Nature { writes: changes.size.map(|_| node), ..Nature::default() };
        self.run_as(nature, cx, reply, move |on, caller| {
            let attr = on.fs.setattr(caller, NodeId(node), &changes)?;
            Ok(on.attributes(&attr))
        });
    }

    fn readlink(&self, cx: &RequestContext, node: u64, reply: Reply<Bytes>) {
        self.run(cx, reply, move |on, caller| on.fs.readlink(caller, NodeId(node)));
    }

    fn symlink(&self, cx: &RequestContext, parent: u64, name: &[u8], target: &[u8], reply: Reply<Entry>) {
        let (name, target): (Box<[u8]>, Box<[u8]>) = (name.into(), target.into());
        self.run(cx, reply, move |on, caller| {
            let parent = NodeId(parent);
            Ok(on.entry(parent, &on.fs.symlink(caller, parent, &name, &target)?))
        });
    }

    fn mknod(&self, cx: &RequestContext, parent: u64, name: &[u8], mode: NodeMode, reply: Reply<Entry>) {
        let name: Box<[u8]> = name.into();
        self.run(cx, reply, move |on, caller| {
            let parent = NodeId(parent);
            match on.fs.mknod(&masked(caller, mode), parent, &name, mode.mode, mode.rdev) {
                // The kernel does not know yet that a commit has made the name: it looks again, and opens it.
                Err(FsError::Exists) => Err(FsError::Stale(parent.0)),
                made => Ok(on.entry(parent, &made?)),
            }
        });
    }

    fn mkdir(&self, cx: &RequestContext, parent: u64, name: &[u8], mode: NodeMode, reply: Reply<Entry>) {
        let name: Box<[u8]> = name.into();
        self.run(cx, reply, move |on, caller| {
            let (caller, parent) = (masked(caller, mode), NodeId(parent));
            Ok(on.entry(parent, &on.fs.mkdir(&caller, parent, &name, mode.mode & 0o7777)?))
        });
    }

    fn unlink(&self, cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<()>) {
        let name: Box<[u8]> = name.into();
        self.run(cx, reply, move |on, caller| on.fs.unlink(caller, NodeId(parent), &name));
    }

    fn rmdir(&self, cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<()>) {
        let name: Box<[u8]> = name.into();
        self.run(cx, reply, move |on, caller| on.fs.rmdir(caller, NodeId(parent), &name));
    }

    fn rename(
        &self,
        cx: &RequestContext,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
        reply: Reply<()>,
    ) {
        let Some(mode) = RenameMode::from_flags(flags) else { return reply.error(Errno::INVAL) };
        let (name, new_name): (Box<[u8]>, Box<[u8]>) = (name.into(), new_name.into());
        self.run(cx, reply, move |on, caller| {
            let (from, to) = (NodeId(parent), NodeId(new_parent));
            on.fs.rename(caller, from, &name, to, &new_name, mode)
        });
    }

    fn link(&self, cx: &RequestContext, node: u64, new_parent: u64, new_name: &[u8], reply: Reply<Entry>) {
        let name: Box<[u8]> = new_name.into();
        self.run(cx, reply, move |on, caller| {
            let parent = NodeId(new_parent);
            Ok(on.entry(parent, &on.fs.link(caller, NodeId(node), parent, &name)?))
        });
    }

    fn open(&self, _cx: &RequestContext, _node: u64, _args: OpenArgs, reply: Reply<Opened>) {
        reply.ok(OPENED);
    }

    fn opendir(&self, _cx: &RequestContext, _node: u64, _args: OpenArgs, reply: Reply<Opened>) {
        reply.ok(Opened::default());
    }

    fn create(
        &self,
        cx: &RequestContext,
        parent: u64,
        name: &[u8],
        mode: NodeMode,
        args: OpenArgs,
        reply: Reply<Created>,
    ) {
        let name: Box<[u8]> = name.into();
        let exclusive = args.flags & O_EXCL != 0;
        self.run(cx, reply, move |on, caller| {
            let (caller, mode, parent) = (masked(caller, mode), mode.mode & 0o7777, NodeId(parent));
            let (entry, _) = on.fs.create(&caller, parent, &name, mode, exclusive)?;
            Ok(Created { entry: on.entry(parent, &entry), opened: OPENED })
        });
    }

    fn tmpfile(
        &self,
        cx: &RequestContext,
        parent: u64,
        mode: NodeMode,
        args: OpenArgs,
        reply: Reply<Created>,
    ) {
        let linkable = args.flags & O_EXCL == 0;
        self.run(cx, reply, move |on, caller| {
            let (caller, parent) = (masked(caller, mode), NodeId(parent));
            let entry = on.fs.tmpfile(&caller, parent, mode.mode & 0o7777, linkable)?;
            Ok(Created { entry: on.entry(parent, &entry), opened: OPENED })
        });
    }

    fn read(&self, cx: &RequestContext, node: u64, args: ReadArgs, reply: Reply<Data>) {
        let on = &self.shared;
        if args.is_cached {
            on.cached.note(node);
        }
        if on.writers.read(node, (args.flags & O_ACCMODE != O_RDONLY).then_some(cx.pid)) {
            return self.read_after_commit(cx, node, args, reply);
        }
        let size = args.size as usize;
        let _held = kvfs_fs::hold_state(&on.fs);
        let mut buffer = on.buffers.take();
        // A short answer means the end of the file, so a READ larger than the buffers gets one of its own.
        let outcome = match buffer.as_mut().get_mut(..size) {
            Some(space) => on.fs.read(&reader(&caller(cx), args.flags), NodeId(node), args.offset, space),
            None => return self.read_into_own(cx, node, args, reply),
        };
        match outcome {
            Ok(len) => {
                reply.slice(&buffer.as_mut()[..len.min(size)]);
            }
            Err(FsError::Parked(_)) => self.read_into_own(cx, node, args, reply),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(&self, cx: &RequestContext, node: u64, args: WriteArgs, data: Bytes, reply: Reply<Written>) {
        let flags = WriteFlags {
            append: if args.flags & O_APPEND != 0 && !args.cache { Append::KnownEnd } else { Append::No },
            kill_suidgid: args.kill_suidgid,
            is_writeback: args.cache,
            keeps_times: args.cache && self.shared.config.writeback,
        };
        // The kernel bounds its dirty pages, and loses what is refused of them.
        let bytes_held = if args.cache { 0 } else { data.len() };
        let nature = Nature { writes: Some(node), is_writeback: args.cache, bytes_held };
        let is_direct = args.flags & O_DIRECT != 0 && !args.cache;
        if !is_direct {
            self.shared.cached.note(node);
        }
        self.run_as(nature, cx, reply.map(), move |on, caller| {
            let (old, place, data) = (&on.writers.old, (NodeId(node), args.offset), data.clone());
            let written = if args.cache {
                old.write_pages(&on.fs, caller, place, data, flags)?
            } else {
                on.fs.write(caller, place.0, place.1, data, flags)?
            };
            if written.offset != args.offset {
                on.forget_pages(node);
            }
            let (offset, len) = (written.offset as i64, written.bytes as i64);
            let stale = (is_direct && len > 0 && on.cached.has(node)).then_some(Notification::InvalInode {
                node,
                offset,
                len,
            });
            Ok(Changed { answer: Written(written.bytes as u32), stale })
        });
    }

    fn flush(&self, _cx: &RequestContext, _node: u64, _fh: u64, _lock_owner: u64, reply: Reply<()>) {
        reply.ok(());
    }

    fn fsync(&self, _cx: &RequestContext, node: u64, _fh: u64, _datasync: bool, reply: Reply<()>) {
        let on = &self.shared;
        self.sync(on.fs.sync_target(NodeId(node)), reply);
    }

    fn fsyncdir(&self, cx: &RequestContext, node: u64, fh: u64, datasync: bool, reply: Reply<()>) {
        self.fsync(cx, node, fh, datasync, reply);
    }

    fn syncfs(&self, _cx: &RequestContext, reply: Reply<()>) {
        let on = &self.shared;
        self.sync(on.fs.sync_target_all(), reply);
    }

    fn readdir(&self, cx: &RequestContext, node: u64, args: ReaddirArgs, reply: Reply<DirectoryBuffer>) {
        self.shared.names_cached.note(node);
        self.run(cx, reply.map(), move |on, caller| on.list(&reader(caller, args.flags), NodeId(node), args));
    }

    fn statfs(&self, _cx: &RequestContext, node: u64, reply: Reply<Statfs>) {
        let _held = kvfs_fs::hold_state(&self.shared.fs);
        reply.ok(convert::statfs(&self.shared.fs.statfs_at(NodeId(node))));
    }

    fn setxattr(
        &self,
        cx: &RequestContext,
        node: u64,
        name: &[u8],
        value: &[u8],
        how: SetxattrArgs,
        reply: Reply<()>,
    ) {
        if !self.shared.config.xattrs {
            return reply.error(Errno::NOSYS);
        }
        if name == PROJECT_ATTRIBUTE && !may_change_projects(cx) {
            return reply.error(Errno::PERM);
        }
        let Some(mode) = XattrMode::from_flags(how.flags) else { return reply.error(Errno::INVAL) };
        let (name, value): (Box<[u8]>, Box<[u8]>) = (name.into(), value.into());
        let nature = Nature { bytes_held: value.len(), ..Nature::default() };
        self.run_as(nature, cx, reply, move |on, caller| match AclKind::by_name(&name) {
            Some(kind) => {
                let value = on.meant_list(caller, node, kind, &value)?;
                Ok(on.fs.set_acl(caller, NodeId(node), kind, &value, how.clears_setgid)?)
            }
            None => Ok(on.fs.setxattr(caller, NodeId(node), &name, &value, mode)?),
        });
    }

    fn getxattr(&self, cx: &RequestContext, node: u64, name: &[u8], size: u32, reply: Reply<Xattr>) {
        if !self.shared.config.xattrs {
            return reply.error(Errno::NOSYS);
        }
        let name: Box<[u8]> = name.into();
        self.run_as(Nature::default(), cx, reply, move |on, caller| {
            let value = on.fs.getxattr(caller, NodeId(node), &name)?;
            match on.config.only_ids.filter(|_| AclKind::by_name(&name).is_some()) {
                Some((uid, gid)) => xattr(AclKind::known_to(&value, uid, gid)?, size),
                None => xattr(value, size),
            }
        });
    }

    fn listxattr(&self, cx: &RequestContext, node: u64, size: u32, reply: Reply<Xattr>) {
        if !self.shared.config.xattrs {
            return reply.error(Errno::NOSYS);
        }
        self.run_as(Nature::default(), cx, reply, move |on, caller| {
            xattr(on.fs.listxattr(caller, NodeId(node))?.into(), size)
        });
    }

    fn removexattr(&self, cx: &RequestContext, node: u64, name: &[u8], reply: Reply<()>) {
        if !self.shared.config.xattrs {
            return reply.error(Errno::NOSYS);
        }
        if name == PROJECT_ATTRIBUTE && !may_change_projects(cx) {
            return reply.error(Errno::PERM);
        }
        let name: Box<[u8]> = name.into();
        self.run(cx, reply, move |on, caller| on.fs.removexattr(caller, NodeId(node), &name));
    }

    fn fallocate(&self, cx: &RequestContext, node: u64, args: FallocateArgs, reply: Reply<()>) {
        let Some(mode) = FallocateMode::from_flags(args.mode) else { return reply.error(Errno::OPNOTSUPP) };
        self.run(cx, reply, move |on, caller| {
            on.fs.fallocate(caller, NodeId(node), args.offset, args.length, mode)
        });
    }

    fn lseek(
        &self,
        cx: &RequestContext,
        node: u64,
        _fh: u64,
        offset: u64,
        whence: u32,
        reply: Reply<Offset>,
    ) {
        if self.shared.config.writeback {
            // The kernel asks without writing its dirty pages: what looks like a hole need not be one.
            return reply.error(Errno::NOSYS);
        }
        let kind = match convert::seek_kind(whence) {
            Ok(kind) => kind,
            Err(errno) => return reply.error(errno),
        };
        self.seek(cx, Seek { node: NodeId(node), offset, kind }, 0..0, reply);
    }

    fn copy_file_range(&self, cx: &RequestContext, node: u64, args: CopyArgs, reply: Reply<Copied>) {
        if args.flags != 0 {
            return reply.error(Errno::INVAL);
        }
        let len = args.len.min(COPY_BYTES_MAX);
        self.run(cx, reply, move |on, caller| {
            let (from, to) = (NodeId(node), NodeId(args.node_out));
            let copied = on.fs.copy_file_range(caller, from, args.offset_in, to, args.offset_out, len)?;
            Ok(Copied(copied.bytes))
        });
    }
}
