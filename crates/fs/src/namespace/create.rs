//! New files, directories, links and nodes.

use bytes::Bytes;
use kvfs_store::Batch;

use super::lookup::answer;
use super::{Resolver, attribute_wants, entry_wants};
use crate::acl::{Acls, Inherited};
use crate::attr::AccessTimes;
use crate::file::Reader;
use crate::node::{DirectoryPart, Location, Pin};
use crate::quota::Gate;
use crate::schema::{Header, Keyspaces, Placement, RowFlags, check_name, encode_directory_link, encode_row};
use crate::view::{Locker, Origin, Shared};
use crate::{
    Caller, Entry, FileSystem, FileType, FsError, LINK_MAX, MODE_BITS, NodeId, Project, Result,
    SYMLINK_LEN_MAX,
};

const S_ISGID: u32 = 0o2000;

/// What is to be created.
pub(super) struct New<'a> {
    kind: FileType,
    mode: u32,
    rdev: u32,
    target: &'a [u8],
}

impl New<'static> {
    /// What an overlay leaves where a name was.
    pub(super) const WHITEOUT: Self = Self { kind: FileType::CharDevice, mode: 0, rdev: 0, target: b"" };
}

impl FileSystem {
    /// Creates a symbolic link. One batch.
    ///
    /// # Errors
    /// `Exists`, `NameTooLong`, `NotFound` when the directory was removed, …
    pub fn symlink(&self, caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > SYMLINK_LEN_MAX {
            return Err(FsError::NameTooLong { len: target.len(), len_max: SYMLINK_LEN_MAX });
        }
        let new = New { kind: FileType::Symlink, mode: 0o777, rdev: 0, target };
        Maker::new(self).make(&self.gate(), caller, (parent, name), &new, true).map(|(entry, _)| entry)
    }

    /// Creates a file, device node, fifo or socket; `mode` is an `st_mode` with type (none: a file).
    ///
    /// # Errors
    /// `Exists`, `Invalid` for other types, …
    pub fn mknod(&self, caller: &Caller, parent: NodeId, name: &[u8], mode: u32, rdev: u32) -> Result<Entry> {
        let kind = match FileType::from_mode(mode) {
            None if mode >> 12 == 0 => FileType::Regular,
            Some(FileType::Directory | FileType::Symlink) | None => {
                return Err(FsError::Invalid("mknod makes files, devices, fifos and sockets"));
            }
            Some(kind) => kind,
        };
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        let new = New { kind, mode, rdev: if is_device { rdev } else { 0 }, target: b"" };
        Maker::new(self).make(&self.gate(), caller, (parent, name), &new, true).map(|(entry, _)| entry)
    }

    /// Creates a regular file, or, unless `exclusive`, returns the existing entry of any kind; then the
    /// second value is false.
    ///
    /// # Errors
    /// `Exists` when `exclusive`, …
    pub fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        exclusive: bool,
    ) -> Result<(Entry, bool)> {
        let new = New { kind: FileType::Regular, mode, rdev: 0, target: b"" };
        Maker::new(self).make(&self.gate(), caller, (parent, name), &new, exclusive)
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// `Exists`, `TooManyLinks`, …
    pub fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], mode: u32) -> Result<Entry> {
        let new = New { kind: FileType::Directory, mode, rdev: 0, target: b"" };
        Maker::new(self).make(&self.gate(), caller, (parent, name), &new, true).map(|(entry, _)| entry)
    }

    /// Creates a regular file without a name (`O_TMPFILE`); `linkable` is false with `O_EXCL`. It is an
    /// orphan from the start: a crash reaps it.
    ///
    /// # Errors
    /// `NotDirectory`, `NoSpace`, …
    pub fn tmpfile(&self, caller: &Caller, parent: NodeId, mode: u32, linkable: bool) -> Result<Entry> {
        self.locker().check_writable()?;
        let (parent, _) = self.locker().pin_directory(parent)?;
        let gate = self.gate();
        // It needs no name, but no commit of its view may take place meanwhile.
        let _names = self.locker().latch(caller, &[])?;
        let new = New { kind: FileType::Regular, mode, rdev: 0, target: b"" };
        let (mut header, inherited) = Maker::new(self).new_header(caller, &parent, &new)?;
        header.nlink = 0;
        if linkable {
            header.flags = header.flags | RowFlags::LINKABLE;
        }
        let mut batch = Batch::new();
        inherited.stage(self.keyspaces.xattr, &mut header, &mut batch);
        self.shared.tiers.stage_new(&mut batch, &header)?;
        batch.put(self.keyspaces.orphans, crate::schema::inode_key(header.inode), encode_row(&header, b""));
        // An orphan only when there is one: an orphan is reaped when its node is dropped.
        let node = self.resolver().intern_new(header, &|| Location::Own, None);
        let position = gate.apply_counted(caller, batch, None, Some(&header))?;
        node.relocate(Location::Orphan);
        node.state().touched(position);
        Ok(answer(&node))
    }

    /// The target of a symbolic link. Never parks.
    ///
    /// # Errors
    /// `Invalid` when it is none.
    pub fn readlink(&self, caller: &Caller, node: NodeId) -> Result<Bytes> {
        let node = self.locker().pin(node)?;
        if node.kind != FileType::Symlink {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        let target = Reader::new(self).content(caller, &node)?;
        AccessTimes::new(self).note(caller, &node);
        Ok(target)
    }
}

/// Makes inodes in a view.
pub(super) struct Maker<'v> {
    origin: &'v Origin,
    keyspaces: Keyspaces,
    shared: &'v Shared,
    locker: Locker<'v>,
    resolver: Resolver<'v>,
    acls: Acls<'v>,
}

impl<'v> Maker<'v> {
    /// That of this view.
    pub(super) fn new(fs: &'v FileSystem) -> Self {
        Self {
            origin: &fs.origin,
            keyspaces: fs.keyspaces,
            shared: &fs.shared,
            locker: fs.locker(),
            resolver: fs.resolver(),
            acls: Acls::new(fs),
        }
    }

    /// Makes an inode under a name of a directory; as [`FileSystem::create`].
    fn make(
        &self,
        gate: &Gate<'_>,
        caller: &Caller,
        (parent, name): (NodeId, &[u8]),
        new: &New<'_>,
        exclusive: bool,
    ) -> Result<(Entry, bool)> {
        check_name(name).map_err(|error| {
            if name.starts_with(b".") && name.len() <= 2 { FsError::Exists } else { error }
        })?;
        let (parent, directory) = self.locker.pin_directory(parent)?;
        let mut guard = self.locker.latch(caller, &entry_wants(parent.inode, name))?;
        self.resolver.expect_there(self.origin, caller, &parent)?;
        let key = directory.placement.key(name);
        if self.origin.read().get(self.keyspaces.meta, &key)?.is_some() {
            if exclusive {
                return Err(FsError::Exists);
            }
            let node = self.resolver.resolve(&parent, name)?;
            self.locker.lock_read(caller, &attribute_wants(node.inode))?;
            return Ok((answer(&node), false));
        }
        self.locker.check_writable()?;
        let (mut header, inherited) = self.new_header(caller, &parent, new)?;
        let is_directory = new.kind == FileType::Directory;
        if is_directory && parent.header().nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let placement = Placement::own_subtree(header.inode);
        let mut batch = Batch::new();
        inherited.stage(self.keyspaces.xattr, &mut header, &mut batch);
        self.shared.tiers.stage_new(&mut batch, &header)?;
        if is_directory {
            batch.put(self.keyspaces.meta, key, encode_directory_link(header.inode, &placement));
            batch.put(self.keyspaces.meta, placement.own_key(), encode_row(&header, b""));
        } else {
            batch.put(self.keyspaces.meta, key, encode_row(&header, new.target));
        }
        let patch = guard.counted(&parent, 1, i32::from(is_directory))?;
        batch.merge(self.keyspaces.meta, directory.placement.own_key(), patch.encode(parent.inode));
        // No other operation can know the inode before the batch is visible, and then it finds this node.
        let part = is_directory.then(|| Box::new(DirectoryPart::new(placement)));
        let node = self.resolver.intern_new(header, &|| parent.entry(name), part);
        let position = gate.apply_counted(caller, batch, None, Some(&header))?;
        node.state().touched(position);
        parent.update(&patch, position);
        Ok((answer(&node), true))
    }

    /// Attributes of a new inode: ids of the caller, the group of a set-group-id directory, the project that
    /// one hands down; and the lists that it inherits.
    pub(super) fn new_header(
        &self,
        caller: &Caller,
        parent: &Pin<'_>,
        new: &New<'_>,
    ) -> Result<(Header, Inherited)> {
        let now = self.shared.time();
        let inherited = self.acls.inherited(caller, &parent.header(), new.kind, new.mode & MODE_BITS)?;
        let Some(directory) = &parent.directory else { return Err(FsError::NotDirectory) };
        let inode = directory.next_inode(|| self.origin.take_inodes(self.shared))?;
        let mut header = Header::new(inode, new.kind, now);
        header.mode = inherited.mode;
        header.uid = caller.uid;
        header.gid = caller.gid;
        header.rdev = new.rdev;
        header.size = new.target.len() as u64;
        let above = parent.header();
        if above.mode & S_ISGID != 0 {
            header.gid = above.gid;
            if new.kind == FileType::Directory {
                header.mode |= S_ISGID;
            }
        }
        if matches!(new.kind, FileType::Directory | FileType::Regular) {
            header.flags = above.flags.only(RowFlags::HANDED_DOWN);
        }
        if new.kind == FileType::Directory {
            header.nlink = 2;
            header.parent = parent.inode;
        }
        Ok((header.with_project(Project::of_new(&above, new.kind)), inherited))
    }
}
