//! Names and own rows as they are: the tree, as far as it is one.

use std::collections::{BTreeMap, BTreeSet};

use super::edit::Edit;
use crate::check::{or_root, path_of};
use crate::schema::{Header, ROOT_INODE, Row};
use crate::{FileType, Result};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) parent: u64,
    pub(super) name: Box<[u8]>,
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    pub(super) header: Option<Header>,
    pub(super) entries: u64,
    pub(super) subdirectories: u32,
    pub(super) names: Vec<Name>,
}

#[derive(Debug, Default)]
pub(super) struct Linked {
    pub(super) header: Option<Header>,
    pub(super) names: Vec<(Name, FileType)>,
}

/// Everything but files with one name.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) directories: BTreeMap<u64, Directory>,
    pub(super) linked: BTreeMap<u64, Linked>,
    /// Of those without an own row: numbers of inodes of another kind, which have a row elsewhere.
    pub(super) taken: BTreeSet<u64>,
}

impl Survey {
    pub(super) fn of(edit: &mut Edit<'_>) -> Result<Self> {
        let mut survey = Self::default();
        survey.directories.entry(ROOT_INODE).or_default();
        edit.for_each_row("reading names", |_, place, row| {
            if place.is_orphan {
                return Ok(());
            }
            if place.is_own() {
                if let Row::Inode(header, _) = row {
                    survey.own_row(header);
                }
                return Ok(());
            }
            let above = survey.directories.entry(place.directory).or_default();
            above.entries += 1;
            let name = Name { parent: place.directory, name: place.name.into() };
            match row {
                Row::Inode(..) => {}
                Row::Directory { inode, .. } => {
                    above.subdirectories += 1;
                    survey.directories.entry(inode).or_default().names.push(name);
                }
                Row::Link { inode, kind } => {
                    survey.linked.entry(inode).or_default().names.push((name, kind));
                }
            }
            Ok(())
        })?;
        Ok(survey)
    }

    fn own_row(&mut self, header: Header) {
        if header.kind == FileType::Directory {
            self.directories.entry(header.inode).or_default().header = Some(header);
        } else {
            self.linked.entry(header.inode).or_default().header = Some(header);
        }
    }

    /// Path of a directory, for people.
    pub(super) fn path(&self, inode: u64) -> String {
        or_root(self.path_to(inode))
    }

    /// Path of a name, for people.
    pub(super) fn path_of(&self, name: &Name) -> String {
        format!("{}/{}", self.path_to(name.parent), name.name.escape_ascii())
    }

    fn path_to(&self, inode: u64) -> String {
        let above = |at| self.directories.get(&at)?.names.first().map(|name| (name.parent, &*name.name));
        path_of(inode, self.directories.len(), above)
    }
}
