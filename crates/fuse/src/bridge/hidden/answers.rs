//! Answers to the kernel about hidden nodes.

use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{Attr, FileType, NodeId, Timestamp};
use rustix::io::Errno;

use super::nodes::{HiddenNode, Nodes, What};
use super::views::Seen;
use super::{Hidden, Item};
use crate::bridge::background::Job;
use crate::bridge::errno::errno;
use crate::bridge::timeouts::Attempt;
use crate::bridge::{Failure, Files, caller, convert, ids};
use crate::dispatch::{
    Attributes, Data, DirectoryBuffer, DirectoryEntry, Entry, ExtendedAttributes, Offset, ReadArgs,
    ReaddirArgs, Reply, RequestContext,
};
use crate::transport::Delivery;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Offsets of a listing below this are those of `.` and `..`.
const OFFSETS_OF_DOTS: u64 = 3;

impl Hidden {
    /// Answers a lookup of the hidden directory itself.
    pub(in crate::bridge) fn enter(&self, main: &Files, reply: Reply<Entry>) {
        let Some(root) = self.nodes.get(Nodes::root()) else { return reply.error(Errno::STALE) };
        let entry_timeout = main.shared.config.entry_timeout;
        reply.ok(Entry { entry_timeout, ..self.entry(main, Nodes::root(), &root) });
    }

    pub(in crate::bridge) fn lookup(
        &self,
        main: &Files,
        cx: &RequestContext,
        parent: u64,
        name: &[u8],
        reply: Reply<Entry>,
    ) {
        match self.find(main, cx, parent, name) {
            Ok(Some((entry, index))) => {
                if reply.ok(entry) == Delivery::Gone {
                    match index {
                        Some(index) => self.views.forget(index, NodeId::ROOT.0, 1),
                        None => self.nodes.forget(entry.node, 1),
                    }
                }
            }
            Ok(None) => {
                reply.ok(Entry::negative(Duration::ZERO));
            }
            Err(failure) => reply.error(failure.errno()),
        }
    }

    /// The entry, whose lookup is counted, and the index of the view if it is the root of one.
    fn find(
        &self,
        main: &Files,
        cx: &RequestContext,
        parent: u64,
        name: &[u8],
    ) -> Result<Option<(Entry, Option<u16>)>, Failure> {
        let node = self.nodes.get(parent).ok_or(Failure::Plain(Errno::STALE))?;
        let What::Folder(folder) = &node.what else { return Err(Failure::Plain(Errno::NOTDIR)) };
        let (what, uid) = match folder.find(cx.uid, name)? {
            None => return Ok(None),
            Some(Item::Folder(folder)) => (What::Folder(folder), self.config.uid),
            Some(Item::File(content)) => (What::File(content), self.config.uid),
            Some(Item::Link { target, uid }) => (What::Link(target, None), uid),
            Some(Item::LinkOnDemand { target, uid, prepare }) => (What::Link(target, Some(prepare)), uid),
            Some(Item::Snapshot(item)) => {
                let seen = Seen { folder: parent, name: Bytes::copy_from_slice(name) };
                let (index, files) = self.views.enter(main, item, seen)?;
                let on = Attempt::begin(&files.shared);
                return match on.fs.lookup(&caller(cx), NodeId::ROOT, b".") {
                    Ok(root) => {
                        let entry = Entry { entry_timeout: Duration::ZERO, ..on.entry(NodeId::ROOT, &root) };
                        Ok(Some((entry, Some(index))))
                    }
                    Err(error) => {
                        self.views.forget(index, NodeId::ROOT.0, 1);
                        Err(error.into())
                    }
                };
            }
        };
        let node = HiddenNode { what, path: [&node.path, &b"/"[..], name].concat().into(), uid };
        let id = self.nodes.count(cx.uid, node.clone()).map_err(Failure::Plain)?;
        Ok(Some((self.entry(main, id, &node), None)))
    }

    /// The kernel drops `lookups` references to `node`.
    pub(in crate::bridge) fn forget(&self, node: u64, lookups: u64) {
        self.nodes.forget(node, lookups);
    }

    pub(in crate::bridge) fn getattr(&self, main: &Files, node: u64, reply: Reply<Attributes>) {
        match self.nodes.get(node) {
            Some(node) => {
                let attr = convert::attr(&self.attr(main, &node));
                reply.ok(Attributes { attr, timeout: attr_timeout(main, &node) });
            }
            None => reply.error(Errno::STALE),
        }
    }

    pub(in crate::bridge) fn statx(&self, main: &Files, node: u64, reply: Reply<ExtendedAttributes>) {
        match self.nodes.get(node) {
            Some(node) => {
                let timeout = attr_timeout(main, &node);
                let of = convert::extended(&self.attr(main, &node), &main.shared.config);
                reply.ok(ExtendedAttributes { timeout, ..of });
            }
            None => reply.error(Errno::STALE),
        }
    }

    pub(in crate::bridge) fn readlink(&self, main: &Files, node: u64, reply: Reply<Bytes>) {
        match self.nodes.get(node).map(|node| node.what) {
            Some(What::Link(target, None)) => {
                reply.ok(target);
            }
            Some(What::Link(target, Some(prepare))) => {
                let job: Job = Box::new(move || {
                    reply.result(prepare().map(|()| target).map_err(|error| errno(&error)));
                });
                // What is not taken drops the reply, which says EIO.
                drop(main.background.blocking_pool.submit(job));
            }
            Some(_) => reply.error(Errno::INVAL),
            None => reply.error(Errno::STALE),
        }
    }

    pub(in crate::bridge) fn read(&self, node: u64, args: ReadArgs, reply: Reply<Data>) {
        match self.nodes.get(node).map(|node| node.what) {
            Some(What::File(content)) => {
                let start = usize::try_from(args.offset).unwrap_or(usize::MAX).min(content.len());
                let end = start.saturating_add(args.size as usize).min(content.len());
                reply.ok(Data::Whole(content.slice(start..end)));
            }
            Some(What::Folder(_)) => reply.error(Errno::ISDIR),
            Some(What::Link(..)) => reply.error(Errno::INVAL),
            None => reply.error(Errno::STALE),
        }
    }

    pub(in crate::bridge) fn lseek(&self, node: u64, offset: u64, whence: u32, reply: Reply<Offset>) {
        let Some(node) = self.nodes.get(node) else { return reply.error(Errno::STALE) };
        let size = node.what.content().len() as u64;
        match whence {
            SEEK_DATA | SEEK_HOLE if offset >= size => reply.error(Errno::NXIO),
            SEEK_DATA => {
                reply.ok(Offset(offset));
            }
            SEEK_HOLE => {
                reply.ok(Offset(size));
            }
            _ => reply.error(Errno::INVAL),
        }
    }

    /// Lists names without attributes: to look at a file is to make it.
    pub(in crate::bridge) fn readdir(
        &self,
        cx: &RequestContext,
        node: u64,
        args: ReaddirArgs,
        reply: Reply<DirectoryBuffer>,
    ) {
        let Some(node) = self.nodes.get(node) else { return reply.error(Errno::STALE) };
        let What::Folder(folder) = &node.what else { return reply.error(Errno::NOTDIR) };
        let mut buffer = DirectoryBuffer::new(args.size as usize, args.plus);
        let dots = [(&b"."[..], 1), (b"..", 2)];
        let dots = dots.map(|(name, offset)| (name, FileType::Directory, offset, number(&node.path)));
        let names = folder.list(cx.uid);
        let named = names.iter().map(|line| {
            let path = [&node.path, &b"/"[..], &line.name].concat();
            (&line.name[..], line.kind, line.place.saturating_add(OFFSETS_OF_DOTS), number(&path))
        });
        for (name, kind, next_offset, ino) in dots.into_iter().chain(named) {
            let entry = DirectoryEntry { ino, next_offset, file_type: kind as u32, name };
            if next_offset > args.offset && !buffer.push(&entry, None) {
                break;
            }
        }
        reply.ok(buffer);
    }

    fn entry(&self, main: &Files, id: u64, node: &HiddenNode) -> Entry {
        Entry {
            node: id,
            generation: 0,
            attr: convert::attr(&self.attr(main, node)),
            entry_timeout: Duration::ZERO,
            attr_timeout: attr_timeout(main, node),
        }
    }

    /// Attributes of now: what the kernel has kept of a listing, it throws away when the time of the
    /// directory is another one than then.
    fn attr(&self, main: &Files, node: &HiddenNode) -> Attr {
        let now: Timestamp = main.shared.fs.time();
        let size = node.what.content().len() as u64;
        let mode = match node.what {
            What::Folder(_) => 0o755,
            What::File(_) => 0o444,
            What::Link(..) => 0o777,
        };
        Attr {
            inode: number(&node.path),
            kind: node.what.kind(),
            mode,
            nlink: 1,
            uid: node.uid,
            gid: self.config.gid,
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        }
    }
}

/// A file never changes, a folder may at any time.
fn attr_timeout(main: &Files, node: &HiddenNode) -> Duration {
    match node.what {
        What::Folder(_) => Duration::ZERO,
        What::File(_) | What::Link(..) => main.shared.config.attr_timeout,
    }
}

/// The inode number that users see of what is at `path`: the same at each lookup (FNV-1a).
fn number(path: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = path.iter().fold(0xcbf2_9ce4_8422_2325, step);
    ids::hidden(hash ^ hash >> 48)
}
