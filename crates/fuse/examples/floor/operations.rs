//! The requests.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kvfs_fuse::Errno;
use kvfs_fuse::abi::{Attr, Kstatfs};
use kvfs_fuse::dispatch::{
    AttributeChange, Attributes, Created, Data, DirectoryBuffer, DirectoryEntry, Entry, FallocateArgs,
    NodeMode, OpenArgs, Opened, Operations, ReadArgs, ReaddirArgs, Reply, RequestContext, Statfs, TimeChange,
    WriteArgs, Written,
};
use kvfs_fuse::transport::Delivery;
use kvfs_store::clock::{Clock, SystemClock};
use parking_lot::{Mutex, MutexGuard};

use crate::tree::{CHUNK_BYTES, Content, Directory, FIRST_POSITION, Inode, State, Table};

const FOREVER: Duration = Duration::from_hours(365 * 24);
const ROOT: u64 = 1;
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
/// Largest READ that is answered in full.
const READ_BYTES_MAX: u32 = 1 << 20;
const ZEROS: &[u8] = &[0; 65536];
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;

/// The server.
pub(crate) struct Floor {
    table: Table,
    clock: SystemClock,
    data_bytes: AtomicU64,
    /// Taken by renames, which alone lock two directories and what they lead to.
    renames: Mutex<()>,
}

impl Floor {
    pub(crate) fn new() -> Self {
        let floor = Self {
            table: Table::new(),
            clock: SystemClock::new(),
            data_bytes: AtomicU64::new(0),
            renames: Mutex::new(()),
        };
        let cx = RequestContext::default();
        let root = floor.state(&cx, ROOT, S_IFDIR | 0o755, 0, Content::Directory(Directory::default()), ROOT);
        floor.table.insert(ROOT, Arc::new(Mutex::new(root)));
        floor
    }

    fn now(&self) -> (u64, u32) {
        let now = self.clock.wall();
        (now.as_secs(), now.subsec_nanos())
    }

    fn inode(&self, node: u64) -> Result<Inode, Errno> {
        self.table.get(node).ok_or(Errno::STALE)
    }

    fn state(
        &self,
        cx: &RequestContext,
        ino: u64,
        mode: u32,
        rdev: u32,
        content: Content,
        parent: u64,
    ) -> State {
        let (secs, nanos) = self.now();
        let attr = Attr {
            ino,
            atime: secs,
            mtime: secs,
            ctime: secs,
            atimensec: nanos,
            mtimensec: nanos,
            ctimensec: nanos,
            mode,
            nlink: if mode & S_IFMT == S_IFDIR { 2 } else { 1 },
            uid: cx.uid,
            gid: cx.gid,
            rdev,
            blksize: 4096,
            ..Attr::default()
        };
        State { attr, lookups: 0, parent, content }
    }

    fn touch(&self, attr: &mut Attr) {
        (attr.mtime, attr.mtimensec) = self.now();
        (attr.ctime, attr.ctimensec) = (attr.mtime, attr.mtimensec);
    }

    fn add(
        &self,
        cx: &RequestContext,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
        content: Content,
    ) -> Result<Entry, Errno> {
        check_name(name)?;
        let directory = self.inode(parent)?;
        let mut directory = directory.lock();
        if entries(&mut directory)?.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        if directory.attr.nlink == 0 {
            return Err(Errno::NOENT);
        }
        let ino = self.table.next_number();
        let mut state = self.state(cx, ino, mode, rdev, content, parent);
        if directory.attr.mode & 0o2000 != 0 {
            state.attr.gid = directory.attr.gid;
            if mode & S_IFMT == S_IFDIR {
                state.attr.mode |= 0o2000;
            }
        }
        if let Content::Symlink(target) = &state.content {
            state.attr.size = target.len() as u64;
        }
        state.lookups = 1;
        let entry = entry(&state);
        self.table.insert(ino, Arc::new(Mutex::new(state)));
        entries(&mut directory)?.insert(name, ino, mode);
        if mode & S_IFMT == S_IFDIR {
            directory.attr.nlink += 1;
        }
        self.touch(&mut directory.attr);
        Ok(entry)
    }

    fn take_back(&self, delivery: Delivery, node: u64) {
        if delivery == Delivery::Gone {
            self.forget(node, 1);
        }
    }

    fn answer(&self, reply: Reply<Entry>, result: Result<Entry, Errno>) {
        match result {
            Ok(entry) => self.take_back(reply.ok(entry), entry.node),
            Err(errno) => reply.error(errno),
        }
    }

    /// One name of `node` is gone.
    fn drop_link(&self, node: u64) {
        let Some(inode) = self.table.get(node) else { return };
        let mut state = inode.lock();
        let links = if matches!(state.content, Content::Directory(_)) { 2 } else { 1 };
        state.attr.nlink = state.attr.nlink.saturating_sub(links);
        (state.attr.ctime, state.attr.ctimensec) = self.now();
        self.reap(node, state);
    }

    fn reap(&self, node: u64, state: MutexGuard<'_, State>) {
        if state.attr.nlink == 0 && state.lookups == 0 {
            if let Content::File(chunks) = &state.content {
                let bytes: usize = chunks.values().map(Vec::len).sum();
                self.data_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
            }
            drop(state);
            self.table.remove(node);
        }
    }

    fn remove(&self, parent: u64, name: &[u8], directory_wanted: bool) -> Result<(), Errno> {
        let directory = self.inode(parent)?;
        let mut directory = directory.lock();
        let node = entries(&mut directory)?.get(name).ok_or(Errno::NOENT)?;
        let inode = self.inode(node)?;
        {
            let mut state = inode.lock();
            match (&state.content, directory_wanted) {
                (Content::Directory(entries), true) if !entries.is_empty() => return Err(Errno::NOTEMPTY),
                (Content::Directory(_), true) => state.attr.nlink = 2,
                (Content::Directory(_), false) => return Err(Errno::ISDIR),
                (_, true) => return Err(Errno::NOTDIR),
                (_, false) => {}
            }
        }
        entries(&mut directory)?.remove(name);
        if directory_wanted {
            directory.attr.nlink -= 1;
        }
        self.touch(&mut directory.attr);
        drop(directory);
        self.drop_link(node);
        Ok(())
    }

    fn rename_entry(
        &self,
        (from, name): (u64, &[u8]),
        (to, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<Option<u64>, Errno> {
        check_name(new_name)?;
        let (first, second) = (self.inode(from.min(to))?, self.inode(from.max(to))?);
        let mut first = first.lock();
        let mut second = if from == to { None } else { Some(second.lock()) };
        let (source, target) = match &mut second {
            None => (&mut *first, None),
            Some(second) if from < to => (&mut *first, Some(&mut **second)),
            Some(second) => (&mut **second, Some(&mut *first)),
        };
        let mut pair = (source, target);
        let moved = entries(pair.0)?.get(name).ok_or(Errno::NOENT)?;
        let replaced = entries(pair.1.as_deref_mut().unwrap_or(pair.0))?.get(new_name);
        if replaced == Some(moved) && flags & RENAME_EXCHANGE == 0 {
            return Ok(None);
        }
        let moved_mode = self.inode(moved)?.lock().attr.mode;
        let moved_dir = moved_mode & S_IFMT == S_IFDIR;
        if flags & RENAME_EXCHANGE != 0 {
            let other = replaced.ok_or(Errno::NOENT)?;
            let other_inode = self.inode(other)?;
            let other_mode = other_inode.lock().attr.mode;
            entries(pair.0)?.insert(name, other, other_mode);
            entries(pair.1.as_deref_mut().unwrap_or(pair.0))?.insert(new_name, moved, moved_mode);
            let other_dir = other_mode & S_IFMT == S_IFDIR;
            if let Some(target) = pair.1.as_deref_mut() {
                relink(pair.0, other_dir, moved_dir);
                relink(target, moved_dir, other_dir);
            }
            other_inode.lock().parent = from;
        } else {
            if let Some(other) = replaced {
                if flags & RENAME_NOREPLACE != 0 {
                    return Err(Errno::EXIST);
                }
                let other = self.inode(other)?;
                let other = other.lock();
                match (&other.content, moved_dir) {
                    (Content::Directory(entries), true) if !entries.is_empty() => {
                        return Err(Errno::NOTEMPTY);
                    }
                    (Content::Directory(_), false) => return Err(Errno::ISDIR),
                    (Content::Directory(_), true) | (_, false) => {}
                    (_, true) => return Err(Errno::NOTDIR),
                }
            }
            entries(pair.0)?.remove(name);
            entries(pair.1.as_deref_mut().unwrap_or(pair.0))?.insert(new_name, moved, moved_mode);
            relink(pair.0, false, moved_dir);
            relink(pair.1.as_deref_mut().unwrap_or(pair.0), moved_dir, moved_dir && replaced.is_some());
        }
        self.touch(&mut pair.0.attr);
        if let Some(target) = pair.1 {
            self.touch(&mut target.attr);
        }
        let inode = self.inode(moved)?;
        let mut state = inode.lock();
        state.parent = to;
        (state.attr.ctime, state.attr.ctimensec) = self.now();
        Ok(if flags & RENAME_EXCHANGE == 0 { replaced } else { None })
    }

    fn resize(&self, state: &mut State, size: u64) -> Result<(), Errno> {
        let attr = &mut state.attr;
        match &mut state.content {
            Content::Directory(_) => return Err(Errno::ISDIR),
            Content::File(chunks) => {
                let before: usize = chunks.values().map(Vec::len).sum();
                let whole = size / CHUNK_BYTES as u64;
                let rest = (size % CHUNK_BYTES as u64) as usize;
                chunks.split_off(&(whole + u64::from(rest > 0)));
                if let Some(last) = chunks.get_mut(&whole) {
                    last.truncate(rest);
                }
                let after: usize = chunks.values().map(Vec::len).sum();
                self.data_bytes.fetch_sub((before - after) as u64, Ordering::Relaxed);
                attr.blocks = after.div_ceil(512) as u64;
            }
            _ => return Err(Errno::INVAL),
        }
        attr.size = size;
        self.touch(attr);
        Ok(())
    }

    fn store(&self, state: &mut State, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let Content::File(chunks) = &mut state.content else { return Err(Errno::INVAL) };
        let (mut at, mut rest, mut grown) = (offset, data, 0);
        while !rest.is_empty() {
            let start = (at % CHUNK_BYTES as u64) as usize;
            let (part, tail) = rest.split_at(rest.len().min(CHUNK_BYTES - start));
            let chunk = chunks.entry(at / CHUNK_BYTES as u64).or_default();
            let before = chunk.len();
            if start == before {
                chunk.extend_from_slice(part);
            } else {
                if before < start + part.len() {
                    chunk.resize(start + part.len(), 0);
                }
                chunk[start..start + part.len()].copy_from_slice(part);
            }
            grown += chunk.len() - before;
            at += part.len() as u64;
            rest = tail;
        }
        self.data_bytes.fetch_add(grown as u64, Ordering::Relaxed);
        let attr = &mut state.attr;
        attr.blocks += grown.div_ceil(512) as u64;
        attr.size = attr.size.max(at);
        self.touch(attr);
        Ok(())
    }

    fn change(&self, state: &mut State, change: &AttributeChange) -> Result<Attributes, Errno> {
        if let Some(size) = change.size {
            self.resize(state, size)?;
        }
        let now = self.now();
        let attr = &mut state.attr;
        let time = |change| match change {
            TimeChange::Now => now,
            TimeChange::At(secs, nanos) => (secs as u64, nanos),
        };
        if change.kill_suidgid {
            attr.mode &= if attr.mode & 0o010 != 0 { !0o6000 } else { !0o4000 };
        }
        if let Some(mode) = change.mode {
            attr.mode = attr.mode & S_IFMT | mode & 0o7777;
        }
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        if let Some(atime) = change.atime {
            (attr.atime, attr.atimensec) = time(atime);
        }
        if let Some(mtime) = change.mtime {
            (attr.mtime, attr.mtimensec) = time(mtime);
        }
        (attr.ctime, attr.ctimensec) = now;
        Ok(Attributes { attr: *attr, timeout: FOREVER })
    }
}

/// A directory gained or lost a subdirectory.
fn relink(directory: &mut State, gained: bool, lost: bool) {
    directory.attr.nlink = directory.attr.nlink + u32::from(gained) - u32::from(lost);
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > 255 { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}

fn entries(state: &mut State) -> Result<&mut Directory, Errno> {
    match &mut state.content {
        Content::Directory(directory) => Ok(directory),
        _ => Err(Errno::NOTDIR),
    }
}

fn entry(state: &State) -> Entry {
    Entry {
        node: state.attr.ino,
        generation: 0,
        attr: state.attr,
        entry_timeout: FOREVER,
        attr_timeout: FOREVER,
    }
}

impl Operations for Floor {
    fn lookup(&self, _cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<Entry>) {
        let found = self.inode(parent).and_then(|directory| {
            check_name(name)?;
            let mut directory = directory.lock();
            let Some(node) = entries(&mut directory)?.get(name) else { return Ok(Entry::negative(FOREVER)) };
            let inode = self.inode(node)?;
            let mut state = inode.lock();
            state.lookups += 1;
            Ok(entry(&state))
        });
        self.answer(reply, found);
    }

    fn forget(&self, node: u64, lookups: u64) {
        if let Some(inode) = self.table.get(node) {
            let mut state = inode.lock();
            state.lookups = state.lookups.saturating_sub(lookups);
            self.reap(node, state);
        }
    }

    fn getattr(&self, _cx: &RequestContext, node: u64, _fh: Option<u64>, reply: Reply<Attributes>) {
        reply.result(self.inode(node).map(|inode| Attributes { attr: inode.lock().attr, timeout: FOREVER }));
    }

    fn setattr(&self, _cx: &RequestContext, node: u64, change: &AttributeChange, reply: Reply<Attributes>) {
        reply.result(self.inode(node).and_then(|inode| self.change(&mut inode.lock(), change)));
    }

    fn readlink(&self, _cx: &RequestContext, node: u64, reply: Reply<Bytes>) {
        reply.result(self.inode(node).and_then(|inode| match &inode.lock().content {
            Content::Symlink(target) => Ok(Bytes::copy_from_slice(target)),
            _ => Err(Errno::INVAL),
        }));
    }

    fn symlink(&self, cx: &RequestContext, parent: u64, name: &[u8], target: &[u8], reply: Reply<Entry>) {
        let content = Content::Symlink(target.into());
        self.answer(reply, self.add(cx, parent, name, S_IFLNK | 0o777, 0, content));
    }

    fn mknod(&self, cx: &RequestContext, parent: u64, name: &[u8], mode: NodeMode, reply: Reply<Entry>) {
        let content =
            if mode.mode & S_IFMT == S_IFREG { Content::File(BTreeMap::new()) } else { Content::Special };
        self.answer(reply, self.add(cx, parent, name, mode.mode, mode.rdev, content));
    }

    fn mkdir(&self, cx: &RequestContext, parent: u64, name: &[u8], mode: NodeMode, reply: Reply<Entry>) {
        let content = Content::Directory(Directory::default());
        let mode = mode.mode & !S_IFMT | S_IFDIR;
        self.answer(reply, self.add(cx, parent, name, mode, 0, content));
    }

    fn unlink(&self, _cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<()>) {
        reply.result(self.remove(parent, name, false));
    }

    fn rmdir(&self, _cx: &RequestContext, parent: u64, name: &[u8], reply: Reply<()>) {
        reply.result(self.remove(parent, name, true));
    }

    fn rename(
        &self,
        _cx: &RequestContext,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
        reply: Reply<()>,
    ) {
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0 {
            return reply.error(Errno::INVAL);
        }
        let done = {
            let _one_at_a_time = self.renames.lock();
            self.rename_entry((parent, name), (new_parent, new_name), flags)
        };
        if let Ok(Some(replaced)) = done {
            self.drop_link(replaced);
        }
        reply.result(done.map(|_| ()));
    }

    fn link(&self, _cx: &RequestContext, node: u64, new_parent: u64, new_name: &[u8], reply: Reply<Entry>) {
        let linked = self.inode(new_parent).and_then(|directory| {
            check_name(new_name)?;
            let mut directory = directory.lock();
            if entries(&mut directory)?.get(new_name).is_some() {
                return Err(Errno::EXIST);
            }
            let inode = self.inode(node)?;
            let mut state = inode.lock();
            state.attr.nlink += 1;
            state.lookups += 1;
            (state.attr.ctime, state.attr.ctimensec) = self.now();
            entries(&mut directory)?.insert(new_name, node, state.attr.mode);
            self.touch(&mut directory.attr);
            Ok(entry(&state))
        });
        self.answer(reply, linked);
    }

    fn tmpfile(
        &self,
        cx: &RequestContext,
        _parent: u64,
        mode: NodeMode,
        _args: OpenArgs,
        reply: Reply<Created>,
    ) {
        let ino = self.table.next_number();
        let mut state = self.state(cx, ino, mode.mode, 0, Content::File(BTreeMap::new()), ROOT);
        state.attr.nlink = 0;
        state.lookups = 1;
        let entry = entry(&state);
        self.table.insert(ino, Arc::new(Mutex::new(state)));
        self.take_back(reply.ok(Created { entry, opened: Opened::default() }), ino);
    }

    fn read(&self, _cx: &RequestContext, node: u64, args: ReadArgs, reply: Reply<Data>) {
        let inode = match self.inode(node) {
            Ok(inode) => inode,
            Err(errno) => return reply.error(errno),
        };
        let state = inode.lock();
        let Content::File(chunks) = &state.content else { return reply.error(Errno::INVAL) };
        // The kernel asks for no more than was negotiated; others might have gigabytes of zeros made.
        let size = args.size.min(READ_BYTES_MAX);
        let end = state.attr.size.min(args.offset.saturating_add(size.into()));
        let mut parts = Vec::with_capacity(8);
        let mut at = args.offset;
        while at < end {
            let start = (at % CHUNK_BYTES as u64) as usize;
            let len = (CHUNK_BYTES - start).min((end - at) as usize);
            let chunk = chunks.get(&(at / CHUNK_BYTES as u64)).map_or(&[][..], Vec::as_slice);
            let present = &chunk[start.min(chunk.len())..(start + len).min(chunk.len())];
            if present.is_empty() {
                let zeros = &ZEROS[..len.min(ZEROS.len())];
                parts.push(IoSlice::new(zeros));
                at += zeros.len() as u64;
            } else {
                parts.push(IoSlice::new(present));
                at += present.len() as u64;
            }
        }
        reply.slices(&parts);
    }

    fn write(&self, _cx: &RequestContext, node: u64, args: WriteArgs, data: Bytes, reply: Reply<Written>) {
        let done = self.inode(node).and_then(|inode| {
            let mut state = inode.lock();
            self.store(&mut state, args.offset, &data)?;
            if args.kill_suidgid {
                state.attr.mode &= if state.attr.mode & 0o010 != 0 { !0o6000 } else { !0o4000 };
            }
            Ok(Written(data.len() as u32))
        });
        reply.result(done);
    }

    fn fallocate(&self, _cx: &RequestContext, node: u64, args: FallocateArgs, reply: Reply<()>) {
        if args.mode & !1 != 0 {
            return reply.error(Errno::OPNOTSUPP);
        }
        let done = self.inode(node).and_then(|inode| {
            let mut state = inode.lock();
            let end = args.offset.saturating_add(args.length);
            if args.mode == 0 && end > state.attr.size { self.resize(&mut state, end) } else { Ok(()) }
        });
        reply.result(done);
    }

    fn readdir(&self, _cx: &RequestContext, node: u64, args: ReaddirArgs, reply: Reply<DirectoryBuffer>) {
        let directory = match self.inode(node) {
            Ok(directory) => directory,
            Err(errno) => return reply.error(errno),
        };
        let mut buffer = DirectoryBuffer::new(args.size as usize, args.plus);
        let mut counted = Vec::new();
        {
            let state = directory.lock();
            let Content::Directory(directory) = &state.content else { return reply.error(Errno::NOTDIR) };
            for (position, name, ino) in [(0, &b"."[..], node), (1, &b".."[..], state.parent)] {
                if args.offset <= position {
                    let line = DirectoryEntry { ino, next_offset: position + 1, file_type: 4, name };
                    buffer.push(&line, None);
                }
            }
            for (position, name, ino, file_type) in directory.from(args.offset.max(FIRST_POSITION)) {
                if !buffer.has_room(name.len()) {
                    break;
                }
                let line = DirectoryEntry { ino, next_offset: position + 1, file_type, name };
                let attributes = if args.plus { self.table.get(ino) } else { None }.map(|inode| {
                    let mut state = inode.lock();
                    state.lookups += 1;
                    counted.push(ino);
                    entry(&state)
                });
                buffer.push(&line, attributes.as_ref());
            }
        }
        if reply.ok(buffer) == Delivery::Gone {
            for ino in counted {
                self.forget(ino, 1);
            }
        }
    }

    fn fsync(&self, _cx: &RequestContext, _node: u64, _fh: u64, _datasync: bool, reply: Reply<()>) {
        // Nothing is durable here; answering keeps the kernel's own work the same as with a disk behind.
        reply.ok(());
    }

    fn fsyncdir(&self, _cx: &RequestContext, _node: u64, _fh: u64, _datasync: bool, reply: Reply<()>) {
        reply.ok(());
    }

    fn statfs(&self, _cx: &RequestContext, _node: u64, reply: Reply<Statfs>) {
        const BLOCKS: u64 = 1 << 26;
        let free = BLOCKS - (self.data_bytes.load(Ordering::Relaxed) / 4096).min(BLOCKS);
        reply.ok(Statfs(Kstatfs {
            blocks: BLOCKS,
            bfree: free,
            bavail: free,
            files: self.table.count(),
            bsize: 4096,
            namelen: 255,
            frsize: 4096,
            ..Kstatfs::default()
        }));
    }
}
