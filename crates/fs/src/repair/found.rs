//! `lost+found/`: where goes what has no name any more.
//!
//! What it leads to may have been closed by the directories above, so only the owner of the root directory
//! may look into it.

use super::edit::Edit;
use crate::schema::{Header, Placement, ROOT_INODE, Row, encode_directory_link, encode_inode_link};
use crate::{FileType, Result};

const NAME: &str = "lost+found";

impl Edit<'_> {
    /// Gives `inode`, which has an own row, a name; returns its path.
    pub(super) fn adopt(&mut self, inode: u64, kind: FileType) -> Result<String> {
        let directory = self.lost_and_found()?;
        let what = if kind == FileType::Directory { "directory" } else { "file" };
        let name = self.free_name(directory.inode, &format!("{what}-{inode}"))?;
        let row = match kind {
            FileType::Directory => encode_directory_link(inode, &Placement::own_subtree(inode)),
            _ => encode_inode_link(inode, kind),
        };
        let key = Placement::own_subtree(directory.inode).key(name.as_bytes());
        self.put(self.keyspaces.meta, key, row)?;
        self.apply()?;
        Ok(format!("/{}/{name}", directory.name))
    }

    /// The directory, made when it is needed first.
    fn lost_and_found(&mut self) -> Result<LostAndFound> {
        let root = Placement::own_subtree(ROOT_INODE);
        let meta = self.keyspaces.meta;
        if let Some(known) = &self.lost_found {
            return Ok(known.clone());
        }
        self.apply()?;
        let above = self.own_header(ROOT_INODE)?;
        let mut name = NAME.to_owned();
        if let Some(bytes) = self.txn.get(meta, &root.key(NAME.as_bytes()))? {
            if let Some(Row::Directory { inode, .. }) = Row::parse(&bytes)
                && let Some(header) = self.own_header(inode)?
                && matches!(header.mode & 0o077, 0)
                && [0, above.as_ref().map_or(0, |above| above.uid)].contains(&header.uid)
            {
                return Ok(self.lost_found.insert(LostAndFound { inode, name }).clone());
            }
            name = self.free_name(ROOT_INODE, NAME)?;
        }
        let inode = self.new_inode()?;
        let mut header = self.blank(inode, FileType::Directory);
        header.parent = ROOT_INODE;
        if let Some(above) = above {
            (header.uid, header.gid) = (above.uid, above.gid);
        }
        self.put_own_row(&header)?;
        self.put(
            meta,
            root.key(name.as_bytes()),
            encode_directory_link(inode, &Placement::own_subtree(inode)),
        )?;
        self.apply()?;
        Ok(self.lost_found.insert(LostAndFound { inode, name }).clone())
    }

    /// What the own row of a directory says.
    fn own_header(&self, directory: u64) -> Result<Option<Header>> {
        let bytes = self.txn.get(self.keyspaces.meta, &Placement::own_subtree(directory).own_key())?;
        Ok(bytes.and_then(|bytes| match Row::parse(&bytes) {
            Some(Row::Inode(header, _)) => Some(header),
            _ => None,
        }))
    }

    /// `name`, or with a number behind it where that is taken.
    fn free_name(&mut self, directory: u64, name: &str) -> Result<String> {
        self.apply()?;
        let place = Placement::own_subtree(directory);
        let mut tried = name.to_owned();
        let mut number = 0;
        while self.txn.get(self.keyspaces.meta, &place.key(tried.as_bytes()))?.is_some() {
            number += 1;
            tried = format!("{name}.{number}");
        }
        Ok(tried)
    }
}

/// Where it is.
#[derive(Clone)]
pub(super) struct LostAndFound {
    pub(super) inode: u64,
    name: String,
}
