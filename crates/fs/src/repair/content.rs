//! Blocks and extended attributes against their owners.
//!
//! A file whose last blocks are gone ends with the last one that is left; what is missing before that is a
//! hole. One whose row may be an older one is as long as its blocks, of which the newer row knew.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, ExtentKind};

use super::edit::Edit;
use super::paths::FilePaths;
use crate::acl::{Acl, AclKind, PERMISSIONS};
use crate::check::Unread;
use crate::schema::{Header, Row, RowFlags, block_prefix, inode_key};
use crate::{FILE_SIZE_MAX, FileType, INODE_MAX, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What an inode's row says of its content.
#[derive(Debug, Clone, Copy)]
struct Owner {
    kind: FileType,
    size: u64,
    blocks: u64,
    flags: RowFlags,
    mode: u32,
    is_orphan: bool,
}

/// Blocks of one inode as they are.
#[derive(Debug, Clone, Copy, Default)]
struct Blocks {
    count: u64,
    /// Behind the last one.
    end: u64,
    /// Blocks at or beyond the end of the file.
    beyond: u64,
    /// The last block below the size has bytes behind it that are not zero.
    has_rest: bool,
}

/// What is to be set in a row.
#[derive(Debug, Clone, Copy)]
struct Fix {
    size: u64,
    blocks: u64,
    flags: RowFlags,
    mode: u32,
}

impl Fix {
    fn nothing(owner: &Owner) -> Self {
        let Owner { size, blocks, flags, mode, .. } = *owner;
        Self { size, blocks, flags, mode }
    }
}

pub(super) fn repair(edit: &mut Edit<'_>) -> Result<()> {
    let mut owners: BTreeMap<u64, Owner> = BTreeMap::new();
    edit.for_each_row("reading attributes", |_, place, row| {
        if let Row::Inode(Header { inode, kind, size, blocks, flags, mode, .. }, _) = row {
            owners.insert(inode, Owner { kind, size, blocks, flags, mode, is_orphan: place.is_orphan });
        }
        Ok(())
    })?;
    let found = count_blocks(edit, &owners)?;
    let mut fixes = BTreeMap::new();
    let mut holes = Vec::new();
    for (&inode, owner) in owners.iter().filter(|(_, owner)| owner.flags.has(RowFlags::BLOCKS)) {
        let blocks = found.get(&inode).copied().unwrap_or_default();
        if let Some(fix) = fit(edit, inode, owner, blocks, &mut holes)? {
            fixes.insert(inode, fix);
        }
    }
    // Numbers that rows knew, and the superblock record did not: no new inode may get one of them.
    let numbers = found.keys().rev().find(|&&inode| inode < INODE_MAX);
    edit.inode_next = edit.inode_next.max(numbers.map_or(0, |inode| inode + 1));
    let is_owned = |inode: &u64| owners.get(inode).is_some_and(|owner| owner.flags.has(RowFlags::BLOCKS));
    for (&inode, blocks) in found.iter().filter(|(inode, _)| !is_owned(inode)) {
        adopt_blocks(edit, inode, *blocks, owners.contains_key(&inode))?;
    }
    attributes(edit, &owners, &mut fixes)?;
    write(edit, &fixes)?;
    tell(edit, &owners, &fixes, &holes)
}

fn count_blocks(edit: &mut Edit<'_>, owners: &BTreeMap<u64, Owner>) -> Result<BTreeMap<u64, Blocks>> {
    let data = edit.keyspaces.data;
    let mut found: BTreeMap<u64, Blocks> = BTreeMap::new();
    edit.for_each("reading content", data, |edit, key, value| {
        let Some((inode, block)) = split(key) else {
            edit.lost(format!("block {}", key.escape_ascii()), "its key is no inode and block of a file");
            return edit.delete(data, Bytes::copy_from_slice(key));
        };
        let blocks = found.entry(inode).or_default();
        let size = owners.get(&inode).map_or(u64::MAX, |owner| owner.size);
        let start = block.saturating_mul(BLOCK);
        if start >= size {
            blocks.beyond += 1;
            return Ok(());
        }
        blocks.count += 1;
        blocks.end = block + 1;
        let used = (size - start).min(BLOCK) as usize;
        blocks.has_rest |= value.get(used..).is_some_and(|rest| rest.iter().any(|&byte| byte != 0));
        Ok(())
    })?;
    Ok(found)
}

/// Inode and number of a block. `None`: no file has such a block.
fn split(key: &[u8]) -> Option<(u64, u64)> {
    let (inode, block) = key.split_first_chunk::<8>()?;
    let block = u64::from_be_bytes(block.try_into().ok()?);
    (block <= FILE_SIZE_MAX / BLOCK).then_some((u64::from_be_bytes(*inode), block))
}

/// Makes row and blocks of a file agree; ranges of bytes that are missing go to `holes`.
fn fit(
    edit: &mut Edit<'_>,
    inode: u64,
    owner: &Owner,
    blocks: Blocks,
    holes: &mut Vec<(u64, Vec<(u64, u64)>)>,
) -> Result<Option<Fix>> {
    let end = owner.size.div_ceil(BLOCK);
    let mut fix = Fix { blocks: blocks.count, ..Fix::nothing(owner) };
    let is_longer = blocks.beyond > 0 || blocks.has_rest;
    let is_kept = is_longer && edit.older.as_ref().is_none_or(|older| older.contains(&inode));
    if is_kept {
        fix.size = last_block(edit, inode)?.saturating_mul(BLOCK).min(FILE_SIZE_MAX);
        fix.blocks += blocks.beyond;
        fix.flags = fix.flags | RowFlags::SPARSE;
    } else if is_longer {
        cut(edit, inode, owner.size, blocks)?;
    }
    if !owner.flags.has(RowFlags::SPARSE) && blocks.count < end {
        let missing = missing(edit, inode, blocks.end)?;
        if blocks.end < end && !is_kept {
            fix.size = blocks.end * BLOCK;
        }
        if !missing.is_empty() {
            fix.flags = fix.flags | RowFlags::SPARSE;
        }
        let tail = (blocks.end < end).then_some((blocks.end * BLOCK, owner.size));
        holes.push((inode, missing.into_iter().chain(tail).collect()));
    }
    let is_same = (fix.size, fix.blocks, fix.flags) == (owner.size, owner.blocks, owner.flags);
    Ok((!is_same || is_longer).then_some(fix))
}

/// Takes away what came back behind the end of a file.
fn cut(edit: &mut Edit<'_>, inode: u64, size: u64, blocks: Blocks) -> Result<()> {
    let end = size.div_ceil(BLOCK);
    if blocks.beyond > 0 {
        edit.delete_range(edit.keyspaces.data, block_key(inode, end), inode_key(inode + 1))?;
    }
    if blocks.has_rest {
        let mut data = vec![0; BLOCK_BYTES];
        edit.txn.read_blocks(edit.keyspaces.data, &block_prefix(inode), end - 1, &mut data)?;
        data[(size - (end - 1) * BLOCK) as usize..].fill(0);
        edit.put_block(inode, end - 1, data.into())?;
    }
    Ok(())
}

fn block_key(inode: u64, block: u64) -> Bytes {
    [inode.to_be_bytes(), block.to_be_bytes()].concat().into()
}

/// Ranges of bytes below block `end` that no block holds.
fn missing(edit: &Edit<'_>, inode: u64, end: u64) -> Result<Vec<(u64, u64)>> {
    let prefix = block_prefix(inode);
    let (mut ranges, mut from) = (Vec::new(), 0);
    while let Some(data) = edit.txn.next_extent(edit.keyspaces.data, &prefix, from..end, ExtentKind::Data)? {
        if data.first > from {
            ranges.push((from * BLOCK, data.first * BLOCK));
        }
        from = data.first + data.count;
    }
    Ok(ranges)
}

/// Blocks without an owner become a file in `lost+found`.
fn adopt_blocks(edit: &mut Edit<'_>, inode: u64, blocks: Blocks, is_taken: bool) -> Result<()> {
    let owner = if is_taken || !(16..INODE_MAX).contains(&inode) { edit.new_inode()? } else { inode };
    if owner != inode {
        move_blocks(edit, inode, owner)?;
    }
    // Its row was not there when `beyond` was counted, unless it has one of another kind.
    let count = blocks.count + blocks.beyond;
    let end = last_block(edit, owner)?;
    let header = edit.blank_file(owner, count, end.saturating_mul(BLOCK).min(FILE_SIZE_MAX));
    edit.put_own_row(&header)?;
    let place = edit.adopt(owner, FileType::Regular)?;
    let of = if is_taken {
        "of the file of the same number, which says that it has none"
    } else {
        "of a file whose row is lost"
    };
    edit.lost(place.clone(), "name, owner, mode, times and exact size of the file");
    edit.fixed(place, format!("{count} blocks {of} (inode {inode}); they are here now"));
    Ok(())
}

/// Behind the last block.
fn last_block(edit: &mut Edit<'_>, inode: u64) -> Result<u64> {
    edit.apply()?;
    let prefix = block_prefix(inode);
    let mut end = 0;
    while let Some(extent) =
        edit.txn.next_extent(edit.keyspaces.data, &prefix, end..u64::MAX, ExtentKind::Data)?
    {
        end = extent.first + extent.count;
    }
    Ok(end)
}

fn move_blocks(edit: &mut Edit<'_>, from: u64, to: u64) -> Result<()> {
    let prefix = block_prefix(from);
    let mut at = 0;
    edit.apply()?;
    while let Some(extent) =
        edit.txn.next_extent(edit.keyspaces.data, &prefix, at..u64::MAX, ExtentKind::Data)?
    {
        for block in extent.first..extent.first + extent.count {
            let mut data = vec![0; BLOCK_BYTES];
            edit.txn.read_blocks(edit.keyspaces.data, &prefix, block, &mut data)?;
            edit.put_block(to, block, data.into())?;
        }
        at = extent.first + extent.count;
    }
    edit.delete_range(edit.keyspaces.data, inode_key(from), inode_key(from + 1))
}

/// Extended attributes without an inode go; an inode that has some says so, and of which kinds its lists are.
fn attributes(
    edit: &mut Edit<'_>,
    owners: &BTreeMap<u64, Owner>,
    fixes: &mut BTreeMap<u64, Fix>,
) -> Result<()> {
    let xattr = edit.keyspaces.xattr;
    let mut lost: BTreeSet<u64> = BTreeSet::new();
    let mut lists: BTreeSet<(u64, AclKind)> = BTreeSet::new();
    edit.for_each("reading extended attributes", xattr, |edit, key, value| {
        let found = key.split_first_chunk::<8>().map(|(inode, name)| (u64::from_be_bytes(*inode), name));
        let Some((inode, name, owner)) =
            found.and_then(|(inode, name)| Some((inode, name, owners.get(&inode)?)))
        else {
            let inode = found.map_or(0, |(inode, _)| inode);
            if lost.insert(inode) {
                edit.lost(format!("inode {inode}"), "extended attributes of a file that is gone");
            }
            return edit.delete(xattr, Bytes::copy_from_slice(key));
        };
        let mut flags = RowFlags::XATTRS;
        let mut mode = None;
        if let Some(kind) = AclKind::by_name(name) {
            let list = Acl::parse(value).ok().flatten();
            let fits = kind == AclKind::Access || owner.kind == FileType::Directory;
            let Some(list) = list.filter(|_| fits) else {
                edit.lost(format!("inode {inode}"), format!("its list {}", name.escape_ascii()));
                return edit.delete(xattr, Bytes::copy_from_slice(key));
            };
            lists.insert((inode, kind));
            flags = flags | kind.flag();
            if kind == AclKind::Access {
                mode = Some((owner.mode & !PERMISSIONS) | list.permissions());
            }
        }
        if owner.flags | flags != owner.flags || mode.is_some_and(|mode| mode != owner.mode) {
            let fix = fixes.entry(inode).or_insert(Fix::nothing(owner));
            fix.flags = fix.flags | flags;
            fix.mode = mode.unwrap_or(fix.mode);
        }
        Ok(())
    })?;
    for (&inode, owner) in owners {
        for kind in AclKind::ALL {
            if owner.flags.has(kind.flag()) && !lists.contains(&(inode, kind)) {
                edit.lost(format!("inode {inode}"), format!("its list {}", kind.name().escape_ascii()));
                let fix = fixes.entry(inode).or_insert(Fix::nothing(owner));
                fix.flags = fix.flags.without(kind.flag());
                if kind == AclKind::Access {
                    // The bits of the group were a mask: no user may get more than the list gave.
                    fix.mode &= !0o070;
                }
            }
        }
    }
    Ok(())
}

fn write(edit: &mut Edit<'_>, fixes: &BTreeMap<u64, Fix>) -> Result<()> {
    if fixes.is_empty() {
        return Ok(());
    }
    edit.for_each_row("writing attributes", |edit, place, row| {
        let Row::Inode(mut header, content) = row else { return Ok(()) };
        let Some(fix) = fixes.get(&header.inode) else { return Ok(()) };
        (header.size, header.blocks, header.flags) = (fix.size, fix.blocks, fix.flags);
        header.mode = fix.mode;
        edit.put(place.keyspace, place.key(), crate::schema::encode_row(&header, content))
    })
}

/// By path, now that all have one.
fn tell(
    edit: &mut Edit<'_>,
    owners: &BTreeMap<u64, Owner>,
    fixes: &BTreeMap<u64, Fix>,
    holes: &[(u64, Vec<(u64, u64)>)],
) -> Result<()> {
    let visible = fixes.keys().filter(|inode| owners.get(inode).is_some_and(|owner| !owner.is_orphan));
    let wanted: BTreeSet<u64> = visible.copied().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    edit.apply()?;
    let paths = FilePaths::of(edit.txn, &edit.keyspaces, &wanted, &Unread::default())?;
    for inode in &wanted {
        let (Some(fix), Some(owner)) = (fixes.get(inode), owners.get(inode)) else { continue };
        let path = paths.of_file(*inode);
        if let Some((_, ranges)) = holes.iter().find(|(of, _)| of == inode) {
            let ranges: Vec<String> = ranges.iter().map(|(from, to)| format!("{from}-{to}")).collect();
            edit.lost_bytes(*inode, path.clone(), format!("bytes {} of the file", ranges.join(", ")));
        }
        if fix.size > owner.size {
            edit.lost(path.clone(), "exact size of the file, which is as long as its last block now");
        }
        let change = match fix.size.cmp(&owner.size) {
            std::cmp::Ordering::Equal => format!("its row was put right: {} blocks of 4 KiB", fix.blocks),
            _ => format!("{} bytes long now, it was {}", fix.size, owner.size),
        };
        let what = if owner.kind == FileType::Directory { "attributes" } else { "content" };
        edit.fixed(path, format!("{what}: {change}"));
    }
    Ok(())
}
