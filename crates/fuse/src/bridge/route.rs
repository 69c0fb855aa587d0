//! Whose a request is: the mounted view's, a snapshot's, or the hidden directory's.
//!
//! What is hidden can't be changed: its name can't be taken, removed or moved (EPERM), and nothing in it
//! either (EROFS). Files of snapshots can't get a name elsewhere, as between file systems (EXDEV).

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::NodeId;
use rustix::io::Errno;

use super::flags::FlagCall;
use super::hidden::Hidden;
use super::ids::{self, Place};
use super::{Bridge, Files};
use crate::dispatch::{
    AttributeChange, Attributes, Copied, CopyArgs, Created, Data, DirectoryBuffer, Entry, ExtendedAttributes,
    FallocateArgs, Ioctl, IoctlArgs, NodeMode, Offset, OpenArgs, Opened, Operations, Payload, ReadArgs,
    ReaddirArgs, Reply, RequestContext, SessionRecorder, SetxattrArgs, Statfs, WriteArgs, Written, Xattr,
};

/// Files of some view.
enum Of<'a> {
    Mounted(&'a Files),
    Snapshot(Arc<Files>),
}

impl Deref for Of<'_> {
    type Target = Files;

    fn deref(&self) -> &Files {
        match self {
            Self::Mounted(files) => files,
            Self::Snapshot(files) => files,
        }
    }
}

/// What answers for a node.
enum At<'a> {
    /// These files, under this inode number.
    Files(Of<'a>, u64),
    Hidden(&'a Hidden),
    /// It is of a view that is closed.
    Gone,
}

impl Bridge {
    fn at(&self, node: u64) -> At<'_> {
        match (ids::place(node), &self.hidden) {
            (Place::Mounted, _) => At::Files(Of::Mounted(&self.files), node),
            (Place::Snapshot(index), Some(hidden)) => hidden
                .views()
                .get(index)
                .map_or(At::Gone, |files| At::Files(Of::Snapshot(files), ids::inode(node))),
            (Place::Hidden, Some(hidden)) => At::Hidden(hidden),
            _ => At::Gone,
        }
    }

    /// The files in which something may change; else answers why not.
    fn writable<T: Payload>(&self, node: u64, reply: Reply<T>) -> Option<(&Files, Reply<T>)> {
        if ids::place(node) == Place::Mounted {
            return Some((&self.files, reply));
        }
        reply.error(Errno::ROFS);
        None
    }

    /// As [`Self::writable`], to make `name` in the directory `parent`.
    fn free<T: Payload>(&self, parent: u64, name: &[u8], reply: Reply<T>) -> Option<(&Files, Reply<T>)> {
        if self.is_hidden(parent, name) {
            reply.error(Errno::EXIST);
            return None;
        }
        self.writable(parent, reply)
    }

    /// As [`Self::writable`], to take `name` out of the directory `parent`.
    fn movable<T: Payload>(&self, parent: u64, name: &[u8], reply: Reply<T>) -> Option<(&Files, Reply<T>)> {
        if self.is_hidden(parent, name) {
            reply.error(Errno::PERM);
            return None;
        }
        self.writable(parent, reply)
    }

    /// Whether it is the name of the hidden directory.
    fn is_hidden(&self, parent: u64, name: &[u8]) -> bool {
        parent == NodeId::ROOT.0 && self.hidden.as_ref().is_some_and(|hidden| hidden.is(name))
    }
}

impl Operations for Bridge {
    fn recorder(&self) -> Option<SessionRecorder> {
        self.files.recorder()
    }

    fn destroy(&self) {
        self.files.destroy();
    }

    fn lookup(&self, cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<Entry>) {
        match self.at(parent) {
            At::Files(of, parent) => match &self.hidden {
                Some(hidden) if self.is_hidden(parent, name) && matches!(of, Of::Mounted(_)) => {
                    hidden.enter(&of, reply);
                }
                _ => of.lookup(cx, parent, name, reply),
            },
            At::Hidden(hidden) => hidden.lookup(&self.files, cx, parent, name, reply),
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        match (ids::place(node), &self.hidden) {
            (Place::Mounted, _) => self.files.forget(node, lookups),
            (Place::Snapshot(index), Some(hidden)) => {
                hidden.views().forget(index, ids::inode(node), lookups);
            }
            (Place::Hidden, Some(hidden)) => hidden.forget(node, lookups),
            _ => {}
        }
    }

    fn getattr(&self, cx: &RequestContext, node: u64, fh: Option<u64>, reply: Reply<Attributes>) {
        match self.at(node) {
            At::Files(of, inode) => of.getattr(cx, inode, fh, reply),
            At::Hidden(hidden) => hidden.getattr(&self.files, node, reply),
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn statx(
        &self,
        cx: &RequestContext,
        node: u64,
        fh: Option<u64>,
        mask: u32,
        reply: Reply<ExtendedAttributes>,
    ) {
        match self.at(node) {
            At::Files(of, inode) => of.statx(cx, inode, fh, mask, reply),
            At::Hidden(hidden) => hidden.statx(&self.files, node, reply),
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn setattr(&self, cx: &RequestContext, node: u64, change: &AttributeChange, reply: Reply<Attributes>) {
        if let Some((files, reply)) = self.writable(node, reply) {
            files.setattr(cx, node, change, reply);
        }
    }

    fn readlink(&self, cx: &RequestContext, node: u64, reply: Reply<Bytes>) {
        match self.at(node) {
            At::Files(of, inode) => of.readlink(cx, inode, reply),
            At::Hidden(hidden) => hidden.readlink(&self.files, node, reply),
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn symlink(&self, cx: &RequestContext, parent: u64, name: &[u8], target: &[u8], reply: Reply<Entry>) {
        if let Some((files, reply)) = self.free(parent, name, reply) {
            files.symlink(cx, parent, name, target, reply);
        }
    }

    fn mknod(&self, cx: &RequestContext, parent: u64, name: &[u8], mode: NodeMode, reply: Reply<Entry>) {
        if let Some((files, reply)) = self.free(parent, name, reply) {
            files.mknod(cx, parent, name, mode, reply);
        }
    }

    fn mkdir(&self, cx: &RequestContext, parent: u64, name: &[u8], mode: NodeMode, reply: Reply<Entry>) {
        if let Some((files, reply)) = self.free(parent, name, reply) {
            files.mkdir(cx, parent, name, mode, reply);
        }
    }

    fn unlink(&self, cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<()>) {
        if let Some((files, reply)) = self.movable(parent, name, reply) {
            files.unlink(cx, parent, name, reply);
        }
    }

    fn rmdir(&self, cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<()>) {
        if let Some((files, reply)) = self.movable(parent, name, reply) {
            files.rmdir(cx, parent, name, reply);
        }
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
        let Some((_, reply)) = self.movable(parent, name, reply) else { return };
        if let Some((files, reply)) = self.movable(new_parent, new_name, reply) {
            files.rename(cx, parent, name, new_parent, new_name, flags, reply);
        }
    }

    fn link(&self, cx: &RequestContext, node: u64, new_parent: u64, new_name: &[u8], reply: Reply<Entry>) {
        let Some((files, reply)) = self.free(new_parent, new_name, reply) else { return };
        if ids::place(node) == Place::Mounted {
            files.link(cx, node, new_parent, new_name, reply);
        } else {
            reply.error(Errno::XDEV);
        }
    }

    fn open(&self, cx: &RequestContext, node: u64, args: OpenArgs, reply: Reply<Opened>) {
        self.files.open(cx, node, args, reply);
    }

    fn opendir(&self, cx: &RequestContext, node: u64, args: OpenArgs, reply: Reply<Opened>) {
        self.files.opendir(cx, node, args, reply);
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
        if let Some((files, reply)) = self.free(parent, name, reply) {
            files.create(cx, parent, name, mode, args, reply);
        }
    }

    fn tmpfile(
        &self,
        cx: &RequestContext,
        parent: u64,
        mode: NodeMode,
        args: OpenArgs,
        reply: Reply<Created>,
    ) {
        if let Some((files, reply)) = self.writable(parent, reply) {
            files.tmpfile(cx, parent, mode, args, reply);
        }
    }

    fn read(&self, cx: &RequestContext, node: u64, args: ReadArgs, reply: Reply<Data>) {
        match self.at(node) {
            At::Files(of, inode) => of.read(cx, inode, args, reply),
            At::Hidden(hidden) => hidden.read(node, args, reply),
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn write(&self, cx: &RequestContext, node: u64, args: WriteArgs, data: Bytes, reply: Reply<Written>) {
        if let Some((files, reply)) = self.writable(node, reply) {
            files.write(cx, node, args, data, reply);
        }
    }

    fn flush(&self, cx: &RequestContext, node: u64, fh: u64, lock_owner: u64, reply: Reply<()>) {
        self.files.flush(cx, node, fh, lock_owner, reply);
    }

    fn fsync(&self, cx: &RequestContext, node: u64, fh: u64, datasync: bool, reply: Reply<()>) {
        if ids::place(node) == Place::Mounted {
            return self.files.fsync(cx, node, fh, datasync, reply);
        }
        // What never changes is as durable as it can be.
        reply.ok(());
    }

    fn fsyncdir(&self, cx: &RequestContext, node: u64, fh: u64, datasync: bool, reply: Reply<()>) {
        self.fsync(cx, node, fh, datasync, reply);
    }

    fn syncfs(&self, cx: &RequestContext, reply: Reply<()>) {
        self.files.syncfs(cx, reply);
    }

    fn readdir(&self, cx: &RequestContext, node: u64, args: ReaddirArgs, reply: Reply<DirectoryBuffer>) {
        match self.at(node) {
            At::Files(of, inode) => of.readdir(cx, inode, args, reply),
            At::Hidden(hidden) => hidden.readdir(cx, node, args, reply),
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn statfs(&self, cx: &RequestContext, node: u64, reply: Reply<Statfs>) {
        match self.at(node) {
            At::Files(of, inode) => of.statfs(cx, inode, reply),
            At::Hidden(_) | At::Gone => self.files.statfs(cx, NodeId::ROOT.0, reply),
        }
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
        let Some(reply) = self.announce(cx, node, name, reply) else { return };
        let Some(reply) = self.set_control(cx, node, name, value, reply) else { return };
        if let Some((files, reply)) = self.writable(node, reply) {
            files.setxattr(cx, node, name, value, how, reply);
        }
    }

    fn getxattr(&self, cx: &RequestContext, node: u64, name: &[u8], size: u32, reply: Reply<Xattr>) {
        let Some(reply) = self.get_control(cx, node, name, size, reply) else { return };
        match self.at(node) {
            At::Files(of, inode) => of.getxattr(cx, inode, name, size, reply),
            At::Hidden(_) => reply.error(Errno::NODATA),
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn listxattr(&self, cx: &RequestContext, node: u64, size: u32, reply: Reply<Xattr>) {
        match self.at(node) {
            At::Files(of, inode) => of.listxattr(cx, inode, size, reply),
            At::Hidden(_) if size == 0 => {
                reply.ok(Xattr::Size(0));
            }
            At::Hidden(_) => {
                reply.ok(Xattr::Value(Bytes::new()));
            }
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn removexattr(&self, cx: &RequestContext, node: u64, name: &[u8], reply: Reply<()>) {
        if let Some((files, reply)) = self.writable(node, reply) {
            files.removexattr(cx, node, name, reply);
        }
    }

    fn ioctl(&self, cx: &RequestContext, node: u64, args: IoctlArgs, data: &[u8], reply: Reply<Ioctl>) {
        let Some(call) = FlagCall::of(args.command) else {
            return match self.view_ioctl(cx, node, args, data, reply) {
                None => {}
                Some(reply) => self.control_ioctl(cx, node, args, data, reply),
            };
        };
        match self.at(node) {
            At::Files(of, inode) => of.inode_flags(cx, inode, call, args.out_size, data, reply),
            At::Hidden(_) => reply.error(Errno::NOTTY),
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn fallocate(&self, cx: &RequestContext, node: u64, args: FallocateArgs, reply: Reply<()>) {
        if let Some((files, reply)) = self.writable(node, reply) {
            files.fallocate(cx, node, args, reply);
        }
    }

    fn lseek(&self, cx: &RequestContext, node: u64, fh: u64, offset: u64, whence: u32, reply: Reply<Offset>) {
        match self.at(node) {
            At::Files(of, inode) => of.lseek(cx, inode, fh, offset, whence, reply),
            At::Hidden(hidden) => hidden.lseek(node, offset, whence, reply),
            At::Gone => reply.error(Errno::STALE),
        }
    }

    fn copy_file_range(&self, cx: &RequestContext, node: u64, args: CopyArgs, reply: Reply<Copied>) {
        let Some((files, reply)) = self.writable(args.node_out, reply) else { return };
        if ids::place(node) == Place::Mounted {
            files.copy_file_range(cx, node, args, reply);
        } else {
            // The kernel then reads and writes.
            reply.error(Errno::XDEV);
        }
    }
}
