//! One request at a time: decoded, passed on, and answered when it is bad.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;

use super::args::{
    AttributeChange, CopyArgs, FallocateArgs, IoctlArgs, LockArgs, NodeMode, OpenArgs, ReadArgs, ReaddirArgs,
    ReleaseArgs, RequestContext, SetxattrArgs, WriteArgs,
};
use super::decode::{Decoder, Malformed, split};
use super::operations::Operations;
use super::payload::Payload;
use super::reply::{Channel, Reply, send_parts};
use crate::abi::{self, Opcode, flags};
use crate::transport::{Message, RequestBuffer};

/// Requests that are answered with ENOSYS so that the kernel does without them from then on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one per request")]
pub(crate) struct ZeroMessage {
    pub(crate) open: bool,
    pub(crate) opendir: bool,
    pub(crate) create: bool,
    pub(crate) flush: bool,
}

/// What the kernel calls the root of every mount.
pub(crate) const ROOT_NODEID: u64 = 1;

/// Passes requests to the file system.
pub(crate) struct Router {
    pub(crate) operations: Arc<dyn Operations>,
    /// What the operations call the root, for which the kernel has a number of its own.
    pub(crate) root: u64,
    pub(crate) zero_message: ZeroMessage,
    /// Whether SETXATTR comes with its extension.
    pub(crate) setxattr_ext: bool,
    /// A READ or READDIR that asks for more is refused: memory is taken for it before anything is read.
    pub(crate) read_bytes_max: u32,
}

/// What the worker has to do itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    /// The caller of this request was interrupted.
    Interrupt(u64),
    /// The kernel says goodbye; answered.
    Destroy,
}

struct Request<'a> {
    cx: &'a RequestContext,
    opcode: Opcode,
    node: u64,
    args: Decoder<'a>,
    channel: &'a Arc<Channel>,
}

impl Request<'_> {
    fn reply<T: Payload>(&self) -> Reply<T> {
        Reply::new(self.channel, self.channel.arrive(self.cx, self.opcode, self.node))
    }

    /// As [`Self::reply`], of a request that is about an entry of its node.
    fn reply_about<T: Payload>(&self, name: &[u8]) -> Reply<T> {
        Reply::new(self.channel, self.channel.arrive(self.cx, self.opcode, self.node).about(name))
    }
}

impl Router {
    /// What the operations call a node of the kernel's.
    fn node(&self, nodeid: u64) -> u64 {
        if nodeid == ROOT_NODEID { self.root } else { nodeid }
    }

    /// Handles one request; gives the buffer back unless the request took it.
    pub(crate) fn route(
        &self,
        channel: &Arc<Channel>,
        message: Message,
    ) -> (Option<RequestBuffer>, Option<Special>) {
        let (header, cx, args_bytes) = match split(message.bytes()) {
            Ok((header, args, groups)) => {
                let cx = RequestContext {
                    unique: header.unique,
                    uid: header.uid,
                    gid: header.gid,
                    pid: header.pid,
                    groups,
                };
                (header, cx, args.len())
            }
            Err(error) => {
                refuse_unreadable(channel, message.bytes(), error);
                return (Some(message.into_buffer()), None);
            }
        };
        let Some(opcode) = Opcode::from_number(header.opcode) else {
            tracing::debug!(opcode = header.opcode, "unknown request");
            refuse(channel, header.unique, Errno::NOSYS);
            return (Some(message.into_buffer()), None);
        };
        tracing::trace!(unique = header.unique, ?opcode, node = header.nodeid, pid = header.pid, "request");
        if opcode == Opcode::Write {
            return (self.write(channel, &cx, self.node(header.nodeid), message, args_bytes), None);
        }
        let start = size_of::<abi::InHeader>();
        let args = Decoder::new(&message.bytes()[start..start + args_bytes]);
        let request = Request { cx: &cx, opcode, node: self.node(header.nodeid), args, channel };
        let special = Self::guarded(channel, &cx, opcode, || self.call(request)).flatten();
        (Some(message.into_buffer()), special)
    }

    /// Runs a handler; a panic or a malformed request is answered with an error. (After a panic the reply
    /// that the handler held has answered already.)
    fn guarded<R>(
        channel: &Arc<Channel>,
        cx: &RequestContext,
        opcode: Opcode,
        call: impl FnOnce() -> Result<R, Malformed>,
    ) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(error)) => {
                tracing::error!(unique = cx.unique, ?opcode, %error, "refused a request");
                if !matches!(
                    opcode,
                    Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply
                ) {
                    Reply::<()>::new(channel, channel.arrive(cx, opcode, 0)).error(Errno::INVAL);
                }
            }
            Err(panic) => {
                let what = panic
                    .downcast_ref::<&str>()
                    .map(ToString::to_string)
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_default();
                tracing::error!(unique = cx.unique, ?opcode, what, "a handler panicked");
            }
        }
        None
    }

    fn write(
        &self,
        channel: &Arc<Channel>,
        cx: &RequestContext,
        node: u64,
        message: Message,
        args_bytes: usize,
    ) -> Option<RequestBuffer> {
        let head = size_of::<abi::InHeader>();
        let mut args = Decoder::new(&message.bytes()[head..head + args_bytes]);
        let wire = match args.take::<abi::WriteIn>() {
            Ok(wire) if wire.size as usize == args.rest().len() => wire,
            _ => {
                tracing::error!(unique = cx.unique, "refused a WRITE whose data is cut off");
                refuse(channel, cx.unique, Errno::INVAL);
                return Some(message.into_buffer());
            }
        };
        let start = head + size_of::<abi::WriteIn>();
        let (data, buffer) = message.into_data(start, start + wire.size as usize);
        let args = WriteArgs {
            fh: wire.fh,
            offset: wire.offset,
            flags: wire.flags,
            cache: wire.write_flags & flags::WRITE_CACHE != 0,
            kill_suidgid: wire.write_flags & flags::WRITE_KILL_SUIDGID != 0,
        };
        let arrival = channel.arrive(cx, Opcode::Write, node).with_bytes(wire.size.into());
        Self::guarded(channel, cx, Opcode::Write, || {
            self.operations.write(cx, node, args, data, Reply::new(channel, arrival));
            Ok(())
        });
        buffer
    }

    fn call(&self, request: Request<'_>) -> Result<Option<Special>, Malformed> {
        use Opcode as O;
        match request.opcode {
            O::Forget | O::BatchForget => self.forget(request).map(|()| None),
            O::Interrupt => {
                let mut request = request;
                Ok(Some(Special::Interrupt(request.args.take::<abi::InterruptIn>()?.unique)))
            }
            O::Destroy => {
                request.reply::<()>().ok(());
                Ok(Some(Special::Destroy))
            }
            O::Lookup
            | O::Symlink
            | O::Mknod
            | O::Mkdir
            | O::Unlink
            | O::Rmdir
            | O::Rename
            | O::Rename2
            | O::Link => self.namespace(request).map(|()| None),
            O::Open | O::Create | O::Tmpfile | O::Release | O::Flush | O::Opendir | O::Releasedir => {
                self.handles(request).map(|()| None)
            }
            O::Getattr
            | O::Statx
            | O::Setattr
            | O::Readlink
            | O::Statfs
            | O::Access
            | O::Setxattr
            | O::Getxattr
            | O::Listxattr
            | O::Removexattr => self.attributes(request).map(|()| None),
            _ => self.contents(request).map(|()| None),
        }
    }

    fn forget(&self, mut request: Request<'_>) -> Result<(), Malformed> {
        if request.opcode == Opcode::Forget {
            let lookups = request.args.take::<abi::ForgetIn>()?.nlookup;
            self.operations.forget(request.node, lookups);
            return Ok(());
        }
        let count = request.args.take::<abi::BatchForgetIn>()?.count;
        for _ in 0..count {
            let one = request.args.take::<abi::ForgetOne>()?;
            self.operations.forget(self.node(one.nodeid), one.nlookup);
        }
        Ok(())
    }

    fn namespace(&self, mut request: Request<'_>) -> Result<(), Malformed> {
        let ops = &*self.operations;
        let node = request.node;
        let args = &mut request.args;
        match request.opcode {
            Opcode::Lookup => {
                let name = args.name()?;
                ops.lookup(request.cx, node, name, request.reply_about(name));
            }
            Opcode::Symlink => {
                let (name, target) = (args.name()?, args.string()?);
                ops.symlink(request.cx, node, name, target, request.reply_about(name));
            }
            Opcode::Mknod => {
                let wire = args.take::<abi::MknodIn>()?;
                let name = args.name()?;
                let mode = NodeMode { mode: wire.mode, rdev: wire.rdev, umask: wire.umask };
                ops.mknod(request.cx, node, name, mode, request.reply_about(name));
            }
            Opcode::Mkdir => {
                let wire = args.take::<abi::MkdirIn>()?;
                let name = args.name()?;
                let mode = NodeMode { mode: wire.mode, rdev: 0, umask: wire.umask };
                ops.mkdir(request.cx, node, name, mode, request.reply_about(name));
            }
            Opcode::Unlink => {
                let name = args.name()?;
                ops.unlink(request.cx, node, name, request.reply_about(name));
            }
            Opcode::Rmdir => {
                let name = args.name()?;
                ops.rmdir(request.cx, node, name, request.reply_about(name));
            }
            Opcode::Link => {
                let old = self.node(args.take::<abi::LinkIn>()?.oldnodeid);
                let name = args.name()?;
                ops.link(request.cx, old, node, name, request.reply_about(name));
            }
            _ => {
                let (new_parent, bits) = if request.opcode == Opcode::Rename2 {
                    let wire = args.take::<abi::Rename2In>()?;
                    (wire.newdir, wire.flags)
                } else {
                    (args.take::<abi::RenameIn>()?.newdir, 0)
                };
                let new_parent = self.node(new_parent);
                let (name, new_name) = (args.name()?, args.name()?);
                ops.rename(request.cx, node, name, new_parent, new_name, bits, request.reply_about(name));
            }
        }
        Ok(())
    }

    fn handles(&self, mut request: Request<'_>) -> Result<(), Malformed> {
        let ops = &*self.operations;
        let zero = match request.opcode {
            Opcode::Open => self.zero_message.open,
            Opcode::Opendir => self.zero_message.opendir,
            Opcode::Create => self.zero_message.create,
            Opcode::Flush => self.zero_message.flush,
            _ => false,
        };
        if zero {
            request.reply::<()>().error(Errno::NOSYS);
            return Ok(());
        }
        let node = request.node;
        match request.opcode {
            Opcode::Open => {
                let args = open_args(request.args.take()?);
                ops.open(request.cx, node, args, request.reply());
            }
            Opcode::Opendir => {
                let args = open_args(request.args.take()?);
                ops.opendir(request.cx, node, args, request.reply());
            }
            Opcode::Create | Opcode::Tmpfile => {
                let wire = request.args.take::<abi::CreateIn>()?;
                let mode = NodeMode { mode: wire.mode, rdev: 0, umask: wire.umask };
                let args = open_args(abi::OpenIn { flags: wire.flags, open_flags: wire.open_flags });
                if request.opcode == Opcode::Tmpfile {
                    ops.tmpfile(request.cx, node, mode, args, request.reply());
                } else {
                    let name = request.args.name()?;
                    ops.create(request.cx, node, name, mode, args, request.reply_about(name));
                }
            }
            Opcode::Flush => {
                let wire = request.args.take::<abi::FlushIn>()?;
                ops.flush(request.cx, node, wire.fh, wire.lock_owner, request.reply());
            }
            _ => {
                let wire = request.args.take::<abi::ReleaseIn>()?;
                let args = ReleaseArgs {
                    fh: wire.fh,
                    flags: wire.flags,
                    lock_owner: wire.lock_owner,
                    flock_unlock: wire.release_flags & flags::RELEASE_FLOCK_UNLOCK != 0,
                };
                if request.opcode == Opcode::Release {
                    ops.release(request.cx, node, args, request.reply());
                } else {
                    ops.releasedir(request.cx, node, args, request.reply());
                }
            }
        }
        Ok(())
    }

    fn attributes(&self, mut request: Request<'_>) -> Result<(), Malformed> {
        let ops = &*self.operations;
        let node = request.node;
        let args = &mut request.args;
        match request.opcode {
            Opcode::Getattr => {
                let wire = args.take::<abi::GetattrIn>()?;
                let fh = (wire.getattr_flags & flags::GETATTR_FH != 0).then_some(wire.fh);
                ops.getattr(request.cx, node, fh, request.reply());
            }
            Opcode::Statx => {
                let wire = args.take::<abi::StatxIn>()?;
                let fh = (wire.getattr_flags & flags::GETATTR_FH != 0).then_some(wire.fh);
                ops.statx(request.cx, node, fh, wire.sx_mask, request.reply());
            }
            Opcode::Setattr => {
                let change = AttributeChange::from(&args.take::<abi::SetattrIn>()?);
                ops.setattr(request.cx, node, &change, request.reply());
            }
            Opcode::Readlink => ops.readlink(request.cx, node, request.reply()),
            Opcode::Statfs => ops.statfs(request.cx, node, request.reply()),
            Opcode::Access => {
                let mask = args.take::<abi::AccessIn>()?.mask;
                ops.access(request.cx, node, mask, request.reply());
            }
            Opcode::Setxattr => {
                let wire = args.take::<abi::SetxattrInCompat>()?;
                let more =
                    if self.setxattr_ext { args.take::<abi::SetxattrExt>()?.setxattr_flags } else { 0 };
                let how = SetxattrArgs {
                    flags: wire.flags,
                    clears_setgid: more & flags::SETXATTR_ACL_KILL_SGID != 0,
                };
                let name = args.name()?;
                let value = args.bytes(wire.size as usize)?;
                ops.setxattr(request.cx, node, name, value, how, request.reply());
            }
            Opcode::Getxattr => {
                let size = args.take::<abi::GetxattrIn>()?.size;
                let name = args.name()?;
                ops.getxattr(request.cx, node, name, size, request.reply());
            }
            Opcode::Listxattr => {
                let size = args.take::<abi::GetxattrIn>()?.size;
                ops.listxattr(request.cx, node, size, request.reply());
            }
            _ => {
                let name = args.name()?;
                ops.removexattr(request.cx, node, name, request.reply());
            }
        }
        Ok(())
    }

    fn contents(&self, mut request: Request<'_>) -> Result<(), Malformed> {
        let ops = &*self.operations;
        let node = request.node;
        let args = &mut request.args;
        match request.opcode {
            Opcode::Read => {
                let wire = self.read_args(args)?;
                let is_cached = wire.read_flags & flags::READ_LOCKOWNER == 0;
                let (fh, offset, size, flags) = (wire.fh, wire.offset, wire.size, wire.flags);
                let args = ReadArgs { fh, offset, size, flags, is_cached };
                ops.read(request.cx, node, args, request.reply());
            }
            Opcode::Readdir | Opcode::Readdirplus => {
                let wire = self.read_args(args)?;
                let plus = request.opcode == Opcode::Readdirplus;
                let (fh, offset, size) = (wire.fh, wire.offset, wire.size);
                let args = ReaddirArgs { fh, offset, size, flags: wire.flags, plus };
                ops.readdir(request.cx, node, args, request.reply());
            }
            Opcode::Fsync | Opcode::Fsyncdir => {
                let wire = args.take::<abi::FsyncIn>()?;
                let datasync = wire.fsync_flags & flags::FSYNC_FDATASYNC != 0;
                if request.opcode == Opcode::Fsync {
                    ops.fsync(request.cx, node, wire.fh, datasync, request.reply());
                } else {
                    ops.fsyncdir(request.cx, node, wire.fh, datasync, request.reply());
                }
            }
            Opcode::Syncfs => ops.syncfs(request.cx, request.reply()),
            Opcode::Fallocate => {
                let wire = args.take::<abi::FallocateIn>()?;
                let args =
                    FallocateArgs { fh: wire.fh, offset: wire.offset, length: wire.length, mode: wire.mode };
                ops.fallocate(request.cx, node, args, request.reply());
            }
            Opcode::Lseek => {
                let wire = args.take::<abi::LseekIn>()?;
                ops.lseek(request.cx, node, wire.fh, wire.offset, wire.whence, request.reply());
            }
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                let args = copy_args(&args.take()?);
                ops.copy_file_range(request.cx, node, args, request.reply());
            }
            _ => return self.rare(request),
        }
        Ok(())
    }

    fn read_args(&self, args: &mut Decoder<'_>) -> Result<abi::ReadIn, Malformed> {
        let wire = args.take::<abi::ReadIn>()?;
        if wire.size <= self.read_bytes_max {
            Ok(wire)
        } else {
            Err(Malformed("asks for more than was agreed on"))
        }
    }

    fn rare(&self, mut request: Request<'_>) -> Result<(), Malformed> {
        let ops = &*self.operations;
        let node = request.node;
        let args = &mut request.args;
        match request.opcode {
            Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => {
                let wire = args.take::<abi::LkIn>()?;
                let args = LockArgs {
                    fh: wire.fh,
                    owner: wire.owner,
                    lock: wire.lk,
                    flock: wire.lk_flags & flags::LK_FLOCK != 0,
                    wait: request.opcode == Opcode::Setlkw,
                };
                if request.opcode == Opcode::Getlk {
                    ops.getlk(request.cx, node, args, request.reply());
                } else {
                    ops.setlk(request.cx, node, args, request.reply());
                }
            }
            Opcode::Bmap => {
                let wire = args.take::<abi::BmapIn>()?;
                ops.bmap(request.cx, node, wire.block, wire.blocksize, request.reply());
            }
            Opcode::Ioctl => {
                let wire = args.take::<abi::IoctlIn>()?;
                let data = args.bytes(wire.in_size as usize)?;
                let args = IoctlArgs {
                    fh: wire.fh,
                    flags: wire.flags,
                    command: wire.cmd,
                    arg: wire.arg,
                    out_size: wire.out_size,
                };
                ops.ioctl(request.cx, node, args, data, request.reply());
            }
            Opcode::Poll => {
                let wire = args.take::<abi::PollIn>()?;
                let wakeup = (wire.flags & flags::POLL_SCHEDULE_NOTIFY != 0).then_some(wire.kh);
                ops.poll(request.cx, node, wire.fh, wire.events, wakeup, request.reply());
            }
            Opcode::NotifyReply => {
                let wire = args.take::<abi::NotifyRetrieveIn>()?;
                let data = args.bytes(wire.size as usize)?;
                ops.retrieved(request.cx.unique, node, wire.offset, data);
            }
            _ => request.reply::<()>().error(Errno::NOSYS),
        }
        Ok(())
    }
}

fn open_args(wire: abi::OpenIn) -> OpenArgs {
    OpenArgs { flags: wire.flags, kill_suidgid: wire.open_flags & flags::OPEN_KILL_SUIDGID != 0 }
}

fn copy_args(wire: &abi::CopyFileRangeIn) -> CopyArgs {
    CopyArgs {
        fh_in: wire.fh_in,
        offset_in: wire.off_in,
        node_out: wire.nodeid_out,
        fh_out: wire.fh_out,
        offset_out: wire.off_out,
        len: wire.len,
        flags: wire.flags,
    }
}

/// Answers `unique` with an error.
fn refuse(channel: &Channel, unique: u64, errno: Errno) {
    if let Err(errno) = send_parts(&*channel.transport, unique, -errno.raw_os_error(), &[]) {
        tracing::error!(unique, %errno, "the kernel refused an error reply");
    }
}

/// Answers a request whose frame is broken, if its number can be made out.
fn refuse_unreadable(channel: &Channel, message: &[u8], error: Malformed) {
    tracing::error!(bytes = message.len(), %error, "refused a request");
    if let Ok(header) = Decoder::new(message).take::<abi::InHeader>() {
        refuse(channel, header.unique, Errno::IO);
    }
}
