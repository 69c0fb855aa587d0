//! Rows against rows.

use std::collections::{BTreeMap, HashMap};

use kvfs_kv::KeyspaceOwner;
use kvfs_store::Read;
use kvfs_store::progress::{self, Unit};

use super::{CheckReport, Unread, or_root, path_of};
use crate::schema::{
    Header, Keyspaces, NAMELESS_INODES, Placement, ROOT_INODE, Row, RowFlags, Superblock, check_name,
    decode_private, decode_received, decode_receiving, inode_key, is_keyspace_key, parse_private_key,
    parse_received_key, receiving_key, superblock_key,
};
use crate::{FileType, FsError, Result};

/// What must be true of an inode's blocks and attributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) blocks: u64,
    pub(super) flags: RowFlags,
    pub(super) mode: u32,
}

#[derive(Debug, Default)]
struct Directory {
    header: Option<Header>,
    entries: u64,
    subdirectories: u32,
    /// Parent and name, from each entry that refers to it.
    names: Vec<(u64, Box<[u8]>)>,
}

#[derive(Debug, Default)]
struct Linked {
    header: Option<Header>,
    names: Vec<(u64, Box<[u8]>, FileType)>,
}

/// Everything but content.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Inodes that may have blocks or extended attributes; sorted.
    pub(super) owners: Vec<Owner>,
    directories: BTreeMap<u64, Directory>,
    linked: BTreeMap<u64, Linked>,
    inodes: Vec<u64>,
    inode_next: u64,
    /// The superblock record says that there may be projects.
    has_projects: bool,
}

impl Rows {
    /// Reads `meta` and `orphans`.
    pub(super) fn scan<R: Read + ?Sized>(
        read: &R,
        keyspaces: &Keyspaces,
        unread: &Unread,
        report: &mut CheckReport,
    ) -> Result<Self> {
        let mut rows = Self::default();
        match read.get(keyspaces.meta, &superblock_key()) {
            // Told with the damage; what it would say is not known.
            Err(_) if unread.is_in("meta") => (rows.inode_next, rows.has_projects) = (u64::MAX, true),
            Err(error) => return Err(error.into()),
            Ok(Some(bytes)) => {
                let superblock = Superblock::decode(&bytes)?;
                (rows.inode_next, rows.has_projects) = (superblock.inode_next, superblock.has_projects);
            }
            Ok(None) => report.problem("file system", "there is no superblock record"),
        }
        progress::stage("comparing names", Unit::Items, 0);
        unread.for_each(read, (keyspaces.meta, "meta"), |key, bytes| {
            progress::advance(1);
            rows.see_record(key, bytes, report);
        })?;
        unread.for_each(read, (keyspaces.orphans, "orphans"), |key, bytes| {
            rows.see_orphan(key, bytes, report);
        })?;
        rows.owners.sort_unstable_by_key(|owner| owner.inode);
        Ok(rows)
    }

    /// A key of `meta`: a row, or a record of the file system as a whole.
    fn see_record(&mut self, key: &[u8], bytes: &[u8], report: &mut CheckReport) {
        if is_keyspace_key(key) {
            if let Err(error) =
                KeyspaceOwner::decode(&key.escape_ascii().to_string(), bytes).map_err(FsError::from)
            {
                report.problem("keyspaces", error.to_string());
            }
        } else if let Some(name) = parse_received_key(key) {
            if let Err(error) = decode_received(name, bytes) {
                report.problem("snapshots", error.to_string());
            }
        } else if let Some(name) = parse_private_key(key) {
            if let Err(error) = decode_private(name, bytes) {
                report.problem("snapshots", error.to_string());
            }
        } else if key == &receiving_key()[..] {
            if let Err(error) = decode_receiving(bytes) {
                report.problem("snapshots", error.to_string());
            }
        } else if key != &superblock_key()[..] {
            self.see(key, bytes, report);
        }
    }

    fn see(&mut self, key: &[u8], bytes: &[u8], report: &mut CheckReport) {
        let place = || format!("row {}", key.escape_ascii());
        let Some((subtree, rest)) = key.split_first_chunk::<8>() else {
            return report.problem(place(), "the key is too short");
        };
        let Some((0, name)) = rest.split_first() else {
            return report.problem(place(), "the key has a label, which this format does not use yet");
        };
        let subtree = u64::from_be_bytes(*subtree);
        let Some(row) = Row::parse(bytes) else {
            return report.problem(place(), "it can't be decoded");
        };
        if name.is_empty() {
            self.see_own_row(subtree, &row, report);
        } else {
            self.see_entry(subtree, name, &row, report);
        }
    }

    fn see_own_row(&mut self, subtree: u64, row: &Row<'_>, report: &mut CheckReport) {
        let place = format!("own row of inode {subtree}");
        match row {
            Row::Inode(header, content) if header.inode == subtree => {
                self.see_header(header, content.len(), &place, report);
                if header.kind == FileType::Directory {
                    report.directories += 1;
                    self.directories.entry(subtree).or_default().header = Some(*header);
                } else {
                    report.files += 1;
                    self.linked.entry(subtree).or_default().header = Some(*header);
                }
            }
            other => report.problem(place, format!("it holds {other:?}")),
        }
    }

    fn see_entry(&mut self, parent: u64, name: &[u8], row: &Row<'_>, report: &mut CheckReport) {
        report.entries += 1;
        let place = format!("entry {} of directory inode {parent}", name.escape_ascii());
        if let Err(error) = check_name(name) {
            report.problem(&place, error.to_string());
        }
        let above = self.directories.entry(parent).or_default();
        above.entries += 1;
        match row {
            Row::Inode(header, content) => {
                report.files += 1;
                if header.kind == FileType::Directory || header.nlink != 1 {
                    report.problem(&place, format!("a {:?} with link count {}", header.kind, header.nlink));
                }
                self.see_header(header, content.len(), &place, report);
            }
            Row::Directory { inode, placement } => {
                above.subdirectories += 1;
                if *placement != Placement::own_subtree(*inode) {
                    report.problem(&place, format!("inode {inode} is not its own subtree"));
                }
                self.directories.entry(*inode).or_default().names.push((parent, name.into()));
            }
            Row::Link { inode, kind } => {
                self.linked.entry(*inode).or_default().names.push((parent, name.into(), *kind));
            }
        }
    }

    fn see_orphan(&mut self, key: &[u8], bytes: &[u8], report: &mut CheckReport) {
        report.orphans += 1;
        let place = format!("orphan {}", key.escape_ascii());
        match Row::parse(bytes) {
            Some(Row::Inode(header, content)) if inode_key(header.inode) == key => {
                if header.nlink != 0 {
                    report.problem(&place, format!("its link count is {}", header.nlink));
                }
                self.see_header(&header, content.len(), &place, report);
            }
            other => report.problem(place, format!("it holds {other:?}")),
        }
    }

    fn see_header(&mut self, header: &Header, content_len: usize, place: &str, report: &mut CheckReport) {
        self.inodes.push(header.inode);
        if header.inode >= self.inode_next {
            report.problem(place, format!("inode {} was never given out", header.inode));
        }
        if header.project != 0 && !self.has_projects {
            report.problem(place, "it has a project, and the superblock record says that nothing has one");
        }
        if header.flags.has(RowFlags::DEFAULT_ACL) && header.kind != FileType::Directory {
            report.problem(place, "it says that it hands an access-control list down, and is no directory");
        }
        let elsewhere = RowFlags::BLOCKS | RowFlags::XATTRS | RowFlags::ACCESS_ACL | RowFlags::DEFAULT_ACL;
        if header.flags.has(elsewhere) {
            let Header { inode, size, blocks, flags, mode, .. } = *header;
            self.owners.push(Owner { inode, size, blocks, flags, mode });
        }
        let content_expected = match header.kind {
            FileType::Regular if header.flags.has(RowFlags::BLOCKS) => 0,
            FileType::Regular | FileType::Symlink => header.size,
            _ => 0,
        };
        if content_len as u64 != content_expected {
            report.problem(place, format!("{content_len} bytes in the row, {content_expected} expected"));
        }
    }

    /// Compares what refers with what is referred to, as far as both can be read.
    pub(super) fn compare(&self, unread: &Unread, report: &mut CheckReport) {
        let misses_names = unread.is_in("meta");
        let mut inodes = self.inodes.clone();
        inodes.sort_unstable();
        for pair in inodes.windows(2).filter(|pair| pair[0] == pair[1]) {
            report.problem(format!("inode {}", pair[0]), "it has more than one row");
        }
        let is_rooted = self.rooted();
        for (&inode, directory) in &self.directories {
            self.compare_directory(inode, directory, is_rooted.get(&inode) == Some(&true), unread, report);
        }
        for (&inode, linked) in &self.linked {
            let place = || {
                linked.names.first().map_or_else(
                    || format!("inode {inode}"),
                    |(parent, name, _)| format!("{}/{}", self.path(*parent), name.escape_ascii()),
                )
            };
            let Some(header) = &linked.header else {
                if unread.may_hold("meta", inode) {
                    continue;
                }
                report.problem(place(), format!("it refers to inode {inode}, which has no row"));
                continue;
            };
            let names = linked.names.len();
            if !misses_names && (names == 0 || header.nlink as usize != names) {
                report.problem(place(), format!("link count {}, but {names} names", header.nlink));
            }
            if linked.names.iter().any(|(_, _, kind)| *kind != header.kind) {
                report.problem(place(), format!("a name does not say that it is a {:?}", header.kind));
            }
        }
    }

    fn compare_directory(
        &self,
        inode: u64,
        directory: &Directory,
        is_rooted: bool,
        unread: &Unread,
        report: &mut CheckReport,
    ) {
        let (misses_names, misses_own) = (unread.is_in("meta"), unread.may_hold("meta", inode));
        // Only where it is told: there may be many directories, deep down.
        let place = || self.path(inode);
        let Some(header) = &directory.header else {
            if misses_own {
                return;
            }
            let entries = directory.entries;
            return report
                .problem(place(), format!("directory inode {inode} has no row, but {entries} entries"));
        };
        if header.size != directory.entries && !misses_own {
            report
                .problem(place(), format!("it counts {} entries and has {}", header.size, directory.entries));
        }
        let nlink = directory.subdirectories + 2;
        if header.nlink != nlink && !misses_own {
            report.problem(place(), format!("link count {} instead of {nlink}", header.nlink));
        }
        let parent = match &directory.names[..] {
            [] if NAMELESS_INODES.contains(&inode) => ROOT_INODE,
            [(parent, _)] if !NAMELESS_INODES.contains(&inode) => *parent,
            [] if misses_names => return,
            names => {
                return report.problem(place(), format!("directory inode {inode} has {} names", names.len()));
            }
        };
        if header.parent != parent {
            report.problem(place(), format!("its parent is inode {parent}, but it says {}", header.parent));
        }
        if !is_rooted && !misses_names {
            report.problem(place(), format!("directory inode {inode} is not below the root"));
        }
    }

    /// Which directories lead up to the root, or belong to a detached tree.
    fn rooted(&self) -> HashMap<u64, bool> {
        let mut known = HashMap::from(NAMELESS_INODES.map(|inode| (inode, true)));
        for &inode in self.directories.keys() {
            let mut path = Vec::new();
            let mut at = inode;
            let is_rooted = loop {
                if let Some(&is_rooted) = known.get(&at) {
                    break is_rooted;
                }
                // For the time being: a walk that comes by again goes in a circle.
                known.insert(at, false);
                path.push(at);
                match self.directories.get(&at).and_then(|directory| directory.names.first()) {
                    Some((parent, _)) => at = *parent,
                    None => break false,
                }
            };
            known.extend(path.into_iter().map(|inode| (inode, is_rooted)));
        }
        known
    }

    /// Path of a directory, for people.
    fn path(&self, inode: u64) -> String {
        let above = |at| self.directories.get(&at)?.names.first().map(|(parent, name)| (*parent, &name[..]));
        or_root(path_of(inode, self.directories.len(), above))
    }
}
