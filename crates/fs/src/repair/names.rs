//! The tree: every directory has a row and one name, every name leads somewhere, and all of it hangs from the
//! root.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use kvfs_store::{ExtentKind, Keyspace};

use super::edit::Edit;
use super::survey::{Linked, Name, Survey};
use crate::schema::{
    Header, NAMELESS_INODES, Placement, ROOT_INODE, Row, RowFlags, block_prefix, encode_inode_link,
};
use crate::{FileType, Result};

pub(super) fn repair(edit: &mut Edit<'_>) -> Result<()> {
    let mut survey = Survey::of(edit)?;
    take_in_rows(edit, &mut survey)?;
    give_rows(edit, &mut survey)?;
    one_name_each(edit, &mut survey)?;
    hang_up(edit, &mut survey)?;
    let linked = std::mem::take(&mut survey.linked);
    for (inode, linked) in linked {
        repair_linked(edit, &survey, inode, linked)?;
    }
    edit.apply()
}

fn remove(edit: &mut Edit<'_>, name: &Name) -> Result<()> {
    edit.delete(edit.keyspaces.meta, Placement::own_subtree(name.parent).key(&name.name))
}

/// A row of an inode that is not under its own subtree, where names look for it.
struct RowElsewhere {
    keyspace: Keyspace,
    key: Bytes,
    /// The name that it is under; `None`: it is an orphan.
    name: Option<Name>,
    header: Header,
    content: Vec<u8>,
}

/// What has names or entries and no own row may have a row elsewhere: among the orphans, where it was when
/// names came back, or under a name, as of a time when that was the only one. It becomes the own row: beside
/// another one, the next mount would take the content of an orphan away.
fn take_in_rows(edit: &mut Edit<'_>, survey: &mut Survey) -> Result<()> {
    for (inode, row) in rows_elsewhere(edit, survey)? {
        let RowElsewhere { keyspace, key, name, mut header, content } = row;
        let mut names: Vec<String> = Vec::new();
        if header.kind == FileType::Directory {
            let Some(directory) = survey.directories.get_mut(&inode) else {
                survey.taken.insert(inode);
                continue;
            };
            directory.header = Some(header);
            names.push(survey.path(inode));
        } else {
            let Some(linked) = survey.linked.get_mut(&inode) else {
                survey.taken.insert(inode);
                continue;
            };
            linked.names.extend(name.clone().map(|name| (name, header.kind)));
            header.nlink = linked.names.len() as u32;
            header.flags = header.flags.without(RowFlags::LINKABLE);
            linked.header = Some(header);
            names.extend(survey.linked[&inode].names.iter().map(|(name, _)| survey.path_of(name)));
        }
        match name {
            Some(_) => edit.put(keyspace, key, encode_inode_link(inode, header.kind))?,
            None => edit.delete(keyspace, key)?,
        }
        edit.put_row(Placement::own_subtree(inode).own_key(), &header, &content)?;
        edit.fixed(names.join(", "), format!("the row of inode {inode} was elsewhere; it is its own again"));
    }
    edit.apply()
}

/// The rows of inodes that have names or entries and no own row: by now, one for each inode.
fn rows_elsewhere(edit: &mut Edit<'_>, survey: &Survey) -> Result<BTreeMap<u64, RowElsewhere>> {
    let directories = survey.directories.iter().filter(|(_, directory)| directory.header.is_none());
    let linked = survey.linked.iter().filter(|(_, linked)| linked.header.is_none());
    let wanted: BTreeSet<u64> =
        directories.map(|(&inode, _)| inode).chain(linked.map(|(&inode, _)| inode)).collect();
    let mut found = BTreeMap::new();
    if wanted.is_empty() {
        return Ok(found);
    }
    edit.for_each_row("looking for rows elsewhere", |_, place, row| {
        let Row::Inode(header, content) = row else { return Ok(()) };
        if wanted.contains(&header.inode) && (place.is_orphan || !place.is_own()) {
            let name = (!place.is_orphan).then(|| Name { parent: place.directory, name: place.name.into() });
            let (keyspace, key, content) = (place.keyspace, place.key(), content.to_vec());
            found.insert(header.inode, RowElsewhere { keyspace, key, name, header, content });
        }
        Ok(())
    })?;
    Ok(found)
}

/// Directories that are known by their entries or names alone.
fn give_rows(edit: &mut Edit<'_>, survey: &mut Survey) -> Result<()> {
    let is_file = |inode: &u64| {
        survey.taken.contains(inode) || survey.linked.get(inode).is_some_and(|linked| linked.header.is_some())
    };
    let without: Vec<u64> = survey
        .directories
        .iter()
        .filter(|(_, directory)| directory.header.is_none())
        .map(|(&inode, _)| inode)
        .collect();
    let (files, without): (Vec<u64>, Vec<u64>) = without.into_iter().partition(is_file);
    for inode in files {
        // The number is a file's: names and entries are of a directory that never was.
        for name in survey.directories.remove(&inode).map(|directory| directory.names).unwrap_or_default() {
            edit.lost(survey.path_of(&name), format!("it led to directory inode {inode}, which is a file"));
            remove(edit, &name)?;
        }
    }
    for inode in without {
        let mut header = edit.blank(inode, FileType::Directory);
        let path = survey.path(inode);
        if inode == ROOT_INODE {
            header.mode = 0o755;
        }
        if NAMELESS_INODES.contains(&inode) {
            header.parent = ROOT_INODE;
        }
        let Some(directory) = survey.directories.get_mut(&inode) else { continue };
        let more = if directory.entries == 0 { ", and all its entries, if it had any" } else { "" };
        edit.lost(path, format!("owner, mode and times of the directory{more}"));
        edit.put_own_row(&header)?;
        directory.header = Some(header);
    }
    Ok(())
}

fn one_name_each(edit: &mut Edit<'_>, survey: &mut Survey) -> Result<()> {
    let several: Vec<u64> =
        survey.directories.iter().filter(|(_, d)| d.names.len() > 1).map(|(&inode, _)| inode).collect();
    for inode in several {
        let Some(directory) = survey.directories.get_mut(&inode) else { continue };
        let parent = directory.header.map_or(0, |header| header.parent);
        let kept = directory.names.iter().position(|name| name.parent == parent).unwrap_or(0);
        let kept = directory.names.swap_remove(kept);
        let others = std::mem::replace(&mut directory.names, vec![kept.clone()]);
        for name in others {
            let (place, stays) = (survey.path_of(&name), survey.path_of(&kept));
            edit.fixed(place, format!("a second name of the directory {stays}; taken away"));
            remove(edit, &name)?;
        }
    }
    for inode in NAMELESS_INODES {
        let Some(nameless) = survey.directories.get_mut(&inode) else { continue };
        for name in std::mem::take(&mut nameless.names) {
            let place = survey.path_of(&name);
            edit.fixed(place, "it led to a directory that has no name; taken away");
            remove(edit, &name)?;
        }
    }
    Ok(())
}

/// What does not hang from the root, and is not detached, goes to `lost+found`, with all that is below it.
fn hang_up(edit: &mut Edit<'_>, survey: &mut Survey) -> Result<()> {
    let mut known = HashSet::from(NAMELESS_INODES);
    let inodes: Vec<u64> = survey.directories.keys().copied().collect();
    for inode in inodes {
        let (mut path, mut above) = (Vec::new(), HashSet::new());
        let mut at = inode;
        let loose = loop {
            if known.contains(&at) {
                break None;
            }
            if !above.insert(at) {
                break Some(at);
            }
            path.push(at);
            match survey.directories.get(&at).and_then(|directory| directory.names.first()) {
                Some(name) => at = name.parent,
                None => break Some(at),
            }
        };
        if let Some(loose) = loose {
            let names =
                survey.directories.get_mut(&loose).map(|directory| std::mem::take(&mut directory.names));
            for name in names.unwrap_or_default() {
                remove(edit, &name)?;
            }
            let place = edit.adopt(loose, FileType::Directory)?;
            edit.fixed(
                place.clone(),
                format!("directory inode {loose} had no way to the root; it is here now"),
            );
            let name = place.rsplit('/').next().unwrap_or_default().as_bytes().into();
            if let Some(directory) = survey.directories.get_mut(&loose) {
                directory.names = vec![Name {
                    parent: edit.lost_found.as_ref().map_or(ROOT_INODE, |found| found.inode),
                    name,
                }];
            }
            // That directory may be newer than the survey.
            known.extend(edit.lost_found.as_ref().map(|found| found.inode));
        }
        known.extend(path);
    }
    Ok(())
}

/// A file with an own row, and its names.
fn repair_linked(edit: &mut Edit<'_>, survey: &Survey, inode: u64, linked: Linked) -> Result<()> {
    let Linked { header, names } = linked;
    let is_directory = survey.directories.get(&inode).is_some_and(|directory| directory.header.is_some());
    let header = match header {
        Some(header) => Some(header),
        None if is_directory || names.is_empty() || survey.taken.contains(&inode) => None,
        None => {
            let header = file_of_blocks(edit, inode)?;
            if header.is_some() {
                let paths: Vec<String> = names.iter().map(|(name, _)| survey.path_of(name)).collect();
                edit.lost(paths.join(", "), "owner, mode, times and exact size of the file");
            }
            header
        }
    };
    let Some(mut header) = header else {
        for (name, _) in &names {
            edit.lost(survey.path_of(name), format!("the file (inode {inode}); nothing of it is left"));
            remove(edit, name)?;
        }
        return Ok(());
    };
    for (name, kind) in names.iter().filter(|(_, kind)| *kind != header.kind) {
        edit.fixed(survey.path_of(name), format!("it said to be a {kind:?} and is a {:?}", header.kind));
        let key = Placement::own_subtree(name.parent).key(&name.name);
        edit.put(edit.keyspaces.meta, key, encode_inode_link(inode, header.kind))?;
    }
    let mut nlink = names.len() as u32;
    if nlink == 0 {
        let place = edit.adopt(inode, header.kind)?;
        edit.fixed(place, format!("inode {inode} had no name; it is here now"));
        nlink = 1;
    }
    if header.nlink != nlink {
        let place = names.first().map_or_else(|| format!("inode {inode}"), |(name, _)| survey.path_of(name));
        edit.fixed(place, format!("link count {} instead of {nlink}", header.nlink));
        header.nlink = nlink;
        let key = Placement::own_subtree(inode).own_key();
        let content = edit.txn.get(edit.keyspaces.meta, &key)?;
        let content = content.as_deref().and_then(Row::parse);
        let content = match content {
            Some(Row::Inode(_, content)) => content.to_vec(),
            _ => Vec::new(),
        };
        edit.put_row(key, &header, &content)?;
    }
    Ok(())
}

/// A row for a file of which only names and blocks are left.
fn file_of_blocks(edit: &mut Edit<'_>, inode: u64) -> Result<Option<Header>> {
    let prefix = block_prefix(inode);
    let (mut from, mut blocks, mut end) = (0, 0, 0);
    while let Some(extent) =
        edit.txn.next_extent(edit.keyspaces.data, &prefix, from..u64::MAX, ExtentKind::Data)?
    {
        blocks += extent.count;
        from = extent.first + extent.count;
        end = from;
    }
    if blocks == 0 {
        return Ok(None);
    }
    let header = edit.blank_file(inode, blocks, end * kvfs_store::BLOCK_BYTES as u64);
    edit.put_own_row(&header)?;
    Ok(Some(header))
}
