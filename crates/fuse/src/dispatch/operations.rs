//! What a file system implements.

use bytes::Bytes;
use rustix::io::Errno;

use super::args::{
    AttributeChange, CopyArgs, FallocateArgs, IoctlArgs, LockArgs, NodeMode, OpenArgs, ReadArgs, ReaddirArgs,
    ReleaseArgs, RequestContext, SetxattrArgs, WriteArgs,
};
use super::payload::{
    Attributes, Copied, Created, Data, DeviceBlock, Entry, ExtendedAttributes, Ioctl, Lock, Offset, Opened,
    PollEvents, Statfs, Written, Xattr,
};
use super::{DirectoryBuffer, Reply, SessionRecorder};
use crate::session::Negotiated;

/// One method per request. What isn't implemented answers ENOSYS, which makes the kernel do without and, for
/// most requests, never ask again.
///
/// Methods must not block: they answer, or keep the reply and return. Names are single path components
/// without NUL; a method that answers later must copy what is borrowed.
#[expect(unused_variables, reason = "defaults ignore their arguments")]
pub trait Operations: Send + Sync + 'static {
    /// Where the requests of the session are reported; asked once, first of all. `None`: nowhere.
    fn recorder(&self) -> Option<SessionRecorder> {
        None
    }

    /// The connection is negotiated; requests come next.
    fn init(&self, negotiated: &Negotiated) {}

    /// The connection has ended: the kernel knows no node and no handle any more.
    fn destroy(&self) {}

    /// Finds `name` in `parent`. An answered node is one more lookup that the kernel will forget.
    fn lookup(&self, cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<Entry>) {
        reply.error(Errno::NOSYS);
    }

    /// The kernel drops `lookups` references to `node`.
    fn forget(&self, node: u64, lookups: u64) {}

    /// Attributes of `node`.
    fn getattr(&self, cx: &RequestContext, node: u64, fh: Option<u64>, reply: Reply<Attributes>) {
        reply.error(Errno::NOSYS);
    }

    /// Attributes with birth time; `mask` tells which are wanted (`STATX_*`).
    fn statx(
        &self,
        cx: &RequestContext,
        node: u64,
        fh: Option<u64>,
        mask: u32,
        reply: Reply<ExtendedAttributes>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Changes attributes.
    fn setattr(&self, cx: &RequestContext, node: u64, change: &AttributeChange, reply: Reply<Attributes>) {
        reply.error(Errno::NOSYS);
    }

    /// Target of a symbolic link.
    fn readlink(&self, cx: &RequestContext, node: u64, reply: Reply<Bytes>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a symbolic link to `target`.
    fn symlink(&self, cx: &RequestContext, parent: u64, name: &[u8], target: &[u8], reply: Reply<Entry>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file, device, pipe or socket.
    fn mknod(&self, cx: &RequestContext, parent: u64, name: &[u8], mode: NodeMode, reply: Reply<Entry>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a directory.
    fn mkdir(&self, cx: &RequestContext, parent: u64, name: &[u8], mode: NodeMode, reply: Reply<Entry>) {
        reply.error(Errno::NOSYS);
    }

    /// Removes a name of something other than a directory.
    fn unlink(&self, cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an empty directory.
    fn rmdir(&self, cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Moves a name; `flags` as in renameat2(2).
    #[expect(clippy::too_many_arguments, reason = "two names in two directories")]
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
        reply.error(Errno::NOSYS);
    }

    /// Gives `node` another name.
    fn link(&self, cx: &RequestContext, node: u64, new_parent: u64, new_name: &[u8], reply: Reply<Entry>) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a file.
    fn open(&self, cx: &RequestContext, node: u64, args: OpenArgs, reply: Reply<Opened>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes and opens a file.
    fn create(
        &self,
        cx: &RequestContext,
        parent: u64,
        name: &[u8],
        mode: NodeMode,
        args: OpenArgs,
        reply: Reply<Created>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Makes and opens a file without a name (`O_TMPFILE`).
    fn tmpfile(
        &self,
        cx: &RequestContext,
        parent: u64,
        mode: NodeMode,
        args: OpenArgs,
        reply: Reply<Created>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Reads; less than asked for means the end of the file.
    fn read(&self, cx: &RequestContext, node: u64, args: ReadArgs, reply: Reply<Data>) {
        reply.error(Errno::NOSYS);
    }

    /// Writes `data`, which begins at a page boundary in memory when it is large.
    fn write(&self, cx: &RequestContext, node: u64, args: WriteArgs, data: Bytes, reply: Reply<Written>) {
        reply.error(Errno::NOSYS);
    }

    /// A descriptor was closed.
    fn flush(&self, cx: &RequestContext, node: u64, fh: u64, lock_owner: u64, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// The last descriptor of an open file was closed.
    fn release(&self, cx: &RequestContext, node: u64, args: ReleaseArgs, reply: Reply<()>) {
        reply.ok(());
    }

    /// Makes a file durable; `datasync`: only what reading the data back needs.
    fn fsync(&self, cx: &RequestContext, node: u64, fh: u64, datasync: bool, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a directory.
    fn opendir(&self, cx: &RequestContext, node: u64, args: OpenArgs, reply: Reply<Opened>) {
        reply.error(Errno::NOSYS);
    }

    /// Lists a directory from an offset on.
    fn readdir(&self, cx: &RequestContext, node: u64, args: ReaddirArgs, reply: Reply<DirectoryBuffer>) {
        reply.error(Errno::NOSYS);
    }

    /// The last descriptor of an open directory was closed.
    fn releasedir(&self, cx: &RequestContext, node: u64, args: ReleaseArgs, reply: Reply<()>) {
        reply.ok(());
    }

    /// Makes a directory durable.
    fn fsyncdir(&self, cx: &RequestContext, node: u64, fh: u64, datasync: bool, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes the whole file system durable (the kernel asks servers of virtual machines only).
    fn syncfs(&self, cx: &RequestContext, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Capacity and use.
    fn statfs(&self, cx: &RequestContext, node: u64, reply: Reply<Statfs>) {
        reply.error(Errno::NOSYS);
    }

    /// Sets an extended attribute.
    fn setxattr(
        &self,
        cx: &RequestContext,
        node: u64,
        name: &[u8],
        value: &[u8],
        how: SetxattrArgs,
        reply: Reply<()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Reads an extended attribute: its size when `size` is 0, else up to `size` bytes (longer: ERANGE).
    fn getxattr(&self, cx: &RequestContext, node: u64, name: &[u8], size: u32, reply: Reply<Xattr>) {
        reply.error(Errno::NOSYS);
    }

    /// Names of the extended attributes; `size` as in [`Operations::getxattr`].
    fn listxattr(&self, cx: &RequestContext, node: u64, size: u32, reply: Reply<Xattr>) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an extended attribute.
    fn removexattr(&self, cx: &RequestContext, node: u64, name: &[u8], reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Checks permissions (not asked under `default_permissions`).
    fn access(&self, cx: &RequestContext, node: u64, mask: u32, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// The lock that stands in the way (only when lock requests are negotiated).
    fn getlk(&self, cx: &RequestContext, node: u64, args: LockArgs, reply: Reply<Lock>) {
        reply.error(Errno::NOSYS);
    }

    /// Takes or gives back a lock (only when lock requests are negotiated).
    fn setlk(&self, cx: &RequestContext, node: u64, args: LockArgs, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Device block of a file's block (only for file systems on a block device).
    fn bmap(&self, cx: &RequestContext, node: u64, block: u64, block_bytes: u32, reply: Reply<DeviceBlock>) {
        reply.error(Errno::NOSYS);
    }

    /// An ioctl; `data` is the argument's contents.
    fn ioctl(&self, cx: &RequestContext, node: u64, args: IoctlArgs, data: &[u8], reply: Reply<Ioctl>) {
        reply.error(Errno::NOTTY);
    }

    /// Which events are ready; `wakeup`: a handle for [`crate::Notification::PollWakeup`], if wanted.
    fn poll(
        &self,
        cx: &RequestContext,
        node: u64,
        fh: u64,
        events: u32,
        wakeup: Option<u64>,
        reply: Reply<PollEvents>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Allocates or frees space.
    fn fallocate(&self, cx: &RequestContext, node: u64, args: FallocateArgs, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Next data or hole (`SEEK_DATA`, `SEEK_HOLE`) at or behind `offset`.
    fn lseek(&self, cx: &RequestContext, node: u64, fh: u64, offset: u64, whence: u32, reply: Reply<Offset>) {
        reply.error(Errno::NOSYS);
    }

    /// Copies between files.
    fn copy_file_range(&self, cx: &RequestContext, node: u64, args: CopyArgs, reply: Reply<Copied>) {
        reply.error(Errno::NOSYS);
    }

    /// Pages that the kernel gives to a [`crate::Notification::Retrieve`] with this `unique`.
    fn retrieved(&self, unique: u64, node: u64, offset: u64, data: &[u8]) {}
}
