//! Runs the same operation on the file system and on the reference, and compares.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{
    Append, Attr, Caller, FallocateMode, FileType, NodeId, Project, RenameMode, Result, SeekKind, SetAttr,
    SetTime, Timestamp, WriteFlags, XattrMode,
};

use crate::reference::{Inode, Outcome, ROOT, Reference};
use crate::setup::{Random, Setup};

/// A few names, so that operations meet; one of them as long as names get.
fn name(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        0 => vec![b'n'; 255],
        1 => b"\xff\x01 \xfe".to_vec(),
        other => format!("name-{other}").into_bytes(),
    }
}

pub(crate) struct Driver {
    pub(crate) setup: Setup,
    reference: Reference,
    /// What the "kernel" knows: node and lookup count by the reference's number.
    held: BTreeMap<usize, (NodeId, u64)>,
    random: Random,
    seed: u64,
    step: usize,
    size_max: u64,
}

impl Driver {
    pub(crate) fn new(setup: Setup, seed: u64, size_max: u64) -> Self {
        let start = Timestamp { seconds: 1_000_000_000, nanos: 0 };
        let reference = Reference::new(start, setup.caller.uid, setup.caller.gid);
        let held = BTreeMap::from([(ROOT, (NodeId::ROOT, 1))]);
        Self { setup, reference, held, random: Random::new(seed), seed, step: 0, size_max }
    }

    fn context(&self) -> String {
        format!("seed {}, step {}", self.seed, self.step)
    }

    /// Compares the outcome of an operation; gives the values when both succeeded.
    #[track_caller]
    fn same<T, U>(&self, what: &str, real: Result<T>, expected: Outcome<U>) -> Option<(T, U)>
    where
        T: Debug,
        U: Debug,
    {
        if std::env::var_os("KVFS_FS_TRACE").is_some() {
            eprintln!("{}: {what}: {real:?} {expected:?}", self.step);
        }
        match (real, expected) {
            (Ok(real), Ok(expected)) => Some((real, expected)),
            (Err(real), Err(expected)) if real.errno() == expected => None,
            (real, expected) => panic!("{}: {what}: {real:?}, expected {expected:?}", self.context()),
        }
    }

    fn any(&mut self) -> (usize, NodeId) {
        let index = self.random.below(self.held.len() as u64) as usize;
        self.held.iter().nth(index).map(|(&inode, &(node, _))| (inode, node)).unwrap()
    }

    /// A directory, mostly.
    fn some_directory(&mut self) -> (usize, NodeId) {
        for _ in 0..8 {
            let (inode, node) = self.any();
            if self.reference.inodes[inode].is_directory() {
                return (inode, node);
            }
        }
        self.any()
    }

    fn some_file(&mut self) -> (usize, NodeId) {
        for _ in 0..8 {
            let (inode, node) = self.any();
            if self.reference.inodes[inode].kind == FileType::Regular {
                return (inode, node);
            }
        }
        self.any()
    }

    fn hold(&mut self, inode: usize, node: NodeId) {
        let held = self.held.entry(inode).or_insert((node, 0));
        assert_eq!(held.0, node, "seed {}, step {}: another node", self.seed, self.step);
        held.1 += 1;
    }

    pub(crate) fn run(&mut self, steps: usize) {
        for step in 0..steps {
            self.step = step;
            let by = Duration::from_nanos(self.random.below(3_000_000_000));
            self.setup.clock.advance(by);
            self.reference.now = kvfs_now(&self.setup);
            match self.random.below(34) {
                0..=3 => self.make(),
                4..=6 => self.lookup(),
                7..=9 => self.remove(),
                10..=12 => self.rename(),
                13 | 14 => self.link(),
                15 => self.tmpfile(),
                16..=20 => self.write(),
                21..=23 => self.read(),
                24 | 25 => self.setattr(),
                26 => self.fallocate(),
                27 => self.copy(),
                28 => self.seek(),
                29 => self.xattr(),
                30 => self.list(),
                31 | 32 => self.forget(),
                _ => self.rarely(),
            }
        }
        self.compare_all();
    }

    fn make(&mut self) {
        let (parent, node) = self.some_directory();
        let name = name(&mut self.random);
        let mode = self.random.below(0o10000) as u32;
        let caller = self.setup.caller.clone();
        let fs = &self.setup.fs;
        let (what, real, expected) = match self.random.below(8) {
            0..=2 => {
                let expected = self.reference.make(parent, &name, FileType::Directory, mode, 0, b"");
                ("mkdir", fs.mkdir(&caller, node, &name, mode), expected)
            }
            3 => {
                let expected = self.reference.make(parent, &name, FileType::Symlink, 0o777, 0, &name);
                ("symlink", fs.symlink(&caller, node, &name, &name), expected)
            }
            4 => {
                let expected = self.reference.make(parent, &name, FileType::CharDevice, mode, 0x0103, b"");
                let st_mode = FileType::CharDevice.mode_bits() | mode;
                ("mknod", fs.mknod(&caller, node, &name, st_mode, 0x0103), expected)
            }
            _ => {
                let expected = self.reference.make(parent, &name, FileType::Regular, mode, 0, b"");
                let real = fs.create(&caller, node, &name, mode, true).map(|(entry, _)| entry);
                ("create", real, expected)
            }
        };
        if let Some((entry, inode)) = self.same(what, real, expected) {
            self.compare(&entry.attr, inode, what);
            self.hold(inode, entry.node);
        }
    }

    fn lookup(&mut self) {
        let (parent, node) = self.some_directory();
        let name = name(&mut self.random);
        let real = self.setup.lookup(&self.setup.caller, node, &name);
        let expected = self.reference.lookup(parent, &name);
        if let Some((entry, inode)) = self.same("lookup", real, expected) {
            self.compare(&entry.attr, inode, "lookup");
            self.hold(inode, entry.node);
        }
    }

    fn remove(&mut self) {
        let (parent, node) = self.some_directory();
        let name = name(&mut self.random);
        let directory = self.random.one_in(2);
        let (fs, caller) = (&self.setup.fs, &self.setup.caller);
        let real = if directory { fs.rmdir(caller, node, &name) } else { fs.unlink(caller, node, &name) };
        let expected = self.reference.remove(parent, &name, directory);
        self.same("remove", real, expected);
    }

    fn rename(&mut self) {
        let (parent, node) = self.some_directory();
        let (new_parent, new_node) =
            if self.random.one_in(3) { (parent, node) } else { self.some_directory() };
        let (from, to) = (name(&mut self.random), name(&mut self.random));
        let mode = match self.random.below(9) {
            0 => RenameMode::NoReplace,
            1 | 2 => RenameMode::Exchange,
            3 => RenameMode::Whiteout,
            4 => RenameMode::WhiteoutNoReplace,
            _ => RenameMode::Replace,
        };
        let real = self.setup.rename(&self.setup.caller, node, &from, new_node, &to, mode);
        let expected = self.reference.rename(parent, &from, new_parent, &to, mode);
        self.same(&format!("rename {mode:?}"), real, expected);
    }

    fn link(&mut self) {
        let (inode, node) = self.some_file();
        let (parent, parent_node) = self.some_directory();
        let name = name(&mut self.random);
        let real = self.setup.link(&self.setup.caller, node, parent_node, &name);
        let expected = self.reference.link(inode, parent, &name);
        if let Some((entry, ())) = self.same("link", real, expected) {
            self.compare(&entry.attr, inode, "link");
            self.hold(inode, entry.node);
        }
    }

    fn tmpfile(&mut self) {
        let (parent, node) = self.some_directory();
        let linkable = self.random.one_in(2);
        let real = self.setup.tmpfile(&self.setup.caller, node, 0o600, linkable);
        let expected = self.reference.tmpfile(parent, 0o600, linkable);
        if let Some((entry, inode)) = self.same("tmpfile", real, expected) {
            self.hold(inode, entry.node);
        }
    }

    /// Offsets around block and inline borders as well as anywhere.
    fn offset(&mut self) -> u64 {
        let border = [0, 64, 100, 4096, 8192, 12288][self.random.below(6) as usize];
        match self.random.below(3) {
            0 => self.random.below(self.size_max),
            1 => border,
            _ => (border + self.random.below(20)).saturating_sub(10),
        }
    }

    fn length(&mut self) -> u64 {
        match self.random.below(4) {
            0 => self.random.below(self.size_max),
            1 => 4096 * (1 + self.random.below(4)),
            _ => self.random.below(200),
        }
    }

    fn write(&mut self) {
        let (inode, node) = self.some_file();
        let (offset, length) = (self.offset(), self.length());
        let flags = WriteFlags {
            append: if self.random.one_in(4) { Append::End } else { Append::No },
            kill_suidgid: self.random.one_in(3),
            ..WriteFlags::default()
        };
        let byte = self.random.below(256) as u8;
        let data: Vec<u8> = (0..length).map(|index| byte.wrapping_add(index as u8) | 1).collect();
        let real = self.setup.write(&self.setup.caller, node, offset, Bytes::from(data.clone()), flags);
        let expected =
            self.reference.write(inode, offset, &data, flags.append == Append::End, flags.kill_suidgid);
        if let Some((written, ())) = self.same("write", real, expected) {
            assert_eq!(written.bytes, length, "{}", self.context());
        }
        self.compare_node(inode, node, "write");
    }

    fn read(&mut self) {
        let (inode, node) = self.some_file();
        let (offset, length) = (self.offset(), self.length() as usize);
        let mut buffer = vec![0xee; length];
        let real = self.setup.read(&self.setup.caller, node, offset, &mut buffer);
        let expected = self.reference.read(inode, offset, length);
        if let Some((length, expected)) = self.same("read", real, expected) {
            assert!(buffer[..length] == expected[..], "{}: read of {inode} at {offset}", self.context());
        }
        self.compare_node(inode, node, "read");
    }

    fn setattr(&mut self) {
        let (inode, node) = self.any();
        let at = Timestamp { seconds: self.random.below(1 << 33) as i64 - 1000, nanos: 999_999_999 };
        let random = &mut self.random;
        let mut maybe = |value: u64| random.one_in(3).then_some(value);
        let changes = SetAttr {
            mode: maybe(0o6755).map(|mode| mode as u32),
            uid: maybe(7).map(|uid| uid as u32),
            gid: maybe(8).map(|gid| gid as u32),
            size: None,
            atime: maybe(0).map(|_| SetTime::At(at)),
            mtime: maybe(0).map(|_| if at.seconds % 2 == 0 { SetTime::Now } else { SetTime::At(at) }),
            ctime: None,
            kill_suidgid: maybe(0).is_some(),
        };
        let is_file = self.reference.inodes[inode].kind == FileType::Regular;
        let size =
            (is_file && self.random.one_in(2)).then(|| if self.random.one_in(3) { 0 } else { self.offset() });
        let changes = SetAttr { size, ..changes };
        let real = self.setup.setattr(&self.setup.caller, node, &changes);
        let expected = self.reference.setattr(inode, &changes);
        if let Some((attr, ())) = self.same("setattr", real, expected) {
            self.compare(&attr, inode, "setattr");
        }
    }

    fn fallocate(&mut self) {
        let (inode, node) = self.some_file();
        let (offset, length) = (self.offset(), self.length());
        let keep_size = self.random.one_in(2);
        let mode = match self.random.below(3) {
            0 => FallocateMode::Allocate { keep_size },
            1 => FallocateMode::PunchHole,
            _ => FallocateMode::ZeroRange { keep_size },
        };
        let real = self.setup.fallocate(&self.setup.caller, node, offset, length, mode);
        let expected = self.reference.fallocate(inode, offset, length, mode);
        let expected = if length == 0 { Err(crate::reference::EINVAL) } else { expected };
        self.same("fallocate", real, expected);
        self.compare_node(inode, node, "fallocate");
    }

    fn copy(&mut self) {
        let ((source, source_node), (target, target_node)) = (self.some_file(), self.some_file());
        let is_file = |inode: usize| self.reference.inodes[inode].kind == FileType::Regular;
        if source == target || !is_file(source) || !is_file(target) {
            return;
        }
        let (from, to, length) = (self.offset(), self.offset(), self.length());
        let caller = self.setup.caller.clone();
        let real = self.setup.copy_file_range(&caller, source_node, from, target_node, to, length);
        let data = self.reference.read(source, from, length as usize).unwrap();
        let expected = self.reference.write(target, to, &data, false, false);
        if let Some((written, ())) = self.same("copy_file_range", real, expected) {
            assert_eq!(written.bytes, data.len() as u64, "{}", self.context());
        }
        self.compare_node(target, target_node, "copy_file_range");
    }

    fn seek(&mut self) {
        let (inode, node) = self.some_file();
        let offset = self.offset();
        let content = self.reference.inodes[inode].content.clone();
        if self.reference.inodes[inode].kind != FileType::Regular {
            return;
        }
        let data = self.setup.seek(&self.setup.caller, node, offset, SeekKind::Data);
        let hole = self.setup.seek(&self.setup.caller, node, offset, SeekKind::Hole);
        let context = self.context();
        if offset >= content.len() as u64 {
            assert!(data.is_err() && hole.is_err(), "{context}");
            return;
        }
        let rest = &content[offset as usize..];
        let skipped = data.map_or(rest.len(), |data| (data - offset) as usize);
        assert!(rest[..skipped].iter().all(|&byte| byte == 0), "{context}: data was taken for a hole");
        let hole = (hole.unwrap() - offset) as usize;
        assert!(hole <= rest.len(), "{context}: a hole beyond the end");
        let in_hole = &rest[hole..rest.len().min(hole + 1)];
        assert!(in_hole.iter().all(|&byte| byte == 0), "{context}: data was called a hole");
    }

    fn xattr(&mut self) {
        let (inode, node) = self.any();
        if self.random.one_in(3) {
            let project = Project { id: self.random.below(3) as u32, hands_down: self.random.one_in(2) };
            self.setup.set_project(&self.setup.caller, node, project).unwrap();
            self.reference.set_project(inode, project);
            return self.compare_node(inode, node, "set_project");
        }
        let name = if self.random.one_in(2) { &b"user.a"[..] } else { b"trusted.b" };
        let caller = self.setup.caller.clone();
        if self.random.one_in(3) {
            let real = self.setup.removexattr(&caller, node, name);
            let expected = self.reference.removexattr(inode, name);
            self.same("removexattr", real, expected);
        } else {
            let value = vec![7; self.random.below(300) as usize];
            let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][self.random.below(3) as usize];
            let real = self.setup.setxattr(&caller, node, name, &value, mode);
            let expected = self.reference.setxattr(inode, name, &value, mode);
            self.same("setxattr", real, expected);
        }
        self.compare_node(inode, node, "xattr");
    }

    fn list(&mut self) {
        let (inode, node) = self.some_directory();
        if !self.reference.inodes[inode].is_directory() {
            return;
        }
        let reply_len = 1 + self.random.below(4) as usize;
        let plus = self.random.one_in(2);
        let listed = self.setup.list(node, reply_len, plus);
        if self.reference.inodes[inode].nlink == 0 {
            assert!(listed.is_empty(), "{}", self.context());
            return;
        }
        self.reference.access(inode);
        let expected = &self.reference.inodes[inode].entries;
        let names: Vec<&[u8]> = listed.iter().map(|listed| &listed.name[..]).collect();
        let expected: Vec<&[u8]> =
            [&b"."[..], b".."].into_iter().chain(expected.keys().map(|name| &name[..])).collect();
        assert_eq!(names, expected, "{}: listing of {inode}", self.context());
    }

    fn forget(&mut self) {
        let (inode, node) = self.any();
        if inode == ROOT {
            return;
        }
        let Some((_, count)) = self.held.remove(&inode) else { return };
        self.setup.forget(node, count);
    }

    fn rarely(&mut self) {
        match self.random.below(8) {
            0 => {
                // All processes close everything, and the file system is opened anew.
                self.setup.housekeep().unwrap();
                self.held.clear();
                self.held.insert(ROOT, (NodeId::ROOT, 1));
                self.setup.reopen();
                self.compare_all();
            }
            1 => self.compare_all(),
            _ => self.setup.housekeep().unwrap(),
        }
    }

    fn compare_node(&self, inode: usize, node: NodeId, what: &str) {
        let attr = self.setup.getattr(&self.setup.caller, node).unwrap();
        self.compare(&attr, inode, what);
    }

    fn compare(&self, attr: &Attr, inode: usize, what: &str) {
        let expected = &self.reference.inodes[inode];
        let context = format!("{}: {what} of {inode}", self.context());
        assert_eq!(attr.kind, expected.kind, "{context}: kind");
        assert_eq!(attr.mode, expected.mode, "{context}: mode");
        assert_eq!(attr.nlink, expected.nlink, "{context}: link count");
        assert_eq!((attr.uid, attr.gid), (expected.uid, expected.gid), "{context}: owner");
        // The node of what is listed may have left the table.
        if let Ok(project) = self.setup.project(&self.setup.caller, NodeId(attr.inode)) {
            assert_eq!(project, expected.project, "{context}: project");
        }
        assert_eq!(attr.rdev, expected.rdev, "{context}: device");
        assert_eq!(attr.size, expected.size(), "{context}: size");
        assert_eq!(attr.atime, expected.atime, "{context}: atime");
        assert_eq!(attr.mtime, expected.mtime, "{context}: mtime");
        assert_eq!(attr.ctime, expected.ctime, "{context}: ctime");
        assert_eq!(attr.btime, expected.btime, "{context}: btime");
    }

    /// The whole tree, everything held, and the checker.
    fn compare_all(&mut self) {
        let mut seen = BTreeSet::new();
        self.compare_directory(ROOT, NodeId::ROOT, &mut seen);
        let held: Vec<(usize, NodeId)> = self.held.iter().map(|(&inode, &(node, _))| (inode, node)).collect();
        for (inode, node) in held {
            self.compare_one(inode, node);
        }
        self.setup.assert_sound(&self.context());
    }

    fn compare_directory(&mut self, inode: usize, node: NodeId, seen: &mut BTreeSet<usize>) {
        assert!(seen.insert(inode), "{}: {inode} is in the tree twice", self.context());
        let entries = self.reference.inodes[inode].entries.clone();
        let listed = self.setup.list(node, 5, true);
        self.reference.access(inode);
        assert_eq!(listed.len(), entries.len() + 2, "{}: listing of {inode}", self.context());
        for (listed, (name, &below)) in listed.iter().skip(2).zip(&entries) {
            assert_eq!(&listed.name, name, "{}", self.context());
            assert_eq!(listed.kind, self.reference.inodes[below].kind, "{}", self.context());
            self.compare(&listed.entry.unwrap().attr, below, "listing");
        }
        // Reading changes access times, also those of other names in this directory.
        for (listed, (name, &below)) in listed.iter().skip(2).zip(&entries) {
            let entry = self.setup.lookup(&self.setup.caller, node, name).unwrap();
            assert_eq!(entry.node.0, listed.inode, "{}", self.context());
            self.compare_one(below, entry.node);
            if self.reference.inodes[below].is_directory() {
                self.compare_directory(below, entry.node, seen);
            }
            self.setup.forget(entry.node, 1);
        }
    }

    fn compare_one(&mut self, inode: usize, node: NodeId) {
        self.compare_node(inode, node, "comparison");
        let Inode { kind, content, xattrs, .. } = self.reference.inodes[inode].clone();
        let caller = self.setup.caller.clone();
        match kind {
            FileType::Regular => {
                let real = self.setup.read_all(node);
                assert!(real == content, "{}: content of {inode}", self.context());
                self.reference.read(inode, 0, content.len()).unwrap();
            }
            FileType::Symlink => {
                assert_eq!(self.setup.readlink(&caller, node).unwrap(), content, "{}", self.context());
                self.reference.access(inode);
            }
            _ => {}
        }
        let names = |is_listed: fn(&[u8]) -> bool| -> Vec<u8> {
            let names = xattrs.keys().filter(|name| is_listed(name));
            names.flat_map(|name| [name, &b"\0"[..]].concat()).collect()
        };
        let (root, all) = (Caller::default(), names(|_| true));
        assert_eq!(self.setup.listxattr(&root, node).unwrap(), all, "{}", self.context());
        let some = names(|name| !name.starts_with(b"trusted."));
        assert_eq!(self.setup.listxattr(&caller, node).unwrap(), some, "{}", self.context());
        for (name, value) in &xattrs {
            assert_eq!(self.setup.getxattr(&caller, node, name).unwrap(), value, "{}", self.context());
        }
    }
}

fn kvfs_now(setup: &Setup) -> Timestamp {
    use kvfs_store::clock::Clock;
    setup.clock.wall().into()
}
