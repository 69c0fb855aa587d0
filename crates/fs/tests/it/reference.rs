//! The reference: a file system in plain structs, for comparison. Slow, simple, single-threaded.
//!
//! Operations return errno values. Inodes are named by the reference's own numbers.

use std::collections::BTreeMap;

use kvfs_fs::{FallocateMode, FileType, Project, RenameMode, SetAttr, SetTime, Timestamp, XattrMode};

pub(crate) type Outcome<T> = Result<T, i32>;

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const EXDEV: i32 = 18;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENODATA: i32 = 61;
pub(crate) const ENOTEMPTY: i32 = 39;
pub(crate) const EPERM: i32 = 1;

#[derive(Debug, Clone)]
pub(crate) struct Inode {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) project: Project,
    /// Content, or target.
    pub(crate) content: Vec<u8>,
    pub(crate) entries: BTreeMap<Vec<u8>, usize>,
    pub(crate) parent: usize,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) btime: Timestamp,
    linkable: bool,
}

impl Inode {
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    pub(crate) fn size(&self) -> u64 {
        if self.is_directory() { self.entries.len() as u64 } else { self.content.len() as u64 }
    }
}

pub(crate) struct Reference {
    pub(crate) inodes: Vec<Inode>,
    pub(crate) now: Timestamp,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

pub(crate) const ROOT: usize = 0;

impl Reference {
    pub(crate) fn new(now: Timestamp, uid: u32, gid: u32) -> Self {
        let mut reference = Self { inodes: Vec::new(), now, uid: 0, gid: 0 };
        reference.add(FileType::Directory, 0o755, ROOT);
        reference.inodes[ROOT].nlink = 2;
        (reference.uid, reference.gid) = (uid, gid);
        reference
    }

    fn add(&mut self, kind: FileType, mode: u32, parent: usize) -> usize {
        let now = self.now;
        self.inodes.push(Inode {
            kind,
            mode,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            project: Project::default(),
            content: Vec::new(),
            entries: BTreeMap::new(),
            parent,
            xattrs: BTreeMap::new(),
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            linkable: false,
        });
        self.inodes.len() - 1
    }

    fn directory(&self, inode: usize) -> Outcome<&Inode> {
        let inode = &self.inodes[inode];
        if inode.is_directory() { Ok(inode) } else { Err(ENOTDIR) }
    }

    fn touch(&mut self, inode: usize) {
        self.inodes[inode].mtime = self.now;
        self.touch_ctime(inode);
    }

    fn touch_ctime(&mut self, inode: usize) {
        self.inodes[inode].ctime = self.now;
    }

    /// What something new in a directory gets.
    fn inherit(&mut self, inode: usize, parent: usize) {
        let above = self.inodes[parent].project;
        if above.hands_down {
            let hands_down = self.inodes[inode].is_directory();
            self.inodes[inode].project = Project { hands_down, ..above };
        }
    }

    /// Whether something may come into a directory.
    fn admits(&self, directory: usize, coming: usize) -> Outcome<()> {
        let Project { id, hands_down } = self.inodes[directory].project;
        if hands_down && id != self.inodes[coming].project.id { Err(EXDEV) } else { Ok(()) }
    }

    pub(crate) fn set_project(&mut self, inode: usize, project: Project) {
        let hands_down = project.hands_down && self.inodes[inode].is_directory();
        let project = Project { hands_down, ..project };
        if self.inodes[inode].project != project {
            self.inodes[inode].project = project;
            self.touch_ctime(inode);
        }
    }

    pub(crate) fn lookup(&self, parent: usize, name: &[u8]) -> Outcome<usize> {
        self.directory(parent)?.entries.get(name).copied().ok_or(ENOENT)
    }

    pub(crate) fn make(
        &mut self,
        parent: usize,
        name: &[u8],
        kind: FileType,
        mode: u32,
        rdev: u32,
        target: &[u8],
    ) -> Outcome<usize> {
        let above = self.directory(parent)?;
        if above.nlink == 0 {
            return Err(ENOENT);
        }
        if above.entries.contains_key(name) {
            return Err(EEXIST);
        }
        let (above_mode, above_gid) = (above.mode, above.gid);
        let inode = self.add(kind, mode, parent);
        self.inodes[inode].rdev = rdev;
        self.inodes[inode].content = target.to_vec();
        self.inherit(inode, parent);
        if above_mode & 0o2000 != 0 {
            self.inodes[inode].gid = above_gid;
            if kind == FileType::Directory {
                self.inodes[inode].mode |= 0o2000;
            }
        }
        self.inodes[parent].entries.insert(name.to_vec(), inode);
        self.inodes[parent].nlink += u32::from(kind == FileType::Directory);
        self.touch(parent);
        Ok(inode)
    }

    pub(crate) fn tmpfile(&mut self, parent: usize, mode: u32, linkable: bool) -> Outcome<usize> {
        self.directory(parent)?;
        let (above_mode, above_gid) = (self.inodes[parent].mode, self.inodes[parent].gid);
        let inode = self.add(FileType::Regular, mode, parent);
        self.inodes[inode].nlink = 0;
        self.inodes[inode].linkable = linkable;
        self.inherit(inode, parent);
        if above_mode & 0o2000 != 0 {
            self.inodes[inode].gid = above_gid;
        }
        Ok(inode)
    }

    /// Takes a name away from an inode.
    fn drop_link(&mut self, inode: usize) {
        let victim = &mut self.inodes[inode];
        victim.nlink = if victim.is_directory() { 0 } else { victim.nlink - 1 };
        victim.linkable = false;
        self.touch_ctime(inode);
    }

    pub(crate) fn remove(&mut self, parent: usize, name: &[u8], directory: bool) -> Outcome<()> {
        let victim = self.lookup(parent, name)?;
        match (self.inodes[victim].is_directory(), directory) {
            (true, false) => return Err(EISDIR),
            (false, true) => return Err(ENOTDIR),
            _ => {}
        }
        if !self.inodes[victim].entries.is_empty() {
            return Err(ENOTEMPTY);
        }
        self.inodes[parent].entries.remove(name);
        self.inodes[parent].nlink -= u32::from(directory);
        self.drop_link(victim);
        self.touch(parent);
        Ok(())
    }

    fn is_below(&self, mut inode: usize, ancestor: usize) -> bool {
        loop {
            if inode == ancestor {
                return true;
            }
            if inode == ROOT {
                return false;
            }
            inode = self.inodes[inode].parent;
        }
    }

    pub(crate) fn rename(
        &mut self,
        parent: usize,
        name: &[u8],
        new_parent: usize,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Outcome<()> {
        self.directory(parent)?;
        self.directory(new_parent)?;
        if self.inodes[parent].nlink == 0 || self.inodes[new_parent].nlink == 0 {
            return Err(ENOENT);
        }
        let moving = self.lookup(parent, name)?;
        let other = self.lookup(new_parent, new_name).ok();
        match (mode, other) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_)) => return Err(EEXIST),
            (RenameMode::Exchange, None) => return Err(ENOENT),
            (_, Some(other)) if other == moving => return Ok(()),
            (RenameMode::Replace | RenameMode::Whiteout, Some(other)) => {
                match (self.inodes[moving].is_directory(), self.inodes[other].is_directory()) {
                    (true, false) => return Err(ENOTDIR),
                    (false, true) => return Err(EISDIR),
                    _ => {}
                }
            }
            _ => {}
        }
        let moves_up = |reference: &Self, inode: usize, to: usize| {
            reference.inodes[inode].is_directory() && reference.is_below(to, inode)
        };
        if parent != new_parent && moves_up(self, moving, new_parent) {
            return Err(EINVAL);
        }
        let exchanged = other.filter(|_| mode == RenameMode::Exchange);
        if let Some(other) = exchanged
            && parent != new_parent
            && moves_up(self, other, parent)
        {
            return Err(EINVAL);
        }
        if parent != new_parent {
            self.admits(new_parent, moving)?;
            if let Some(other) = exchanged {
                self.admits(parent, other)?;
            }
        }
        if let Some(other) = exchanged {
            self.place(parent, name, other);
        } else {
            if let Some(other) = other {
                if !self.inodes[other].entries.is_empty() {
                    return Err(ENOTEMPTY);
                }
                self.drop_link(other);
            }
            self.inodes[parent].entries.remove(name);
            if matches!(mode, RenameMode::Whiteout | RenameMode::WhiteoutNoReplace) {
                self.make(parent, name, FileType::CharDevice, 0, 0, b"")?;
            }
        }
        self.place(new_parent, new_name, moving);
        for directory in [parent, new_parent] {
            self.touch(directory);
            let entries: Vec<usize> = self.inodes[directory].entries.values().copied().collect();
            let below = entries.iter().filter(|&&entry| self.inodes[entry].is_directory()).count();
            self.inodes[directory].nlink = 2 + below as u32;
        }
        Ok(())
    }

    fn place(&mut self, parent: usize, name: &[u8], inode: usize) {
        self.inodes[parent].entries.insert(name.to_vec(), inode);
        self.inodes[inode].parent = parent;
        self.touch_ctime(inode);
    }

    pub(crate) fn link(&mut self, inode: usize, parent: usize, name: &[u8]) -> Outcome<()> {
        if self.inodes[inode].is_directory() {
            return Err(EPERM);
        }
        let above = self.directory(parent)?;
        if above.nlink == 0 {
            return Err(ENOENT);
        }
        if above.entries.contains_key(name) {
            return Err(EEXIST);
        }
        self.admits(parent, inode)?;
        if self.inodes[inode].nlink == 0 && !self.inodes[inode].linkable {
            return Err(ENOENT);
        }
        self.inodes[inode].nlink += 1;
        self.inodes[inode].linkable = false;
        self.touch_ctime(inode);
        self.inodes[parent].entries.insert(name.to_vec(), inode);
        self.touch(parent);
        Ok(())
    }

    fn file(&mut self, inode: usize) -> Outcome<&mut Inode> {
        let inode = &mut self.inodes[inode];
        match inode.kind {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(EISDIR),
            _ => Err(EINVAL),
        }
    }

    /// `relatime`.
    pub(crate) fn access(&mut self, inode: usize) {
        let now = self.now;
        let inode = &mut self.inodes[inode];
        let is_old = now.seconds - inode.atime.seconds >= 24 * 3600;
        if inode.atime <= inode.mtime || inode.atime <= inode.ctime || is_old {
            inode.atime = now.max(inode.atime);
        }
    }

    pub(crate) fn read(&mut self, inode: usize, offset: u64, length: usize) -> Outcome<Vec<u8>> {
        let file = self.file(inode)?;
        let start = (offset as usize).min(file.content.len());
        let end = (start + length).min(file.content.len());
        let content = file.content[start..end].to_vec();
        if !content.is_empty() {
            self.access(inode);
        }
        Ok(content)
    }

    pub(crate) fn write(
        &mut self,
        inode: usize,
        offset: u64,
        data: &[u8],
        append: bool,
        kill: bool,
    ) -> Outcome<()> {
        let file = self.file(inode)?;
        if data.is_empty() {
            return Ok(());
        }
        let offset = if append { file.content.len() } else { offset as usize };
        let end = offset + data.len();
        if file.content.len() < end {
            file.content.resize(end, 0);
        }
        file.content[offset..end].copy_from_slice(data);
        if kill {
            file.mode &= !killed(file.mode);
        }
        self.touch(inode);
        Ok(())
    }

    pub(crate) fn setattr(&mut self, inode: usize, changes: &SetAttr) -> Outcome<()> {
        let now = self.now;
        if let Some(size) = changes.size {
            self.file(inode)?.content.resize(size as usize, 0);
            self.touch(inode);
        }
        let time = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let target = &mut self.inodes[inode];
        if let Some(mode) = changes.mode {
            target.mode = mode & 0o7777;
        }
        let chown = (changes.uid.is_some() || changes.gid.is_some()) && changes.mode.is_none();
        if (chown || changes.kill_suidgid) && !target.is_directory() {
            target.mode &= !killed(target.mode);
        }
        target.uid = changes.uid.unwrap_or(target.uid);
        target.gid = changes.gid.unwrap_or(target.gid);
        target.atime = changes.atime.map_or(target.atime, time);
        target.mtime = changes.mtime.map_or(target.mtime, time);
        self.touch_ctime(inode);
        Ok(())
    }

    pub(crate) fn fallocate(
        &mut self,
        inode: usize,
        offset: u64,
        length: u64,
        mode: FallocateMode,
    ) -> Outcome<()> {
        let file = self.file(inode)?;
        if length == 0 {
            return Err(EINVAL);
        }
        let (start, end) = (offset as usize, (offset + length) as usize);
        let keep_size = match mode {
            FallocateMode::Allocate { keep_size } | FallocateMode::ZeroRange { keep_size } => keep_size,
            FallocateMode::PunchHole => true,
        };
        if !matches!(mode, FallocateMode::Allocate { .. }) && start < file.content.len() {
            let end = end.min(file.content.len());
            file.content[start..end].fill(0);
        }
        if !keep_size && file.content.len() < end {
            file.content.resize(end, 0);
        }
        self.touch(inode);
        Ok(())
    }

    pub(crate) fn setxattr(
        &mut self,
        inode: usize,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Outcome<()> {
        let exists = self.inodes[inode].xattrs.contains_key(name);
        match (mode, exists) {
            (XattrMode::Create, true) => return Err(EEXIST),
            (XattrMode::Replace, false) => return Err(ENODATA),
            _ => {}
        }
        self.inodes[inode].xattrs.insert(name.to_vec(), value.to_vec());
        self.touch_ctime(inode);
        Ok(())
    }

    pub(crate) fn removexattr(&mut self, inode: usize, name: &[u8]) -> Outcome<()> {
        self.inodes[inode].xattrs.remove(name).ok_or(ENODATA)?;
        self.touch_ctime(inode);
        Ok(())
    }
}

fn killed(mode: u32) -> u32 {
    mode & if mode & 0o010 != 0 { 0o6000 } else { 0o4000 }
}
